"""Small builders shared by the transform ops: slices of mixed sizes, generics, index arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from mlirc.mlir import affine, arith, ir, linalg, tensor

Size: TypeAlias = "int | ir.Value"  # an index: static, or an SSA value
DYNAMIC = ir.ShapedType.get_dynamic_size()


def split(sizes: Sequence[Size]) -> tuple[list[ir.Value], list[int]]:
    """Dynamic values and the static list with markers, as MLIR's mixed-size ops take them."""
    return [s for s in sizes if not isinstance(s, int)], [s if isinstance(s, int) else DYNAMIC for s in sizes]


def static(sizes: Sequence[Size]) -> list[int]:
    return split(sizes)[1]


def extract_slice(
    source: ir.Value, offsets: Sequence[Size], sizes: Sequence[Size], dropped: Sequence[int] = ()
) -> ir.Value:
    """A unit-stride slice; `dropped` are the dimensions (of static size 1) that the result's rank leaves out."""
    shape = [s for i, s in enumerate(static(sizes)) if i not in dropped]
    element = ir.RankedTensorType(source.type).element_type
    (dyn_o, stat_o), (dyn_s, stat_s) = split(offsets), split(sizes)
    one = [1] * len(stat_s)
    type_ = ir.RankedTensorType.get(shape, element)
    return tensor.ExtractSliceOp(type_, source, dyn_o, dyn_s, [], stat_o, stat_s, one).result


def parallel_insert_slice(source: ir.Value, dest: ir.Value, offsets: Sequence[Size], sizes: Sequence[Size]) -> None:
    """Adds a tensor.parallel_insert_slice at the insertion point (inside scf.forall.in_parallel)."""
    (dyn_o, stat_o), (dyn_s, stat_s) = split(offsets), split(sizes)
    tensor.ParallelInsertSliceOp(source, dest, dyn_o, dyn_s, [], stat_o, stat_s, [1] * len(stat_s))


def empty(sizes: Sequence[Size], element: ir.Type) -> ir.Value:
    return tensor.EmptyOp(list(sizes), element).result


def scaled(value: ir.Value, factor: int) -> ir.Value:
    """value * factor as an affine.apply."""
    d = ir.AffineExpr.get_dim(0)
    return affine.AffineApplyOp(ir.AffineMap.get(1, 0, [d * factor]), [value]).result


def remaining(offset: ir.Value, extent: int, tile: int) -> ir.Value:
    """min(tile, extent - offset) as an affine.min: the size of an edge tile, whose bound is the constant."""
    d = ir.AffineExpr.get_dim(0)
    neg = ir.AffineExpr.get_mul(d, ir.AffineExpr.get_constant(-1))
    map_ = ir.AffineMap.get(1, 0, [neg + extent, ir.AffineExpr.get_constant(tile)])
    return affine.AffineMinOp(map_, [offset]).result


def index(value: int) -> ir.Value:
    return arith.ConstantOp(ir.IndexType.get(), value).result


_ITERATORS = {True: "#linalg.iterator_type<parallel>", False: "#linalg.iterator_type<reduction>"}


def affine_map(n_dims: int, results: Sequence[int | None]) -> ir.AffineMap:
    """A map from its results: iteration dimensions, None for constant 0."""
    exprs = [ir.AffineExpr.get_constant(0) if r is None else ir.AffineExpr.get_dim(r) for r in results]
    return ir.AffineMap.get(n_dims, 0, exprs)


def generic(
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    maps: Sequence[Sequence[int | None]],
    parallel: Sequence[bool],
    location: ir.Location | None = None,
) -> ir.Operation:
    """A linalg.generic with an empty region: the caller appends the body."""
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(affine_map(len(parallel), m)) for m in maps]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse(_ITERATORS[p]) for p in parallel]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), len(outputs)]),
    }
    results = [v.type for v in outputs]
    return ir.Operation.create("linalg.generic", results, [*inputs, *outputs], attributes, regions=1, loc=location)


def take_body(
    new: ir.Operation, old: ir.Operation, renumber: dict[int, int | None], offsets: dict[int, ir.Value]
) -> None:
    """Moves the body of `old` into `new` and mends its linalg.index ops.

    `renumber` maps an old iteration dimension to the new one (None: gone, its index is the offset, or 0);
    `offsets` holds what is to be added to the index of an old dimension.
    """
    old.regions[0].blocks[0].append_to(new.regions[0])
    found: list[ir.Operation] = []

    def visit(o: ir.Operation) -> ir.WalkResult:
        if o.name == "linalg.index":
            found.append(o)
        return ir.WalkResult.ADVANCE

    new.walk(visit)
    for o in found:
        old_dim = ir.IntegerAttr(o.attributes["dim"]).value
        new_dim = renumber[old_dim]
        offset = offsets.get(old_dim)
        with ir.InsertionPoint(o), o.location:
            if new_dim is None:
                value = index(0) if offset is None else offset
            else:
                value = linalg.IndexOp(new_dim).result
                if offset is not None:
                    value = arith.AddIOp(value, offset).result
        o.results[0].replace_all_uses_with(value)
        o.erase()
