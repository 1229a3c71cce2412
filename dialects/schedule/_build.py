"""Small builders shared by the transform ops: slices of mixed sizes, generics, index arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mlirc.dialects.mlirc_dialect import DEQUANTIZE, GATHER_MATRICES
from mlirc.ir.scans import SCAN
from mlirc.mlir import affine, arith, ir, linalg, nested, tensor

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


def applied(expr: ir.AffineExpr, *values: ir.Value) -> ir.Value:
    """An expression of d0, d1, ... as an affine.apply."""
    return affine.AffineApplyOp(ir.AffineMap.get(len(values), 0, [expr]), list(values)).result


def scaled(value: ir.Value, factor: int) -> ir.Value:
    """value * factor as an affine.apply."""
    return applied(ir.AffineExpr.get_dim(0) * factor, value)


def remaining(offset: ir.Value, extent: int, tile: int) -> ir.Value:
    """min(tile, extent - offset) as an affine.min: the size of an edge tile, whose bound is the constant."""
    d = ir.AffineExpr.get_dim(0)
    neg = ir.AffineExpr.get_mul(d, ir.AffineExpr.get_constant(-1))
    map_ = ir.AffineMap.get(1, 0, [neg + extent, ir.AffineExpr.get_constant(tile)])
    return affine.AffineMinOp(map_, [offset]).result


def bound(size: Size) -> int:
    """The most that an extent can be: it is a number, or an affine.min of one. Raises ValueError for others."""
    if isinstance(size, int):
        return size
    owner = size.owner
    if not isinstance(owner, ir.Block) and owner.operation.name == "affine.min":
        results = ir.AffineMapAttr(owner.operation.attributes["map"]).value.results
        constants = [e.value for e in results if isinstance(e, ir.AffineConstantExpr)]
        if constants:
            return min(constants)
    raise ValueError("an extent without a constant bound")


def added(a: Size, b: Size) -> Size:
    """a + b, as an affine.apply where they are values."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if 0 in (a, b):
        return b if isinstance(a, int) else a
    d, e = ir.AffineExpr.get_dim(0), ir.AffineExpr.get_dim(1)
    if isinstance(a, int) or isinstance(b, int):
        number, value = (a, b) if isinstance(a, int) else (b, a)
        return affine.AffineApplyOp(ir.AffineMap.get(1, 0, [d + number]), [value]).result
    return affine.AffineApplyOp(ir.AffineMap.get(2, 0, [d + e]), [a, b]).result


def index(value: int) -> ir.Value:
    return arith.ConstantOp(ir.IndexType.get(), value).result


_ITERATORS = {True: "#linalg.iterator_type<parallel>", False: "#linalg.iterator_type<reduction>"}


class Grouped(int):
    """An iteration dimension of which `factor` steps that follow each other read one element of an operand's dimension:
    heads of queries that share a head of keys."""

    factor: int

    def __new__(cls, dim: int, factor: int) -> Grouped:
        made = super().__new__(cls, dim)
        made.factor = factor
        return made

    def expr(self) -> ir.AffineExpr:
        return ir.AffineExpr.get_floor_div(ir.AffineExpr.get_dim(int(self)), self.factor)


def renumber(dim: int | None, numbers: Mapping[int, Any] | Sequence[Any]) -> Any:
    """What a map's result becomes when its iteration dimension gets another number."""
    if dim is None or not isinstance(dim, Grouped):
        return None if dim is None else numbers[dim]
    new = numbers[int(dim)]
    return None if new is None else Grouped(new, dim.factor)


def affine_map(n_dims: int, results: Sequence[int | None]) -> ir.AffineMap:
    """A map from its results: iteration dimensions (`Grouped` ones, too), None for constant 0."""

    def expr(r: int | None) -> ir.AffineExpr:
        if r is None:
            return ir.AffineExpr.get_constant(0)
        return r.expr() if isinstance(r, Grouped) else ir.AffineExpr.get_dim(r)

    return ir.AffineMap.get(n_dims, 0, [expr(r) for r in results])


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


def clone(op: ir.Operation, values: dict[ir.Value, ir.Value]) -> ir.Operation:
    """A copy of an op at the insertion point, in which it and what is nested in it read others in place of `values`,
    which its results join."""
    made = op.clone().operation
    for o in (made, *nested(made)):
        for i, v in enumerate(o.operands):
            if v in values:
                o.operands[i] = values[v]
    values |= dict(zip(op.results, made.results, strict=True))
    return made


def take_body(
    new: ir.Operation, old: ir.Operation, renumber: dict[int, int | None], offsets: dict[int, ir.Value]
) -> None:
    """Moves the body of `old` into `new` and mends its linalg.index ops.

    `renumber` maps an old iteration dimension to the new one (None: gone, its index is the offset, or 0);
    `offsets` holds what is to be added to the index of an old dimension.
    """
    old.regions[0].blocks[0].append_to(new.regions[0])
    for name in (DEQUANTIZE, GATHER_MATRICES, SCAN):
        if name in old.attributes:
            new.attributes[name] = old.attributes[name]
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
