"""`mlirc-loops`: a kernel of any linalg, tm_tensor or tensor ops becomes launches with one thread per iteration point.

The generic path: slower than a schedule, but right for whatever the frontend emits. A kernel's function (attribute
`mlirc.lowering = "loops"`, block size `mlirc.threads`) is bufferized with its results as trailing arguments; every
linalg op becomes a launch over its parallel dimensions with its reductions serial in each thread; loops left by other
ops are launched over those dimensions that carry no dependence; what is serial runs in one thread. Indices that depend
on data are kept inside of their tensors (`guards.py`).

Options: `threads` overrides the block size; `stage=buffers` stops after bufferization and `stage=parallel` before the
mapping to launches; both run on the CPU.
"""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.passes import register
from mlirc.passes.loops.buffers import bufferize, to_parallel_loops
from mlirc.passes.loops.guards import ACCESSES, keep_inside
from mlirc.passes.loops.launches import map_to_launches
from mlirc.passes.loops.nests import walk
from mlirc.schedule.places import attribute_place
from mlirc.targets import DEFAULT_TARGET, Target, get_target

DEFAULT_THREADS = 256
_STAGES = ("buffers", "parallel", "gpu")


@register("mlirc-loops")
def run(module: ir.Module, stage: str = "gpu", target: str = "", threads: str = "", **options: str) -> None:
    """Lowers every function of the module that asks for it, in place; raises MlircError for an op with no lowering."""
    if options:
        raise MlircError(f"mlirc-loops has no option '{next(iter(options))}': it has stage, threads and target")
    if stage not in _STAGES:
        raise MlircError(f"mlirc-loops: unknown stage '{stage}': choose one of {', '.join(_STAGES)}")
    with module.context, ir.Location.unknown():
        names = [ir.StringAttr(op.attributes["sym_name"]).value for op in _kernels(module)]
        if not names:
            raise MlircError('mlirc-loops: no function has the attribute mlirc.lowering = "loops"')
        bufferize(module)
        if stage != "buffers":
            to_parallel_loops(module)
        if stage == "gpu":
            for op in list(_kernels(module)):
                for access in [inner for inner in walk(op) if inner.name in ACCESSES]:
                    keep_inside(access)
                _check_blocks(op, _threads(op, threads), get_target(target or DEFAULT_TARGET))
                map_to_launches(module, op, _threads(op, threads))


def _threads(function: ir.Operation, option: str) -> int:
    """Threads per block: the option, else the function's `mlirc.threads`, else the default."""
    if option:
        if not option.isdigit():
            raise MlircError(f"mlirc-loops: threads={option}: give a number of threads per block")
        return int(option)
    if "mlirc.threads" in function.attributes:
        return ir.IntegerAttr(function.attributes["mlirc.threads"]).value
    return DEFAULT_THREADS


def _check_blocks(function: ir.Operation, threads: int, target: Target) -> None:
    """Raises MlircError, at the script's line, for more blocks than a multiprocessor can hold."""
    if "mlirc.min_blocks" in function.attributes:
        blocks = ir.IntegerAttr(function.attributes["mlirc.min_blocks"]).value
        problem = target.too_many_blocks(blocks, threads, 0)
        if problem:
            place = attribute_place(function, "min_blocks")
            name = ir.StringAttr(function.attributes["sym_name"]).value
            raise MlircError(f"{place + ': ' if place else ''}kernel {name}: mlirc.min_blocks = {blocks}: {problem}")


def _kernels(module: ir.Module) -> list[ir.Operation]:
    found = []
    for view in module.body.operations:
        op = view.operation
        if op.name == "func.func" and "mlirc.lowering" in op.attributes:
            if ir.StringAttr(op.attributes["mlirc.lowering"]).value == "loops":
                found.append(op)
    return found
