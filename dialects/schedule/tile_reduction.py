"""`schedule.tile_reduction`: contractions of a block become one `scf.for` over their common reduction dimension."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import LINALG, PayloadError, transform_op
from mlirc.dialects.schedule._dims import Dims, contraction, producer, structured_ops
from mlirc.dialects.schedule.tile_to_blocks import Cut, Tiler
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir, scf


class InnerTiler(Tiler):
    """A Tiler inside of a block: a block-level slice of a global tensor is sliced again at its source."""

    def operand(self, value: ir.Value, classes, is_output: bool) -> ir.Value:
        if value in self.values or not isinstance(value.type, ir.RankedTensorType):
            return self.values.get(value, value)
        cut_here = [j for j, c in enumerate(classes) if c is not None and self.tiles[c].offset != 0]
        if not cut_here:
            return value
        if any(isinstance(classes[j], _build.Grouped) for j in cut_here):
            raise PayloadError("a dimension that is read in groups is not tiled inside of a block", producer(value))
        made_by = producer(value)
        if made_by is not None and made_by.name == "tensor.extract_slice":
            return self._slice_of_slice(made_by, classes, cut_here)
        if made_by is not None and made_by.name == "tensor.empty":
            dynamic = iter(list(made_by.operands))
            type_ = ir.RankedTensorType(value.type)
            sizes = [next(dynamic) if s == _build.DYNAMIC else s for s in type_.shape]
            for j in cut_here:
                sizes[j] = self.tiles[classes[j]].size
            return _build.empty(sizes, type_.element_type)
        return super().operand(value, classes, is_output)

    def moved(self, offset, by, made_by: ir.Operation):
        """Where a slice of a slice begins."""
        if offset != 0:
            raise PayloadError("the reduction dimension is already cut", made_by)
        return by

    def _slice_of_slice(self, made_by: ir.Operation, classes, cut_here) -> ir.Value:
        offsets, sizes = mixed(made_by, "static_offsets", 1), mixed(made_by, "static_sizes", 2)
        kept = uncut_dims(list(made_by.attributes["static_sizes"]), shape_of(made_by.results[0]), offsets)
        for j in cut_here:
            tile = self.tiles[classes[j]]
            offsets[kept[j]], sizes[kept[j]] = self.moved(offsets[kept[j]], tile.offset, made_by), tile.size
        dropped = [j for j in range(len(sizes)) if j not in kept]
        return _build.extract_slice(made_by.operands[0], offsets, sizes, dropped)


def uncut_dims(sizes: list[int], shape: Sequence[int], offsets: list) -> list[int]:
    """Which dimensions of a slice stay in its rank-reduced type, where several are of size 1: those at offset 0, as
    what the blocks did not cut is."""
    found = [k for k in combinations(range(len(sizes)), len(shape)) if [sizes[d] for d in k] == list(shape)]
    return list(max(found, key=lambda k: (sum(offsets[d] == 0 for d in k), k)))


def mixed(op: ir.Operation, attribute: str, segment: int) -> list:
    """Offsets or sizes of an extract_slice, static ones as numbers: its `attribute` and operand segment."""
    segments = list(op.attributes["operandSegmentSizes"])
    start = sum(segments[:segment])
    dynamic = iter(list(op.operands)[start : start + segments[segment]])
    return [next(dynamic) if s == _build.DYNAMIC else s for s in op.attributes[attribute]]


def loop_body(dims: Dims, contractions: list[int], k: int) -> list[int]:
    """Indices of the ops that go into the loop: the contractions, and their elementwise producers along k."""
    inside = set(contractions)
    for i in range(len(dims.ops) - 1, -1, -1):
        s = dims.structures[i]
        users = [u.owner.operation for r in s.op.results for u in r.uses]
        readers = {dims.ops.index(u) for u in users if u in dims.ops}
        if i in inside or k not in dims.of[i] or not readers:
            continue
        if not all(s.parallel):
            raise PayloadError("a reduction along the contraction's reduction dimension cannot join its loop", s.op)
        if any(u not in dims.ops for u in users) or not readers <= inside:
            raise PayloadError("is used both inside and outside the reduction loop", s.op)
        inside.add(i)
    return sorted(inside)


def tile_loop(contractions: list[ir.Operation], size: int, erase) -> tuple[list[ir.Operation], ir.Operation]:
    """Makes the loop; returns (contractions inside, loop). See `tile_reduction`."""
    contractions = [c.operation for c in contractions]
    if size < 1:
        raise PayloadError(f"size {size}: a step of the loop takes 1 or more", contractions[0])
    block = contractions[0].block
    if any(c.block != block for c in contractions):
        raise PayloadError("the contractions are not in one block", contractions[0])
    dims = Dims(structured_ops(block))
    indices = [dims.ops.index(c) for c in contractions]
    roles = [contraction(c) for c in contractions]
    ks = {dims.of[i][d] for i, r in zip(indices, roles, strict=True) for d in (r.k if r else ())}
    extents = {dims.extent[k] for k in ks}
    if None in roles:
        raise PayloadError("it is no contraction (out += a * b): match_contractions finds them", contractions[0])
    if any(r is None or len(r.k) != 1 for r in roles) or len(extents) != 1:
        raise PayloadError("the contractions need one reduction dimension each, of one size", contractions[0])
    extent = extents.pop()
    inside = sorted({i for k in ks for i in loop_body(dims, [c for c in indices if k in dims.of[c]], k)})
    location = contractions[0].location
    accumulators = [dims.structures[i].outputs[0] for i in indices]
    with ir.InsertionPoint(dims.ops[inside[-1]]), location:
        loop = scf.ForOp(_build.index(0), _build.index(extent), _build.index(size), accumulators)
    with ir.InsertionPoint(loop.body), location:
        iv = loop.induction_variable
        tiles = {c: Cut(0, n) for c, n in dims.extent.items()}
        k_size = _build.remaining(iv, extent, size) if extent % size else size
        tiles |= {k: Cut(iv, k_size) for k in ks}
        tiler = InnerTiler(dims, tiles)
        tiler.values = dict(zip(accumulators, loop.inner_iter_args, strict=True))
        shared = len(set(accumulators)) != len(accumulators)
        inner = []
        for i in inside:
            if i in indices:
                # two contractions may start from one fill: each continues its own accumulator
                if shared:
                    tiler.values[dims.structures[i].outputs[0]] = loop.inner_iter_args[indices.index(i)]
                inner.append(tiler.clone(i))
            else:
                tiler.clone(i)
        scf.YieldOp([tiler.values[dims.ops[i].results[0]] for i in indices])
    for i, result in zip(indices, loop.results, strict=True):
        dims.ops[i].results[0].replace_all_uses_with(result)
    for i in reversed(inside):
        erase(dims.ops[i])
    return inner, loop.operation


@transform_op(
    "tile_reduction",
    operands=("contractions",),
    consumes=("contractions",),
    results=("tiled", "loop"),
    attributes={"size": int},
    takes=LINALG,
)
def tile_reduction(rewriter, contractions, size):
    """Tiles the reduction dimension of all given contractions by `size`, in one loop with their accumulators carried.

    Elementwise producers along the reduction dimension that feed only the contractions move into the loop.
    """
    if not contractions:
        raise PayloadError("tile_reduction got no contraction")
    inner, loop = tile_loop(contractions, size, rewriter.erase_op)
    return [inner, [loop]]
