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
from mlirc.dialects.schedule.split_k import NUMBERS, PARTS, sizes_of
from mlirc.dialects.schedule.tile_to_blocks import mapping_of
from mlirc.ir.combiners import combining
from mlirc.ir.levels import INDEX_BELOW
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


def _take_steps_of_part(loop: ir.Operation, part: ir.Value, parts: int, interleave: bool) -> None:
    """Leaves a loop the steps of a part: with `interleave` every step number `part` + n * `parts`, else as many that
    follow each other as the others have, as evenly as they can be divided, whatever their number turns out to be."""
    lower, upper, step = list(loop.operands)[:3]
    index = _build.index
    width = number_of(step)
    if width is None:
        raise PayloadError("its step is no number", loop)
    if interleave:
        loop.operands[0] = arith.AddIOp(lower, arith.MulIOp(part, index(width)).result).result
        loop.operands[2] = index(width * parts)
        return
    last = arith.MaxSIOp(arith.SubIOp(upper, lower).result, index(0)).result
    steps = arith.DivUIOp(arith.AddIOp(last, index(width - 1)).result, index(width)).result

    def border(number: ir.Value) -> ir.Value:
        done = arith.DivUIOp(arith.MulIOp(number, steps).result, index(parts)).result
        return arith.AddIOp(lower, arith.MulIOp(done, step).result).result

    begin, end = border(part), border(arith.AddIOp(part, index(1)).result)
    loop.operands[0], loop.operands[1] = begin, arith.MinSIOp(end, upper).result


def _divide(loop: ir.Operation, parts: int, interleave: bool) -> scf.ForallOp:
    """Moves the loop into a loop over parts, whose results have a dimension of parts in front."""
    starts = list(loop.operands)[3:]
    sizes = [sizes_of(v) for v in starts]
    elements = [ir.RankedTensorType(v.type).element_type for v in starts]
    with ir.InsertionPoint(loop), loop.location:
        outs = [_build.empty([parts, *s], t) for s, t in zip(sizes, elements, strict=True)]
        forall = scf.ForallOp([0], [parts], [1], outs, mapping=mapping_of(1))
    part = list(forall.induction_variables)[0]
    with ir.InsertionPoint(forall.body), loop.location:
        _take_steps_of_part(loop, part, parts, interleave)
        terminator = scf.InParallelOp()
    loop.move_before(terminator.operation)
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


def _at_most(value: ir.Value) -> int | None:
    """A number that an index is no more than, where its definition shows one."""
    known = number_of(value)
    made_by = producer(value)
    if known is not None or made_by is None:
        return known
    if made_by.name == "arith.minsi":
        return min((n for v in made_by.operands if (n := _at_most(v)) is not None), default=None)
    if made_by.name == "affine.min":
        results = ir.AffineMapAttr(made_by.attributes["map"]).value.results
        return min((e.value for e in results if isinstance(e, ir.AffineConstantExpr)), default=None)
    return None


def _read_in_front(loop: ir.Operation) -> bool:
    """Of a loop that has one step at most: numbers that it reads from tensors where only its start decides it, its page
    among them, are read in front of it, while the loop's end is still on its way. What has no page has no step: so
    nothing moves the reads behind the test. Returns whether the loop is such a one."""
    end, step = _at_most(loop.operands[1]), number_of(loop.operands[2])
    if end is None or step is None or end > step:
        return False
    values = {loop.regions[0].blocks[0].arguments[0]: loop.operands[0]}
    wanted = _numbers_of_start(loop)
    lower, upper, width = list(loop.operands)[:3]
    with ir.InsertionPoint(loop), loop.location:
        made = [_build.clone(op, values) for op in wanted]
        for number, limit in [found for op in made if (found := _limited(op)) is not None]:
            inside = arith.CmpIOp(arith.CmpIPredicate.ult, number, _build.index(limit)).result
            upper = arith.SelectOp(inside, upper, lower).result
        loop.operands[1] = arith.MinSIOp(upper, arith.AddIOp(lower, width).result).result  # no second step
    for op in reversed(wanted):
        for result in op.results:
            result.replace_all_uses_with(values[result])
        op.erase()
    return True


def _numbers_of_start(loop: ir.Operation) -> list[ir.Operation]:
    """The ops of a loop that read a number of a tensor at a place that the induction variable decides, what they need
    of the loop, and the limits that the number is kept in; in order."""
    body = loop.regions[0].blocks[0]
    found: list[ir.Operation] = []
    made: set[ir.Value] = {body.arguments[0]}
    reads: set[ir.Value] = set()
    for op in (o.operation for o in body.operations):
        known = all(v in made or not _inside(v, loop) for v in op.operands)
        if known and (op.name.startswith(("affine.", "arith.")) or op.name == "tensor.extract"):
            found.append(op)
            made |= set(op.results)
            if op.name == "tensor.extract" or any(v in reads for v in op.operands):
                reads |= set(op.results)
    wanted: set[ir.Operation] = {op for op in found if any(r in reads for r in op.results)}
    for op in reversed(found):
        if any(u.owner.operation in wanted for r in op.results for u in r.uses):
            wanted.add(op)
    return [op for op in found if op in wanted]


