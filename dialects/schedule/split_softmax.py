"""`schedule.split_softmax`: the loop of an online softmax is divided among parts that work at once, each with a maximum
and sums of its own, which are combined then ("flash decoding": Dao et al., 2023).

    parts  = scf.forall (p) in (P) { a part of the loop's steps; its maximum and its sums into [p] of [P, ...] }
    top    = max_p parts.top
    factor = what the loop multiplies its sums by where the maximum goes from parts.top to top
    sum    = sum_p parts.sum * factor
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import body_of, producer
from mlirc.dialects.schedule._launches import launches
from mlirc.dialects.schedule._limits import number_of
from mlirc.dialects.schedule._share import share
from mlirc.dialects.schedule.split_k import NUMBERS, sizes_of
from mlirc.dialects.schedule.tile_to_blocks import mapping_of
from mlirc.ir.combiners import combining
from mlirc.mlir import arith, ir, linalg, scf


@dataclass
class _State:
    """What a loop of `online_softmax` carries: which of its values is the maximum, the op that computes the factor of
    the sums, and along which dimensions of each sum the maximum runs."""

    top: int
    factor: ir.Operation
    rows: dict[int, list[int]]


def _positions(map_: ir.Attribute) -> list[int]:
    return [e.position for e in map_.value.results]


def read_state(loop: ir.Operation) -> _State:
    """Reads a loop; raises PayloadError for one that is no online softmax."""
    body = loop.regions[0].blocks[0]
    carried = list(body.arguments)[1:]
    yielded = list(body.operations[len(body.operations) - 1].operands)
    generics = [o.operation for o in body.operations if o.operation.name == "linalg.generic"]
    for top, (old, new) in enumerate(zip(carried, yielded, strict=True)):
        made_by = producer(new)
        if made_by is None or made_by.name != "linalg.generic" or list(made_by.operands)[-1] != old:
            continue
        inner = body_of(made_by)
        found = combining(list(inner.operations)[-1].operation.operands[0], list(inner.arguments)[-1])
        factor = next((g for g in generics if list(g.operands)[:2] == [old, new]), None)
        if found is None or found.name != "arith.maximumf" or factor is None:
            continue
        rows = {}
        for number, value in enumerate(carried):
            scaled = [g for g in generics if list(g.operands)[:2] == [value, factor.results[0]]]
            if number != top and len(scaled) == 1:
                rows[number] = _positions(list(scaled[0].attributes["indexing_maps"])[1])
        if len(rows) == len(carried) - 1:
            return _State(top, factor, rows)
    raise PayloadError("the loop carries no running maximum with sums beside it: online_softmax makes one", loop)


def _bounds_of_part(loop: ir.Operation, part: ir.Value, parts: int) -> tuple[ir.Value, ir.Value]:
    """Where a part of the loop begins and ends: its steps are divided as evenly as they can be, whatever their number
    turns out to be."""
    lower, upper, step = list(loop.operands)[:3]
    index = _build.index
    width = number_of(step)
    if width is None:
        raise PayloadError("its step is no number", loop)
    last = arith.MaxSIOp(arith.SubIOp(upper, lower).result, index(0)).result
    steps = arith.DivUIOp(arith.AddIOp(last, index(width - 1)).result, index(width)).result

    def border(number: ir.Value) -> ir.Value:
        done = arith.DivUIOp(arith.MulIOp(number, steps).result, index(parts)).result
        return arith.AddIOp(lower, arith.MulIOp(done, step).result).result

    begin, end = border(part), border(arith.AddIOp(part, index(1)).result)
    return begin, arith.MinSIOp(end, upper).result


def _divide(loop: ir.Operation, parts: int) -> scf.ForallOp:
    """Moves the loop into a loop over parts, whose results have a dimension of parts in front."""
    starts = list(loop.operands)[3:]
    sizes = [sizes_of(v) for v in starts]
    elements = [ir.RankedTensorType(v.type).element_type for v in starts]
    with ir.InsertionPoint(loop), loop.location:
        outs = [_build.empty([parts, *s], t) for s, t in zip(sizes, elements, strict=True)]
        forall = scf.ForallOp([0], [parts], [1], outs, mapping=mapping_of(1))
    part = list(forall.induction_variables)[0]
    with ir.InsertionPoint(forall.body), loop.location:
        begin, end = _bounds_of_part(loop, part, parts)
        terminator = scf.InParallelOp()
    loop.move_before(terminator.operation)
    loop.operands[0], loop.operands[1] = begin, end
    with ir.InsertionPoint(terminator.region.blocks[0]), loop.location:
        for s, value, out in zip(sizes, loop.results, forall.inner_iter_args, strict=True):
            _build.parallel_insert_slice(value, out, [part, *[0] * len(s)], [1, *s])
    return forall


def _generic(inputs: list, out: ir.Value, maps: list, parallel: list[bool], body: Callable) -> ir.Value:
    op = _build.generic(inputs, [out], maps, parallel, ir.Location.current)
    block = op.regions[0].blocks.append(*[ir.RankedTensorType(v.type).element_type for v in (*inputs, out)])
    with ir.InsertionPoint(block):
        linalg.YieldOp([body(*block.arguments)])
    return op.results[0]


def _copy_of_body(op: ir.Operation) -> Callable[..., ir.Value]:
    """What an elementwise op computes, of other numbers."""

    def build(*arguments: ir.Value) -> ir.Value:
        values = dict(zip(body_of(op).arguments, arguments, strict=True))
        *ops, end = [o.operation for o in body_of(op).operations]
        for inner in ops:
            _build.clone(inner, values)
        return values.get(end.operands[0], end.operands[0])

    return build


def _over_parts(parts: ir.Value, start: ir.Value, make: type) -> ir.Value:
    """A reduction over the first dimension, in order."""
    rank = ir.RankedTensorType(start.type).rank
    rest = list(range(1, rank + 1))
    maps, parallel = [[0, *rest], rest], [False, *[True] * rank]
    return _generic([parts], start, maps, parallel, lambda x, total: make(total, x).result)


def _combine(partial: scf.ForallOp, starts: list[ir.Value], state: _State, parts: int) -> list[ir.Value]:
    """What the loop would have carried out of all of its steps, of what its parts did."""

    def like(number: int) -> ir.Value:
        element = ir.RankedTensorType(starts[number].type).element_type
        return _build.empty([parts, *sizes_of(starts[number])], element)

    top = _over_parts(partial.results[state.top], starts[state.top], arith.MaximumFOp)
    rank = ir.RankedTensorType(top.type).rank
    rows = list(range(1, rank + 1))
    inputs, maps = [partial.results[state.top], top], [[0, *rows], rows, [0, *rows]]
    factor = _generic(inputs, like(state.top), maps, [True] * (rank + 1), _copy_of_body(state.factor))
    found = []
    for number, start in enumerate(starts):
        if number == state.top:
            found.append(top)
            continue
        every = list(range(ir.RankedTensorType(start.type).rank + 1))
        along = [every, [0, *(d + 1 for d in state.rows[number])], every]
        inputs = [partial.results[number], factor]
        scaled = _generic(inputs, like(number), along, [True] * len(every), lambda x, f, _: arith.MulFOp(x, f).result)
        found.append(_over_parts(scaled, start, arith.AddFOp))
    return found


@transform_op(
    "split_softmax",
    operands=("loop",),
    results=("partial", "finish"),
    attributes={"parts": int, "numbers": int},
    takes="scf.for",
    defaults={"numbers": NUMBERS},
)
def split_softmax(rewriter, loops, parts, numbers):
    """Divides a loop of `online_softmax` into `parts`, which become a launch of their own, in the place of the block
    program, whose handle is dead; their maxima and sums are a workspace in global memory. The second launch, that is
    returned, too, combines them, about so many `numbers` of all parts in a block, and computes what followed the loop.
    The loop stays the same op, in the first one.

    The number of steps need not be known, nor be one for each part: a part without steps weighs nothing.
    """
    if len(loops) != 1:
        raise PayloadError(f"split_softmax needs one loop, the handle has {len(loops)}", loops[0] if loops else None)
    loop = loops[0].operation
    if parts < 2:
        raise PayloadError(f"parts {parts}: divide a loop into 2 or more", loop)
    if numbers < 1:
        raise PayloadError(f"numbers {numbers}: a block combines 1 or more", loop)
    if loop.parent.name != "scf.forall" or loop.parent.operation.parent.name == "scf.forall":
        raise PayloadError("the loop stands in no block program, or is split already", loop)
    state, starts = read_state(loop), list(loop.operands)[3:]
    uses = [[(u.owner.operation, u.operand_number) for u in r.uses] for r in loop.results]
    partial = _divide(loop, parts)
    block = list(partial.operation.block.operations)
    behind = block[block.index(partial) + 1]
    with ir.InsertionPoint(behind), loop.location:
        whole = _combine(partial, starts, state, parts)
    for value, readers in zip(whole, uses, strict=True):
        for owner, number in readers:
            owner.operands[number] = value
    finish = share(partial.operation, parts, rewriter.erase_op, numbers=numbers)
    return [[op] for op in launches(partial.operation, finish, rewriter.erase_op)]
