"""`schedule.stream_k`: a product's blocks share its steps of K evenly, across the borders of tiles.

    sums, o = scf.forall (turn, block) in (turns, blocks) { steps lower to upper of a tile, from zero;
                  what is a tile that is computed whole, with what follows: into o
                  what is a segment: its sums into [tile, part] of [divided tiles, parts, tile ...] }
    o       = scf.forall (tile, share) { the sum of a divided tile's parts, in their order, and what follows: into o }

The numbers say which tile and which steps (`_stream.py`). A slice that an item does not have is one of no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import producer
from mlirc.dialects.schedule._launches import moved_body, terminator_of
from mlirc.dialects.schedule._stream import Segment, Stream, Tiles
from mlirc.dialects.schedule.split_k import NUMBERS_OF_WARP, Loop, divide, read_loop, sizes_of, zero_tile
from mlirc.dialects.schedule.tile_reduction import mixed
from mlirc.dialects.schedule.tile_to_blocks import mapping_of
from mlirc.ir.tensors import kept_dims, shape_of
from mlirc.mlir import affine, arith, ir, linalg, nested, scf

Values = dict[ir.Value, ir.Value]


@transform_op(
    "stream_k",
    operands=("loop",),
    results=("partial", "finish"),
    attributes={"blocks": int, "waves": int, "group": int, "cluster": int, "numbers": int},
    takes="scf.for",
    defaults={"waves": 1, "group": 1, "cluster": 1, "numbers": 8 * NUMBERS_OF_WARP},
)
def stream_k(rewriter, loops, blocks, waves, group, cluster, numbers):
    """Divides the work of a product, whose loop is one of `tile_reduction`, among `blocks` blocks by steps of K: those
    of the last `waves` waves of tiles, of which a block each computes one (1: what is left behind the last full wave).
    What is in front of them are whole tiles.

    Two launches take the place of the block program, whose handle is dead. In the first one, in which the loop stays
    the same op, a block computes as many items as there are turns: its segments, then its whole tiles; `persist` it on
    so many blocks. Sums of segments go into a workspace in global memory, which the second one adds, in their order: a
    block of it about so many `numbers` of each. `last_block` makes both one launch.

    `group`: tiles follow each other as `mlirc.group_rows` says. `cluster`: so many tiles that follow each other are
    computed side by side by as many blocks (`blocks` is a multiple), over the same steps.
    """
    if len(loops) != 1:
        raise PayloadError(f"stream_k needs one loop, the handle has {len(loops)}", loops[0] if loops else None)
    op = loops[0].operation
    for name, value in (
        ("blocks", blocks),
        ("waves", waves),
        ("group", group),
        ("cluster", cluster),
        ("numbers", numbers),
    ):
        if value < 1:
            raise PayloadError(f"{name} {value}: give 1 or more", op)
    if blocks % cluster:
        raise PayloadError(f"blocks {blocks}: a whole number of clusters of {cluster}", op)
    loop = read_loop(op, 1)
    whole = op.parent.operation
    tiles = Tiles(list(ir.DenseI64ArrayAttr(whole.attributes["staticUpperBound"])), group, cluster)
    tiles.check(op)
    count = prod(tiles.units)
    stream = Stream(count, loop.steps, blocks // cluster, waves)
    if stream.blocks == 1:
        raise PayloadError(f"blocks {blocks}: there is nobody to share the steps of K with", op)
    if stream.most_parts < 2:
        what = f"{stream.divided * cluster} of {count * cluster} tiles, of {loop.steps} steps each, are whole ones"
        hint = "leave stream_k out, or give others, or more waves"
        raise PayloadError(f"blocks {blocks}: {what} for each block: {hint}", op)
    finish = _second_of(whole, op, stream.most_parts, numbers, rewriter.erase_op)
    partial, spaces = _first(whole, loop, tiles, stream)
    [unread] = {v.owner.operation for v in _workspaces(finish)}
    second = _second(finish, whole, partial, spaces, tiles, stream)
    for old, new in zip(whole.results, second.results, strict=True):
        old.replace_all_uses_with(new)
    for old in (finish, unread, whole):
        rewriter.erase_op(old)
    return [[partial], [second]]


def _forall(counts: Sequence[int], outs: Sequence[ir.Value]) -> scf.ForallOp:
    rank = len(counts)
    return scf.ForallOp([0] * rank, list(counts), [1] * rank, list(outs), mapping=mapping_of(rank))


def _inserts(forall: ir.Operation) -> list[ir.Operation]:
    return [o.operation for o in terminator_of(forall).regions[0].blocks[0].operations]


# -- the launch of segments and whole tiles


def _first(whole: ir.Operation, loop: Loop, tiles: Tiles, stream: Stream) -> tuple[ir.Operation, list[ir.Value]]:
    """The launch that computes segments and whole tiles; the results of it that are workspaces."""
    inserts = _inserts(whole)
    rows = [sizes_of(v) for v in loop.starts]
    with ir.InsertionPoint(whole), loop.op.location:
        outs = [_build.empty(list(shape_of(v)), ir.RankedTensorType(v.type).element_type) for v in whole.results]
        outs = outs if stream.whole else []
        kept = len(outs)
        for sizes, start in zip(rows, loop.starts, strict=True):
            shape = [stream.divided * tiles.cluster, stream.most_parts, *map(_build.bound, sizes)]
            outs.append(_build.empty(shape, ir.RankedTensorType(start.type).element_type))
        ranks = [tiles.cluster] if tiles.cluster > 1 else []
        forall = _forall([stream.turns, stream.blocks, *ranks], outs)
    turn, block, *more = list(forall.induction_variables)
    rank = more[0] if more else None
    with ir.InsertionPoint(forall.body), loop.op.location:
        segment = stream.segment(turn, block)
        indices = tiles.indices(segment.tile, rank)
        terminator = scf.InParallelOp()
    values = dict(zip(list(whole.regions[0].blocks[0].arguments), indices, strict=False))
    moved_body(whole.regions[0].blocks[0], terminator.operation, values)
    _bound(loop, segment)
    results = list(loop.op.results)
    _start_later(loop)
    with ir.InsertionPoint(terminator), loop.op.location:
        row = _build.added(_times(segment.divided, tiles.cluster), rank if rank is not None else 0)
        gates = [_gated(v, sizes, segment.some) for v, sizes in zip(results, rows, strict=True)]
    with ir.InsertionPoint(terminator.region.blocks[0]), loop.op.location:
        for (value, sizes), out in zip(gates, list(forall.inner_iter_args)[kept:], strict=True):
            _build.parallel_insert_slice(value, out, [row, segment.part, *[0] * len(sizes)], [1, 1, *sizes])
    for insert, out in zip(inserts if stream.whole else [], list(forall.inner_iter_args), strict=False):
        _insert_whole(insert, out, segment, values, terminator, loop.op.location)
    return forall.operation, list(forall.results)[kept:]


def _times(value: ir.Value, factor: int) -> ir.Value:
    return value if factor == 1 else _build.scaled(value, factor)


def _bound(loop: Loop, segment: Segment) -> None:
    """Makes the loop one over a segment's steps."""
    with ir.InsertionPoint(loop.op), loop.op.location:
        d = ir.AffineExpr.get_dim(0)
        loop.op.operands[0] = _build.scaled(segment.lower, loop.step)
        if loop.last % loop.step:
            until = [d * loop.step, ir.AffineExpr.get_constant(loop.last)]
            loop.op.operands[1] = affine.AffineMinOp(ir.AffineMap.get(1, 0, until), [segment.upper]).result
        else:
            loop.op.operands[1] = _build.scaled(segment.upper, loop.step)


