"""What follows a loop over parts in a block program becomes another one, in which each part has a share of the tile."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import Dims, producer, structured_ops
from mlirc.dialects.schedule.tile_reduction import InnerTiler
from mlirc.dialects.schedule.tile_to_blocks import Cut, mapping_of
from mlirc.ir.tensors import shape_of
from mlirc.mlir import affine, ir, scf


class _ShareTiler(InnerTiler):
    """Slices of slices that have an offset already."""

    def moved(self, offset, by, made_by: ir.Operation):
        return _build.added(offset, by)


def share(partial: ir.Operation, parts: int, erase: Callable[[ir.Operation], None], numbers: int = 0) -> ir.Operation:
    """Moves the linalg ops behind `partial`, whose results end with the extents of a tile, into an scf.forall over
    shares of one dimension; returns it. There are as many shares as `parts`, or, where `numbers` is given, so many that
    all parts of a share have about so many elements. Raises PayloadError where no dimension can be shared."""
    dims = Dims(_behind(partial))
    sizes: dict[int, Size] = dict(dims.extent)
    for value, out in zip(partial.results, list(partial.operands)[-len(partial.results) :], strict=True):
        dynamic = iter(list(producer(out).operands))  # type: ignore[union-attr]
        exact = [next(dynamic) if n == _build.DYNAMIC else n for n in shape_of(out)]
        for i, m in ((u.owner, u.operand_number) for u in value.uses):
            at = dims.ops.index(i.operation)
            for k, size in zip(dims.map_classes(at, dims.structures[at].maps[m]), exact, strict=True):
                if k is not None:
                    sizes[k] = size
    if _build.DYNAMIC in sizes.values():
        raise PayloadError("a tile at an edge whose extents the sums do not have", dims.ops[-1])
    escaping = dims.escaping()
    c, bound = _shared(dims, escaping, sizes, 2 if numbers else parts)
    shares, width = parts, -(-bound // parts)
    if numbers:
        tile = prod(_build.bound(sizes[k]) for k in dims.value_classes(escaping[0]) if k is not None)
        width = min(max(numbers * bound // (parts * tile), 1), bound)
        shares = -(-bound // width)
    with ir.InsertionPoint(_terminator(partial)), partial.location:
        outs = [
            _build.empty(
                [1 if k is None else sizes[k] for k in dims.value_classes(v)], ir.RankedTensorType(v.type).element_type
            )
            for v in escaping
        ]
        forall = scf.ForallOp([0], [shares], [1], outs, mapping=mapping_of(1))
    with ir.InsertionPoint(forall.body), partial.location:
        tiles = {known: Cut(0, extent) for known, extent in sizes.items()}
        tiles[c] = _share_of(list(forall.induction_variables)[0], sizes[c], width, shares)
    _ShareTiler(dims, tiles).fill(forall, partial.location, erase)
    return forall.operation


def _terminator(partial: ir.Operation) -> ir.Operation:
    ops = partial.block.operations
    return ops[len(ops) - 1].operation


def _behind(partial: ir.Operation) -> list[ir.Operation]:
    """The linalg ops behind the parts, and those in front that they read."""
    ops = structured_ops(partial.block)
    all_ops = [o.operation for o in partial.block.operations]
    at = all_ops.index(partial)
    found: list[ir.Operation] = []
    for op in reversed(ops):
        users = [u.owner.operation for r in op.results for u in r.uses]
        if all_ops.index(op) > at:
            found.append(op)
        elif any(u in found for u in users):
            found.append(_copy_for(op, found))
    return found[::-1]


def _copy_for(op: ir.Operation, readers: list[ir.Operation]) -> ir.Operation:
    """A copy of an op that the readers use in its stead: others, in the loop, may go on using it."""
    with ir.InsertionPoint(op), op.location:
        copy = op.clone().operation
    for old, new in zip(op.results, copy.results, strict=True):
        for owner, number in [(u.owner.operation, u.operand_number) for u in old.uses]:
            if owner in readers:
                owner.operands[number] = new
    return copy


def _shared(dims: Dims, escaping: list[ir.Value], sizes: dict[int, Size], parts: int) -> tuple[int, int]:
    """(class, bound of its extent) of the dimension that is shared: the first with as many elements as parts, else the
    longest."""
    everywhere = [set(dims.value_classes(v)) for v in escaping]
    found = [
        (k, _build.bound(sizes[k]))
        for k in (dims.value_classes(escaping[0]) if escaping else ())
        if k is not None and k not in dims.reduced and all(k in classes for classes in everywhere)
    ]
    if not found:
        raise PayloadError("no dimension that all results have can be shared among the parts", dims.ops[-1])
    return next((f for f in found if f[1] >= parts), max(found, key=lambda f: f[1]))


def _share_of(part: ir.Value, size: Size, width: int, shares: int) -> Cut:
    """The share of a part: `width` elements, or what is left, which may be nothing."""
    if size == width * shares:
        return Cut(_build.scaled(part, width), width)
    d, e = ir.AffineExpr.get_dim(0), ir.AffineExpr.get_dim(1)
    zero, most = ir.AffineExpr.get_constant(0), ir.AffineExpr.get_constant(width)
    negative = ir.AffineExpr.get_mul(d, ir.AffineExpr.get_constant(-width))
    if isinstance(size, int):
        left = affine.AffineMaxOp(ir.AffineMap.get(1, 0, [negative + size, zero]), [part]).result
    else:
        left = affine.AffineMaxOp(ir.AffineMap.get(2, 0, [negative + e, zero]), [part, size]).result
    return Cut(_build.scaled(part, width), affine.AffineMinOp(ir.AffineMap.get(1, 0, [d, most]), [left]).result)