def _limited(op: ir.Operation) -> tuple[ir.Value, int] | None:
    """(number, limit) of an op that keeps a number in [0, limit), from below, before the one that does from above."""
    if op.name != "arith.maxsi" or INDEX_BELOW not in op.attributes:
        return None
    return op.operands[0], ir.IntegerAttr(op.attributes[INDEX_BELOW]).value


def _inside(value: ir.Value, loop: ir.Operation) -> bool:
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    return bool(block == loop.regions[0].blocks[0])


def _read_last(loop: ir.Operation, partial: ir.Operation, once: bool) -> None:
    """Tiles that only the loop reads are read behind the numbers that say where its first step lies: all are on their
    way at once then, and what waits for a tile does not hold the numbers up. In a loop of one step at most they are
    copied with its keys."""
    place = loop.regions[0].blocks[0].operations[0] if once else loop
    in_front = [o.operation for o in partial.block.operations]
    for op in in_front[: in_front.index(partial)]:
        users = [u.owner.operation for r in op.results for u in r.uses]
        if op.name == "tensor.extract_slice" and users and all(_stands_in(u, loop) for u in users):
            op.move_before(place)


def _stands_in(op: ir.Operation, loop: ir.Operation) -> bool:
    at = op
    while at.name != "func.func" and at != loop:
        at = at.parent.operation
    return at == loop


def _check(loops, parts: int, through: str, numbers: int) -> ir.Operation:
    """The loop to divide; raises PayloadError for what cannot be."""
    if len(loops) != 1:
        raise PayloadError(f"split_softmax needs one loop, the handle has {len(loops)}", loops[0] if loops else None)
    loop = loops[0].operation
    if through not in ("memory", "cluster", "block"):
        raise PayloadError(f'through "{through}": choose "memory", "cluster" or "block"', loop)
    if parts < 2:
        raise PayloadError(f"parts {parts}: divide a loop into 2 or more", loop)
    if through == "cluster" and parts not in PARTS:
        listed = f"{', '.join(map(str, PARTS[:-1]))} or {PARTS[-1]}"
        raise PayloadError(f"parts {parts}: a cluster has {listed} blocks", loop)
    if numbers < 1:
        raise PayloadError(f"numbers {numbers}: a block combines 1 or more", loop)
    split = loop.parent.name == "scf.forall" and loop.parent.operation.parent.name == "scf.forall"
    again = through == "block" and split and "mlirc.teams" not in loop.parent.attributes
    if loop.parent.name != "scf.forall" or split and not again:
        raise PayloadError("the loop stands in no block program, or is split already", loop)
    return loop


@transform_op(
    "split_softmax",
    operands=("loop",),
    results=("partial", "finish"),
    attributes={"parts": int, "through": str, "interleave": bool, "numbers": int},
    takes="scf.for",
    defaults={"through": "memory", "interleave": False, "numbers": NUMBERS},
)
def split_softmax(rewriter, loops, parts, through, interleave, numbers):
    """Divides a loop of `online_softmax` into `parts`. The loop stays the same op, inside of the first of the two ops
    that are returned; the second one combines maxima and sums, and computes what followed the loop.

    `through`: "memory": both become launches of their own, in the place of the block program, whose handle is dead;
    maxima and sums are a workspace in global memory, and a block of the second launch combines about so many `numbers`
    of all parts. "cluster": both stay in the block program, and parts (2, 4 or 8) are the blocks of a cluster, which
    read the others' maxima and sums from their shared memory. "block": parts are teams of the kernel's warps in one
    block, and there is no second op; what a block has of a loop that is divided already can be divided so again.

    A part takes steps that follow each other, or, with `interleave`, part p every step number p + n * parts: where that
    begins does not depend on the loop's end, and numbers that only the step of a loop of one decides, a page among
    them, are read in front of it. The number of steps need not be known, nor be one for each part: a part without steps
    weighs nothing.
    """
    loop = _check(loops, parts, through, numbers)
    state, starts = read_state(loop), list(loop.operands)[3:]
    uses = [[(u.owner.operation, u.operand_number) for u in r.uses] for r in loop.results]
    partial = _divide(loop, parts, interleave)
    block = list(partial.operation.block.operations)
    behind = block[block.index(partial) + 1]
    with ir.InsertionPoint(behind), loop.location:
        whole = _combine(partial, starts, state, parts)
    for value, readers in zip(whole, uses, strict=True):
        for owner, number in readers:
            owner.operands[number] = value
    _read_last(loop, partial.operation, _read_in_front(loop))
    if through == "block":
        partial.operation.attributes["mlirc.teams"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), parts)
        return [[partial.operation], []]
    if through == "cluster":
        return [[partial.operation], [share(partial.operation, parts, rewriter.erase_op)]]
    finish = share(partial.operation, parts, rewriter.erase_op, numbers=numbers)
    return [[op] for op in launches(partial.operation, finish, rewriter.erase_op)]