def _start_later(loop: Loop) -> None:
    """The loop begins from zero; what it began with is added to the sums where these are used."""
    for i, (start, addition) in enumerate(zip(loop.starts, loop.additions, strict=True)):
        if _is_zero(start):
            continue
        result = loop.op.results[i]
        readers = [(u.owner.operation, u.operand_number) for u in result.uses]
        with ir.InsertionPoint(loop.op), loop.op.location:
            loop.op.operands[3 + i] = zero_tile(sizes_of(start), ir.RankedTensorType(start.type).element_type)
        with ir.InsertionPoint.after(loop.op), loop.op.location:
            total = _added(result, start, addition)
        for owner, number in readers:
            owner.operands[number] = total


def _is_zero(start: ir.Value) -> bool:
    made_by = producer(start)
    if made_by is None or made_by.name != "linalg.fill":
        return False
    constant = producer(made_by.operands[0])
    return constant is not None and constant.name == "arith.constant" and not constant.attributes["value"].value


def _added(sums: ir.Value, start: ir.Value, addition: str) -> ir.Value:
    rank, t = len(shape_of(start)), ir.RankedTensorType(start.type).element_type
    out = _build.empty(sizes_of(start), t)
    dims = list(range(rank))
    op = _build.generic([start, sums], [out], [dims] * 3, [True] * rank, ir.Location.current)
    with ir.InsertionPoint(op.regions[0].blocks.append(t, t, t)) as at:
        a, b, _ = at.block.arguments
        linalg.yield_([ir.Operation.create(addition, results=[t], operands=[a, b]).results[0]])
    return op.results[0]


