"""`scf.for` in a tile program: loop-carried tiles take the layout of their first use in the body, and the tiles that
products read come through rings (`consumer.py`, `copies/multistage.py`)."""

from __future__ import annotations

from mlirc.mlir import arith, ir, scf
from mlirc.passes.distribute.emit.emitter import Emitter, Unsupported
from mlirc.passes.distribute.emit.pending import wait_for_all
from mlirc.passes.distribute.lowerings.consumer import Consumer
from mlirc.passes.distribute.lowerings.turns import turns_of
from mlirc.passes.distribute.program.results import is_window
from mlirc.passes.distribute.program.scope import Lowerings, Scope
from mlirc.passes.distribute.tiles import cluster_reduction
from mlirc.passes.distribute.tiles.loop_argument import LoopArgument
from mlirc.passes.distribute.tiles.values import Fragment, Tile


def lower(outer: Scope, op) -> None:
    """Lowers one scf.for of a tile program."""
    if outer.program.chain is not None:
        return _one_step(outer, op)
    em = outer.em
    body = op.regions[0].blocks[0]
    lb, ub, step = (outer.scalar(v) for v in list(op.operands)[:3])
    everything = list(op.operands)[3:]
    kept = [i for i, init in enumerate(everything) if not is_window(init)]  # others are stored part by part
    inits = [everything[i] for i in kept]
    iv, carried = body.arguments[0], [body.arguments[1 + i] for i in kept]
    pipeline, turns = Consumer(outer, body, op), turns_of(outer, op.operation)
    em.team.groups.finish()
    cluster_reduction.meet(em)
    if turns is not None:
        turns.begin()
    outer_depth, outer_pipeline = em.pipeline_depth, em.pipeline
    em.pipeline, em.pipeline_depth = pipeline, 1
    draft = scf.ForOp(em.value(lb), em.value(ub), em.value(step), [])
    scope = outer.inside()
    for value, init in zip(list(body.arguments)[1:], everything, strict=True):
        if is_window(init):
            scope.views[value] = outer.view(init)
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
        with cluster_reduction.in_loop(em, index):
            for inner in ops[:-1]:
                scope.lower(inner)
            yielded = [scope.tile(ops[-1].operands[i]) for i in kept]
        for argument, tile in zip(arguments, yielded, strict=True):
            if argument.fragment is None:
                argument.take_form(tile)
        next_values = [v for a, t in zip(arguments, yielded, strict=True) for v in a.values_of(t)]
        left = groups.end_iteration({a: g for a, t in zip(arguments, yielded, strict=True) if (g := a.leaves(t))})
        scf.YieldOp(next_values)
        if turns is not None:
            turns.take(draft.body, op.operation)
    until, init_tiles = em.taken.take(op.operation, "until", None), [outer.tile(v) for v in inits]
    if _has_one_step(op.operation):
        results = _finish_once(em, draft, arguments, init_tiles)
    else:
        results = _finish(em, draft, arguments, init_tiles, until)
    for i, frag in zip(kept, results, strict=True):
        outer.tiles[op.results[i]] = frag
    if left:
        wait_for_all()
    if turns is not None:
        turns.end()
    em.pipeline_depth, em.pipeline = outer_depth, outer_pipeline
    outer.program.copies.end(em, op.operation)


