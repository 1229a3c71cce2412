"""`mlirc-fuse-recurrences`: a loop over time steps whose step is a cell (`graph/recurrences.py`) becomes one kernel.

Where the matrix of the cell fits on the multiprocessors: a kernel keeps it there over all steps. Others stay loops of
launches. Two that are alike and do not depend on each other, as the directions of a layer, are one kernel where both
matrices fit (`graph/recurrence_pairs.py`). Options:

    target  the GPU, by the name of a target
"""

from __future__ import annotations

from dataclasses import replace

from mlirc.ir.loops import LOOP, STEP, read_loop
from mlirc.ir.recurrences import KIND
from mlirc.mlir import func, ir
from mlirc.passes import register
from mlirc.passes.graph.loop_products import part_products
from mlirc.passes.graph.outline import graph_functions, origins, summarize_origins
from mlirc.passes.graph.recurrence_pairs import pair
from mlirc.passes.graph.recurrences import Cell, cell_of, inline
from mlirc.passes.recurrence.geometry import chosen
from mlirc.targets import DEFAULT_TARGET, Target, get_target

LEAST_STEPS = 2
# Rows of a batch. Blocks read all of the state at every step: beyond twice what was measured (recurrences-h200.md)
# launches with products by whole tiles may be faster.
MOST_ROWS = 64


@register("mlirc-fuse-recurrences")
def run(module: ir.Module, target: str = DEFAULT_TARGET) -> None:
    """Rewrites a `linalg`-level module in place."""
    with ir.Location.unknown(module.context):
        part_products(module)
    functions = {op.name.value: op for op in module.body.operations if isinstance(op, func.FuncOp)}
    cells: dict[str, tuple[Cell, int]] = {}
    with ir.Location.unknown(module.context):
        for name, function in functions.items():
            if LOOP not in function.attributes:
                continue
            loop = read_loop(function)
            cell = cell_of(functions[loop.step], loop)
            if cell is not None and loop.count >= LEAST_STEPS and fits(cell, get_target(target)):
                new = f"{KIND}_{len(cells)}"
                _fuse(module, function, cell, new, name)
                cells[new] = cell, loop.count
        pair(module, lambda first, second: _alike(cells[first], cells[second], get_target(target)))
        used = {c.callee.value for c in _calls(module)}
        for name, function in functions.items():
            if STEP in function.attributes and name not in used:
                function.operation.erase()


def fits(cell: Cell, target: Target, count: int = 1) -> bool:
    """Whether the matrices of so many cells fit, each multiprocessor having all gates of some units of one."""
    target = replace(target, sms=target.sms // count)
    best = chosen(cell.batch, cell.units, cell.gates, cell.bytes, cell.k_last, target)
    return best is not None and cell.batch <= MOST_ROWS


def _alike(first: tuple[Cell, int], second: tuple[Cell, int], target: Target) -> bool:
    """Whether two cells, with their steps, are divided alike among the multiprocessors, and both fit."""
    sizes = [(c.batch, c.units, c.gates, c.bytes, c.k_last, steps) for c, steps in (first, second)]
    return sizes[0] == sizes[1] and fits(first[0], target, 2)


def _calls(module: ir.Module) -> list[func.CallOp]:
    found = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "func.call":
            found.append(op.opview)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _fuse(module: ir.Module, function: func.FuncOp, cell: Cell, name: str, old: str) -> None:
    """Makes the kernel `name` of a loop's function, and calls that."""
    [loop] = [o.operation for o in function.operation.regions[0].blocks[0].operations if o.operation.name == "scf.for"]
    [call] = [o.operation for o in loop.regions[0].blocks[0].operations if o.operation.name == "func.call"]
    inline(cell, call)
    del function.attributes[LOOP]
    names: dict[str, None] = {}
    for main in graph_functions(module):
        for op in [o.operation for o in main.operation.regions[0].blocks[0].operations]:
            if op.name == "func.call" and ir.FlatSymbolRefAttr(op.attributes["callee"]).value == old:
                op.attributes["callee"] = ir.FlatSymbolRefAttr.get(name)
                origins(op.location, names)
    function.attributes["sym_name"] = ir.StringAttr.get(name)
    function.attributes["mlirc.kernel"] = ir.UnitAttr.get()
    function.attributes["mlirc.kind"] = ir.StringAttr.get(KIND)
    short = summarize_origins(list(names))
    function.attributes["mlirc.origin"] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in short])