def _gated(value: ir.Value, sizes: Sequence[Size], some: ir.Value) -> tuple[ir.Value, list[Size]]:
    """A tile, or one of no rows; and its sizes."""
    first = sizes[0] if isinstance(sizes[0], ir.Value) else _build.index(sizes[0])
    rows = arith.SelectOp(some, first, _build.index(0)).result
    new = [rows, *sizes[1:]]
    return _build.extract_slice(value, [0] * len(new), new), new


def _insert_whole(insert, out, segment: Segment, values: Values, terminator, location) -> None:
    """Inserts what is computed behind the loop where the item is a whole tile."""
    assert segment.whole is not None
    source = values.get(insert.operands[0], insert.operands[0])
    offsets, sizes = mixed(insert, "static_offsets", 2), mixed(insert, "static_sizes", 3)
    offsets, sizes = ([values.get(v, v) if isinstance(v, ir.Value) else v for v in vs] for vs in (offsets, sizes))
    kept = kept_dims(list(insert.attributes["static_sizes"]), shape_of(insert.operands[0]))
    with ir.InsertionPoint(terminator), location:
        tile, gated = _gated(source, [sizes[i] for i in kept], segment.whole)
    for i, size in zip(kept, gated, strict=True):
        sizes[i] = size
    with ir.InsertionPoint(terminator.region.blocks[0]), location:
        _build.parallel_insert_slice(tile, out, offsets, sizes)


# -- the launch that adds parts


