"""`scf.for` in a tile program: loop-carried tiles take the layout of their first use in the body, and the tiles that
products read are fetched ahead: by the threads that compute (`multistage.py`), or by a producer warp (`ring.py`)."""

from __future__ import annotations

from mlirc.mlir import arith, ir, scf
from mlirc.passes.distribute import wgmma
from mlirc.passes.distribute.consumer import Consumer
from mlirc.passes.distribute.emitter import Emitter, Unsupported
from mlirc.passes.distribute.layout import row_layout
from mlirc.passes.distribute.loop_argument import LoopArgument
from mlirc.passes.distribute.multistage import Multistage
from mlirc.passes.distribute.values import Fragment, Tile


def lower(outer, op) -> None:
    """Lowers one scf.for of a tile program."""
    em: Emitter = outer.em
    body = op.regions[0].blocks[0]
    lb, ub, step = (outer.scalar(v) for v in list(op.operands)[:3])
    inits = list(op.operands)[3:]
    iv, carried = body.arguments[0], list(body.arguments)[1:]
    filled = em.ring is not None and op in em.ring.loops
    pipeline = Consumer(outer, op, em.ring) if em.ring is not None and filled else Multistage(outer, op)
    pipeline.begin_loop()
    outer_depth, outer_deferred, outer_pipeline = em.pipeline_depth, em.deferred_products, em.pipeline
    em.pipeline = pipeline
    em.pipeline_depth, em.deferred_products = (pipeline.ahead if pipeline.warpgroups else None), 0
    draft = scf.ForOp(em.value(lb), em.value(ub), em.value(step), [])
    scope = outer.inside()
    arguments: list[LoopArgument] = []
    scalar_arguments = [v for v in carried if not isinstance(v.type, ir.RankedTensorType)]
    if scalar_arguments:
        raise Unsupported("a loop that carries a scalar; carry a tensor of rank 0")
    for value, init in zip(carried, inits, strict=True):
        tile = outer.tile(init)
        argument = LoopArgument(em, tile.element, tile.shape, tile.sizes, draft.body)
        arguments.append(argument)
        scope.tiles[value] = argument
    with ir.InsertionPoint(draft.body):
        index = draft.induction_variable
        if isinstance(step, int):
            em.known_multiple(index, min(em.divisor(lb), em.divisor(step)))
        scope.scalars[iv] = index
        pipeline.begin_iteration(index)
        ops = list(body.operations)
        for inner in ops[:-1]:
            if inner.operation.name == "tensor.extract_slice" and pipeline.bind(scope, inner.operation):
                continue
            scope.lower(inner)
        yielded = [scope.tile(v) for v in ops[-1].operands]
        for argument, tile in zip(arguments, yielded, strict=True):
            if argument.fragment is None:
                argument.get(tile.natural() or row_layout(tuple(tile.shape), em.warps, 1))
        if em.deferred_products:
            wgmma.wait(em.deferred_products)  # the previous iteration's are done
        pipeline.end_iteration(index, em.deferred_products > 0)
        next_values = [v for a, t in zip(arguments, yielded, strict=True) for v in a.values_of(t)]
        scf.YieldOp(next_values)
    results = _finish(em, draft, arguments, [outer.tile(v) for v in inits])
    for value, frag in zip(op.results, results, strict=True):
        outer.tiles[value] = frag
    deferred = em.deferred_products > 0
    if deferred:
        wgmma.wait(0)
    em.pipeline_depth, em.deferred_products, em.pipeline = outer_depth, outer_deferred, outer_pipeline
    pipeline.end_loop(deferred)


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