def _one_step(outer: Scope, op) -> None:
    """Lowers a loop of whose steps each block takes one (`mlirc.chain`)."""
    em, chain, body = outer.em, outer.program.chain, op.regions[0].blocks[0]
    assert chain is not None
    lb, ub, step = (outer.scalar(v) for v in list(op.operands)[:3])
    if lb != 0 or not isinstance(ub, int) or not isinstance(step, int) or -(-ub // step) != chain.blocks:
        raise Unsupported(f"mlirc.chain = {chain.blocks}: the loop has as many steps", op.operation)
    scope = outer.inside()
    scope.scalars[body.arguments[0]] = em.mul(chain.step, step)
    for value, init, result in zip(list(body.arguments)[1:], list(op.operands)[3:], op.results, strict=True):
        if is_window(init):
            scope.views[value] = outer.views[result] = outer.view(init)
        elif list(result.uses):
            raise Unsupported("mlirc.chain: what the last step hands on is read", op.operation)
        else:
            scope.tiles[value] = outer.tile(init)
    for inner in list(body.operations)[:-1]:
        scope.lower(inner)


def _has_one_step(op: ir.Operation) -> bool:
    """Whether a loop has one step at most: it ends where that does, or earlier."""
    lower, upper, step = list(op.operands)[:3]
    if isinstance(upper.owner, ir.Block) or upper.owner.name != "arith.minsi":
        return False
    ends = [v.owner for v in upper.owner.operands if not isinstance(v.owner, ir.Block)]
    return any(end.name == "arith.addi" and list(end.operands) == [lower, step] for end in ends)


def _starts(draft: scf.ForOp, arguments: list[LoopArgument], inits: list[Tile]) -> list[ir.Value]:
    with ir.InsertionPoint(draft.operation):
        return [v for a, t in zip(arguments, inits, strict=True) for v in a.values_of(t)]


def _finish_once(em: Emitter, draft: scf.ForOp, arguments: list[LoopArgument], inits: list[Tile]) -> list[Fragment]:
    """Replaces the draft of a loop that has one step at most by a branch: what the step starts from is known in it."""
    starts = _starts(draft, arguments, inits)
    with ir.InsertionPoint(draft.operation):
        some = arith.CmpIOp(arith.CmpIPredicate.slt, draft.lowerBound, draft.upperBound).result
        branch = scf.IfOp(some, [v.type for v in starts], has_else=True)
    draft.induction_variable.replace_all_uses_with(draft.lowerBound)
    for old, new in zip([v for a in arguments for v in a.arguments], starts, strict=True):
        old.replace_all_uses_with(new)
    with ir.InsertionPoint(branch.then_block):
        anchor = arith.ConstantOp(em.index, 0).operation
    for op in list(draft.body.operations):
        op.operation.move_before(anchor)
    anchor.erase()
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp(starts)
    return _taken(draft, arguments, list(branch.results))


def _finish(
    em: Emitter, draft: scf.ForOp, arguments: list[LoopArgument], inits: list[Tile], until: int | None
) -> list[Fragment]:
    """Replaces the draft loop, whose body has grown block arguments, by one that carries them, and ends early where the
    argument number `until` is true."""
    starts = _starts(draft, arguments, inits)
    with ir.InsertionPoint(draft.operation):
        if until is None:
            final = scf.ForOp(draft.lowerBound, draft.upperBound, draft.step, starts)
            body, iv, carried, results = final.body, final.induction_variable, final.inner_iter_args, final.results
        else:
            first = sum(len(a.arguments) for a in arguments[:until])
            final, body = _while(draft, starts, first)
            iv, carried, results = body.arguments[0], list(body.arguments)[1:], list(final.results)[1:]
    # Block arguments were added in the order of first use: map them by owner.
    flat = [v for a in arguments for v in a.arguments]
    draft.induction_variable.replace_all_uses_with(iv)
    for old, new in zip(flat, carried, strict=True):
        old.replace_all_uses_with(new)
    with ir.InsertionPoint(body):
        anchor = arith.ConstantOp(em.index, 0).operation
    for op in list(draft.body.operations):
        op.operation.move_before(anchor)
    anchor.erase()
    if until is not None:
        last = list(body.operations)[-1].operation
        with ir.InsertionPoint(last):
            scf.YieldOp([arith.AddIOp(iv, draft.step).result, *last.operands])
        last.erase()
    if em.divisor(draft.induction_variable) > 1:
        em.known_multiple(iv, em.divisor(draft.induction_variable))
    return _taken(draft, arguments, list(results))


def _taken(draft: scf.ForOp, arguments: list[LoopArgument], results: list[ir.Value]) -> list[Fragment]:
    """What the loop carries out of its last step, in the place of the draft."""
    out, at = [], 0
    for a in arguments:
        n = len(a.arguments)
        out.append(a.result(results[at : at + n]))
        at += n
    draft.operation.erase()
    return out


def _while(draft: scf.ForOp, starts: list[ir.Value], flag: int) -> tuple[scf.WhileOp, ir.Block]:
    """A loop of the same iterations, but none behind one that makes carried value number `flag` true; its body."""
    inits = [draft.lowerBound, *starts]
    types = [v.type for v in inits]
    loop = scf.WhileOp(types, inits)
    before, after = (region.blocks.append(*types) for region in loop.regions)
    with ir.InsertionPoint(before):
        iv, *carried = before.arguments
        more = arith.CmpIOp(arith.CmpIPredicate.slt, iv, draft.upperBound).result
        true = arith.ConstantOp(carried[flag].type, 1).result
        scf.ConditionOp(arith.AndIOp(more, arith.XOrIOp(carried[flag], true).result).result, before.arguments)
    return loop, after


LOWERINGS: Lowerings = {"scf.for": lower}
