"""Geometry of slices in a tile program: offsets, exact sizes, and the constants that bound sizes at an edge."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.passes.distribute.emitter import Index, Unsupported

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


def slice_geometry(op, lookup) -> tuple[list[Index], list[int], list[Index]]:
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
    offsets: list[Index] = []
    for n in ir.DenseI64ArrayAttr(op.attributes["static_offsets"]):
        offsets.append(lookup(dynamic_offsets.pop(0)) if n == DYNAMIC else n)
    bounds: list[int] = []
    sizes: list[Index] = []
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


def kept_dims(static: list[int], result_shape: list[int]) -> list[int]:
    """Which dimensions of a slice stay in its rank-reduced type."""
    kept: list[int] = []
    rest = list(result_shape)
    to_drop = len(static) - len(result_shape)
    for i, n in enumerate(static):
        if to_drop and n == 1 and (not rest or rest[0] != 1 or len(rest) < len(static) - i - to_drop + 1):
            to_drop -= 1
            continue
        if not rest or rest[0] != n:
            raise Unsupported("a rank-reducing slice whose dropped dimensions cannot be told")
        kept.append(i)
        rest.pop(0)
    return kept
