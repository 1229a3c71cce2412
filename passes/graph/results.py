"""Results that need only some of an op's loops, taken out into ops of their own.

A `linalg.generic` whose second result does not depend on a loop, as the sizes of an adaptive pooling's windows do not
depend on the image, computes and stores the same element once for each point of that loop: many threads would write one
place.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.dialects.schedule import _build
from mlirc.mlir import ir, linalg
from mlirc.passes.graph.classify import generic_inits, iterators, maps
from mlirc.passes.graph.emit import make_generic


def part_results(block: ir.Block) -> None:
    """Rewrites every such op of the block, where what it computes for that result depends on loops alone."""
    for op in [o.operation for o in block.operations]:
        if op.name == "linalg.generic" and len(op.results) > 1:
            _part(op)


def _part(op: ir.Operation) -> None:
    kinds, count = iterators(op), generic_inits(op)
    outs = list(zip(range(count), maps(op)[-count:], strict=True))
    taken = {}
    for i, map_ in outs:
        loops = _plain(map_)
        missing = {d for d, kind in enumerate(kinds) if kind == "parallel"} - set(loops or ())
        steps = _steps(op, i, set(loops or ()))
        if loops is not None and missing and steps is not None:
            taken[i] = (loops, steps)
    if not taken or len(taken) == count:
        return
    with op.location, ir.InsertionPoint(op):
        for i, (loops, steps) in taken.items():
            op.results[i].replace_all_uses_with(_alone(op, i, loops, steps))
        kept = [i for i in range(count) if i not in taken]
        new = _with_results(op, kept)
    for place, i in enumerate(kept):
        op.results[i].replace_all_uses_with(new.results[place])
    op.erase()


def _plain(map_: ir.AffineMap) -> list[int] | None:
    """The loops that a map names, each once and alone; None for another map."""
    if not all(isinstance(e, ir.AffineDimExpr) for e in map_.results):
        return None
    loops = [ir.AffineDimExpr(e).position for e in map_.results]
    return loops if len(set(loops)) == len(loops) else None


def _steps(op: ir.Operation, result: int, loops: set[int]) -> list[ir.Operation] | None:
    """The body's ops that the result is computed by, in order; None if it depends on more than indices of `loops`."""
    body = [o.operation for o in op.regions[0].blocks[0].operations]
    needed, steps = {body[-1].operands[result]}, []
    own = {r for o in body for r in o.results} | set(op.regions[0].blocks[0].arguments)
    for inner in reversed(body[:-1]):
        if not needed & set(inner.results):
            continue
        if inner.regions or inner.name == "tensor.extract":
            return None
        if inner.name == "linalg.index" and ir.IntegerAttr(inner.attributes["dim"]).value not in loops:
            return None
        needed = needed - set(inner.results) | {v for v in inner.operands if v in own}
        steps.append(inner)
    return None if needed else steps[::-1]


def _alone(op: ir.Operation, result: int, loops: list[int], steps: Sequence[ir.Operation]) -> ir.Value:
    """The result by an op over its own loops."""
    init = list(op.operands)[len(op.operands) - generic_inits(op) + result]
    new = make_generic([], [init], [ir.AffineMap.get_identity(len(loops))], ["parallel"] * len(loops))
    places: dict[ir.Value, ir.Value] = {}
    with ir.InsertionPoint(new.regions[0].blocks[0]):
        for inner in steps:
            if inner.name == "linalg.index":
                at = loops.index(ir.IntegerAttr(inner.attributes["dim"]).value)
                places[inner.results[0]] = linalg.IndexOp(at).result
                continue
            _build.clone(inner, places)
        value = op.regions[0].blocks[0].operations[len(op.regions[0].blocks[0].operations) - 1].operands[result]
        linalg.yield_([places.get(value, value)])
    return new.results[0]


def _with_results(op: ir.Operation, kept: Sequence[int]) -> ir.Operation:
    """The op with some of its results."""
    operands, count = list(op.operands), generic_inits(op)
    inputs, inits = operands[: len(operands) - count], operands[len(operands) - count :]
    all_maps = maps(op)
    chosen = [*all_maps[: len(inputs)], *(all_maps[len(inputs) + i] for i in kept)]
    new = make_generic(inputs, [inits[i] for i in kept], chosen, iterators(op))
    old, block = op.regions[0].blocks[0], new.regions[0].blocks[0]
    arguments = [*range(len(inputs)), *(len(inputs) + i for i in kept)]
    places = {old.arguments[a]: block.arguments[i] for i, a in enumerate(arguments)}
    body = [o.operation for o in old.operations]
    with ir.InsertionPoint(block):
        for inner in body[:-1]:
            _build.clone(inner, places)
        linalg.yield_([places.get(body[-1].operands[i], body[-1].operands[i]) for i in kept])
    return new
