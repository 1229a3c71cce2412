"""`mlirc-merge-kernels`: several small kernels in one launch.

A `kernels`-level pass. A map whose result is nothing but the rows that a kernel writes (a scatter with
`unique_indices(true)`) becomes a part of that kernel. Then kernels of maps and of such writes that do not depend on
each other become one kernel of kind `bundle`, where together they compute at most `points` elements: each is a launch
of about a microsecond otherwise, whatever it does. What runs when the model is loaded joins only what does, too.

    points   elements (default: 262144 in a function that writes rows, about as many threads as a GPU runs at once;
             0 in others)
"""

from __future__ import annotations

from math import prod

from mlirc.errors import MlircError
from mlirc.ir.at_load import argument_kinds, split_at_load
from mlirc.ir.tensors import VIEWS, shape_of
from mlirc.mlir import func, ir, run_passes
from mlirc.passes import register
from mlirc.passes.graph.bundles import Bundler, Part, drop_unused, sink_views
from mlirc.passes.graph.outline import graph_functions
from mlirc.passes.loops.row_writes import is_row_write

POINTS = 1 << 18
_MAPS = ("elementwise", "gather")


@register("mlirc-merge-kernels")
def run(module: ir.Module, points: str = "", **options: str) -> None:
    """Merges kernels, in place. Raises MlircError for an unknown option."""
    if options or not (points.isdigit() or not points):
        raise MlircError("mlirc-merge-kernels has one option: points, a number of elements")
    with ir.Location.unknown(module.context):
        bundler = Bundler(module)
        for function in graph_functions(module):
            _merge(function.regions[0].blocks[0], bundler, int(points) if points else None)
        if not bundler.made:
            return
        drop_unused(module)
    run_passes(module, "canonicalize,cse")


def _merge(block: ir.Block, bundler: Bundler, points: int | None) -> None:
    """Merges calls of a function. Each time something has moved, what may stand where is found out again."""
    writes = {name for name, kernel in bundler.kernels.items() if _writes_rows(kernel)}
    kinds = {name: ir.StringAttr(k.attributes["mlirc.kind"]).value for name, k in bundler.kernels.items()}
    maps = {name for name, kind in kinds.items() if kind in _MAPS}
    if points is None:
        points = POINTS if any(op.callee.value in writes for op in _calls(block)) else 0
    if not points and not any(op.callee.value in writes for op in _calls(block)):
        return
    sink_views(block)
    done: set[ir.Operation] = set()
    while group := _group(block, maps, writes, points, done):
        bundler.bundle(group.calls)


def _calls(block: ir.Block) -> list[func.CallOp]:
    return [op for op in block.operations if isinstance(op, func.CallOp)]


def _writes_rows(kernel: func.FuncOp) -> bool:
    ops = [op.operation for op in kernel.regions[0].blocks[0].operations]
    return len(ops) == 2 and is_row_write(ops[0])


def _group(block: ir.Block, maps: set[str], writes: set[str], limit: int, done: set[ir.Operation]) -> Part | None:
    """The first calls that become one kernel; those of `done` are known to be in none, and are added to."""
    parts = _parts(block, maps, writes)
    for i, part in enumerate(parts):
        if part.calls[-1].operation in done:
            continue
        for other in parts[i + 1 :]:
            if part.points + other.points <= limit and part.joins(other):
                part.add(other)
        if len(part.calls) > 1:
            return part
        done.add(part.calls[-1].operation)
    return None


def _parts(block: ir.Block, maps: set[str], writes: set[str]) -> list[Part]:
    """The calls of maps and of writes, a write together with the map that makes its rows alone."""
    number = {op.operation: i for i, op in enumerate(block.operations)}
    at_load = set(split_at_load(list(number), argument_kinds(block.owner))[0])
    taken: set[ir.Operation] = set()
    parts = []
    for call in reversed(_calls(block)):
        name = call.callee.value
        if call.operation in taken or name not in maps | writes:
            continue
        maker = _only_maker(call.operands[0], maps) if name in writes else None
        members = [call] if maker is None else [maker, call]
        taken |= {m.operation for m in members}
        points = prod(shape_of(call.operands[0] if name in writes else call.results[0]))
        parts.append(Part.of(members, number, points, call.operation in at_load))
    return parts[::-1]


def _only_maker(value: ir.Value, maps: set[str]) -> func.CallOp | None:
    """The call of a map that makes a value, through views, for one reader."""
    while len(list(value.uses)) == 1 and not isinstance(value.owner, ir.Block):
        if isinstance(value.owner, func.CallOp):
            call = value.owner
            return call if call.callee.value in maps and len(call.results) == 1 else None
        if value.owner.operation.name not in VIEWS:
            return None
        value = value.owner.operation.operands[0]
    return None