def _second_of(
    whole: ir.Operation, loop: ir.Operation, parts: int, numbers: int, erase: Callable[[ir.Operation], None]
) -> ir.Operation:
    """A launch that adds `parts` parts of every tile and computes what follows, of a copy of the block program; it
    reads them from one that has no other use. A block of it adds about so many `numbers` of each part, of a power of
    two of rows."""
    with ir.InsertionPoint(whole):
        copy = whole.clone().operation
    bodies = [list(f.regions[0].blocks[0].operations) for f in (whole, copy)]
    at = [o.operation for o in bodies[0]].index(loop)
    extents = [_build.bound(n) for n in sizes_of(list(loop.operands)[3])]
    rows = next((n for n in extents if n > 1), 1)
    row = max(prod(extents) // rows, 1)
    width = min(1 << max(numbers // row, 1).bit_length() - 1, rows)
    _, [finish] = divide(bodies[1][at].operation, parts, "memory", width * row * parts, erase)
    return finish


def _second(
    found: ir.Operation, whole: ir.Operation, partial: ir.Operation, spaces: Sequence[ir.Value], tiles: Tiles,
    stream: Stream,
) -> ir.Operation:  # fmt: skip
    """The same for the tiles that are divided, with as many parts as each has; the results of `partial` are what it
    goes on writing, where that computes tiles, too."""
    body = found.regions[0].blocks[0]
    rank = len(tiles.counts)
    (shares,) = list(ir.DenseI64ArrayAttr(found.attributes["staticUpperBound"]))[rank:]
    outs = (
        list(partial.results)[: len(found.results)]
        if stream.whole
        else [_copied(v, whole) for v in list(found.operands)[-len(found.results) :]]
    )
    unused = _workspaces(found)
    with ir.InsertionPoint(whole), found.location:
        forall = _forall([stream.divided * tiles.cluster, shares], outs)
    number, share = list(forall.induction_variables)
    d = ir.AffineExpr.get_dim(0)
    with ir.InsertionPoint(forall.body), found.location:
        unit, in_cluster = number, None
        if tiles.cluster > 1:
            unit = _build.applied(ir.AffineExpr.get_floor_div(d, tiles.cluster), number)
            in_cluster = _build.applied(d % tiles.cluster, number)
        count = stream.parts_of(unit)
        indices = tiles.indices(_build.applied(d + stream.first, unit), in_cluster)
        terminator = scf.InParallelOp()
    values = dict(zip(list(body.arguments), [*indices, share], strict=False))
    old_inserts = _inserts(found)
    moved_body(body, terminator.operation, values)
    for old, space in zip(unused, spaces, strict=True):
        for use in [u.owner.operation for u in old.uses]:
            _read_parts(use, space, (number, count), rank)
    with ir.InsertionPoint(terminator.region.blocks[0]), found.location:
        for insert, out in zip(old_inserts, forall.inner_iter_args, strict=True):
            moved = [
                [values.get(v, v) if isinstance(v, ir.Value) else v for v in mixed(insert, *of)]
                for of in (("static_offsets", 2), ("static_sizes", 3))
            ]
            _build.parallel_insert_slice(insert.operands[0], out, *moved)
    return forall.operation


def _copied(empty: ir.Value, before: ir.Operation) -> ir.Value:
    with ir.InsertionPoint(before), before.location:
        return _build.empty(list(shape_of(empty)), ir.RankedTensorType(empty.type).element_type)


def _workspaces(found: ir.Operation) -> list[ir.Value]:
    """What a launch reads of the one in front of it, in order."""
    operands = [v for op in nested(found) for v in op.operands if op.name == "tensor.extract_slice"]
    read = {v for v in operands if not isinstance(v.owner, ir.Block) and v.owner.name == "scf.forall"}
    [made_by] = {v.owner.operation for v in read if v.owner.operation.block == found.block} or [None]
    return list(made_by.results) if made_by is not None else []


def _read_parts(slice_op: ir.Operation, space: ir.Value, tile: tuple[ir.Value, ir.Value], rank: int) -> None:
    """Replaces the sum of a slice of all parts by one, in a loop, of those that a tile has: (number, count)."""
    number, count = tile
    offsets, sizes = mixed(slice_op, "static_offsets", 1)[rank + 1 :], mixed(slice_op, "static_sizes", 2)[rank + 1 :]
    [total] = [u.owner.operation for u in slice_op.results[0].uses]
    start, t = total.operands[1], ir.RankedTensorType(space.type).element_type
    dims = list(range(len(sizes)))
    with ir.InsertionPoint(total), total.location:
        loop = scf.ForOp(_build.index(0), count, _build.index(1), [start])
    with ir.InsertionPoint(loop.body), total.location:
        place = [number, loop.induction_variable, *offsets]
        part = _build.extract_slice(space, place, [1, 1, *sizes], [0, 1])
        sums = loop.inner_iter_args[0]
        added = _build.generic([part], [sums], [dims, dims], [True] * len(dims), ir.Location.current)
        with ir.InsertionPoint(added.regions[0].blocks.append(t, t)) as at:
            one, so_far = at.block.arguments
            kind = total.regions[0].blocks[0].operations[0].operation.name
            linalg.yield_([ir.Operation.create(kind, results=[t], operands=[so_far, one]).results[0]])
        scf.YieldOp(added.results)
    total.results[0].replace_all_uses_with(loop.results[0])
    total.erase()
    slice_op.erase()
