"""Geometry of slices in a tile program: offsets, exact sizes, and the constants that bound sizes at an edge."""

from __future__ import annotations

from mlirc.ir import tensors
from mlirc.mlir import ir
from mlirc.passes.distribute.emitter import IndexValue, Unsupported

DYNAMIC = ir.ShapedType.get_dynamic_size()


def bound(value: ir.Value) -> int | None:
    """A constant that an index value never exceeds, if its definition shows one."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    name = owner.name
    if name == "arith.constant":
        return ir.IntegerAttr(owner.attributes["value"]).value
    if name == "affine.min":
        m = ir.AffineMapAttr(owner.attributes["map"]).value
        constants = [e.value for e in m.results if isinstance(e, ir.AffineConstantExpr)]
        return min(constants) if constants else None
    if name in ("arith.minsi", "arith.minui"):
        bounds = [b for b in map(bound, owner.operands) if b is not None]
        return min(bounds) if bounds else None
    return None


def slice_geometry(op, lookup) -> tuple[list[IndexValue], list[int], list[IndexValue]]:
    """(offsets, bounds, sizes) of a unit-stride tensor.extract_slice or parallel_insert_slice, with operands looked
    up by `lookup`."""
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    operands = list(op.operands)
    first = len(operands) - sum(segments[-3:])
    dynamic_offsets = operands[first : first + segments[-3]]
    dynamic_sizes = operands[first + segments[-3] : first + segments[-3] + segments[-2]]
    strides = list(ir.DenseI64ArrayAttr(op.attributes["static_strides"]))
    if any(s != 1 for s in strides):
        raise Unsupported("a slice with a stride other than 1; use the generic script")
    offsets: list[IndexValue] = []
    for n in ir.DenseI64ArrayAttr(op.attributes["static_offsets"]):
        offsets.append(lookup(dynamic_offsets.pop(0)) if n == DYNAMIC else n)
    bounds: list[int] = []
    sizes: list[IndexValue] = []
    for n in ir.DenseI64ArrayAttr(op.attributes["static_sizes"]):
        if n != DYNAMIC:
            bounds.append(n)
            sizes.append(n)
            continue
        value = dynamic_sizes.pop(0)
        size, limit = lookup(value), bound(value)
        if isinstance(size, int):
            limit = size
        if limit is None:
            raise Unsupported("a slice whose dynamic size has no constant bound (an affine.min with a constant)")
        bounds.append(limit)
        sizes.append(size)
    return offsets, bounds, sizes


def kept_dims(op: ir.Operation, reduced: ir.Value) -> list[int]:
    """Which dimensions of a slice stay in its rank-reduced tensor: the result of an extract_slice, what an insert_slice
    inserts."""
    return tensors.kept_dims(
        list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"])), ir.RankedTensorType(reduced.type).shape
    )


def cut_at_edges(op: ir.Operation, whole: list[int]) -> list[bool]:
    """Per dimension of an extract_slice or parallel_insert_slice of a tensor of the shape `whole`: whether its size is
    constant, or what is left of the tensor: the least of a constant and extent - offset."""
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    operands = list(op.operands)
    first = len(operands) - sum(segments[-3:])
    dynamic_offsets = operands[first : first + segments[-3]]
    dynamic_sizes = operands[first + segments[-3] : first + segments[-3] + segments[-2]]
    offsets = [
        dynamic_offsets.pop(0) if n == DYNAMIC else n for n in ir.DenseI64ArrayAttr(op.attributes["static_offsets"])
    ]
    out = []
    for extent, offset, n in zip(whole, offsets, ir.DenseI64ArrayAttr(op.attributes["static_sizes"]), strict=True):
        out.append(n != DYNAMIC or _rest(dynamic_sizes.pop(0), offset, extent))
    return out


def _rest(size: ir.Value, offset: ir.Value | int, extent: int) -> bool:
    """Whether a size is affine.min(extent - offset, constant)."""
    owner = size.owner
    if isinstance(owner, ir.Block) or owner.name != "affine.min" or list(owner.operands) != [offset]:
        return False
    m = ir.AffineMapAttr(owner.attributes["map"]).value
    rest = ir.AffineExpr.get_constant(extent) - ir.AffineExpr.get_dim(0)
    others = [e for e in m.results if not isinstance(e, ir.AffineConstantExpr)]
    return m.n_dims == 1 and all(e == rest for e in others)
