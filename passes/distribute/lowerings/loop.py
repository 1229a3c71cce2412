"""`scf.for` in a tile program: loop-carried tiles take the layout of their first use in the body, and the tiles that
products read come through rings (`consumer.py`, `copies/multistage.py`)."""

from __future__ import annotations

from mlirc.mlir import arith, ir, scf
from mlirc.passes.distribute.emit.emitter import Emitter, Unsupported
from mlirc.passes.distribute.emit.pending import wait_for_all
from mlirc.passes.distribute.lowerings.consumer import Consumer
from mlirc.passes.distribute.lowerings.turns import turns_of
from mlirc.passes.distribute.program.scope import Lowerings, Scope
from mlirc.passes.distribute.tiles.loop_argument import LoopArgument
from mlirc.passes.distribute.tiles.values import Fragment, Tile


def lower(outer: Scope, op) -> None:
    """Lowers one scf.for of a tile program."""
    em = outer.em
    body = op.regions[0].blocks[0]
    lb, ub, step = (outer.scalar(v) for v in list(op.operands)[:3])
    inits = list(op.operands)[3:]
    iv, carried = body.arguments[0], list(body.arguments)[1:]
    pipeline, turns = Consumer(outer, body, op), turns_of(outer, op.operation)
    em.team.groups.finish()
    if turns is not None:
        turns.begin()
    outer_depth, outer_pipeline = em.pipeline_depth, em.pipeline
    em.pipeline, em.pipeline_depth = pipeline, 1
    draft = scf.ForOp(em.value(lb), em.value(ub), em.value(step), [])
    scope = outer.inside()
    arguments: list[LoopArgument] = []
    scalar_arguments = [v for v in carried if not isinstance(v.type, ir.RankedTensorType)]
    if scalar_arguments:
        raise Unsupported("a loop that carries a scalar; carry a tensor of rank 0")
    for value, init in zip(carried, inits, strict=True):
        tile = outer.tile(init)
        argument = LoopArgument(em, tile.element, tile.shape, tile.sizes, draft.body, tile)
        arguments.append(argument)
        scope.tiles[value] = argument
    with em.team.run() as groups, ir.InsertionPoint(draft.body):
        index = draft.induction_variable
        if isinstance(step, int):
            em.known_multiple(index, min(em.divisor(lb), em.divisor(step)))
        scope.scalars[iv] = index
        pipeline.begin_iteration(index)
        ops = list(body.operations)
        for inner in ops[:-1]:
            scope.lower(inner)
        yielded = [scope.tile(v) for v in ops[-1].operands]
        for argument, tile in zip(arguments, yielded, strict=True):
            if argument.fragment is None:
                argument.take_form(tile)
        next_values = [v for a, t in zip(arguments, yielded, strict=True) for v in a.values_of(t)]
        left = groups.end_iteration({a: g for a, t in zip(arguments, yielded, strict=True) if (g := a.leaves(t))})
        scf.YieldOp(next_values)
        if turns is not None:
            turns.take(draft.body, op.operation)
    results = _finish(em, draft, arguments, [outer.tile(v) for v in inits])
    for value, frag in zip(op.results, results, strict=True):
        outer.tiles[value] = frag
    if left:
        wait_for_all()
    if turns is not None:
        turns.end()
    em.pipeline_depth, em.pipeline = outer_depth, outer_pipeline
    outer.program.copies.end(em, op.operation)


def _finish(em: Emitter, draft: scf.ForOp, arguments: list[LoopArgument], inits: list[Tile]) -> list[Fragment]:
    """Replaces the draft loop, whose body has grown block arguments, by one that carries them."""
    with ir.InsertionPoint(draft.operation):
        starts = [v for a, t in zip(arguments, inits, strict=True) for v in a.values_of(t)]
        final = scf.ForOp(draft.lowerBound, draft.upperBound, draft.step, starts)
    # Block arguments were added in the order of first use: map them by owner.
    flat = [v for a in arguments for v in a.arguments]
    draft.induction_variable.replace_all_uses_with(final.induction_variable)
    for old, new in zip(flat, final.inner_iter_args, strict=True):
        old.replace_all_uses_with(new)
    with ir.InsertionPoint(final.body):
        anchor = arith.ConstantOp(em.index, 0).operation
    for op in list(draft.body.operations):
        op.operation.move_before(anchor)
    anchor.erase()
    if em.divisor(draft.induction_variable) > 1:
        em.known_multiple(final.induction_variable, em.divisor(draft.induction_variable))
    out, at = [], 0
    results = list(final.results)
    for a in arguments:
        n = len(a.arguments)
        out.append(a.result(results[at : at + n]))
        at += n
    draft.operation.erase()
    return out


LOWERINGS: Lowerings = {"scf.for": lower}
