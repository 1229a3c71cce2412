"""Geometry of slices in a tile program: offsets, exact sizes, and the constants that bound sizes at an edge."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from mlirc.dialects.im2col import IM2COL
from mlirc.ir import tensors
from mlirc.ir.affine import affine_value
from mlirc.mlir import ir
from mlirc.passes.distribute.emit.emitter import IndexValue, Unsupported

DYNAMIC = ir.ShapedType.get_dynamic_size()
RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")


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
    gate = gated(value)
    return bound(gate[1]) if gate else None


def gated(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """(condition, size) of a size that is 0 where the condition does not hold; None for any other value."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.select" or known(owner.operands[2]) != 0:
        return None
    return owner.operands[0], owner.operands[1]


def known(value: ir.Value) -> int | None:
    """An index value that is a constant, computed from constants, or the induction variable of a forall of one step."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return _only_step(owner, value)
    if owner.name == "arith.constant":
        attribute = owner.attributes["value"]
        return attribute.value if isinstance(attribute, ir.IntegerAttr) else None
    if owner.name in _FOLDS or owner.name in ("affine.apply", "affine.min", "affine.max"):
        operands = [known(v) for v in owner.operands]
        if any(n is None for n in operands):
            return None
        numbers = [n for n in operands if n is not None]
        if owner.name in _FOLDS:
            return _FOLDS[owner.name](*numbers)
        m = ir.AffineMapAttr(owner.attributes["map"]).value
        results = [affine_value(e, numbers[: m.n_dims], numbers[m.n_dims :]) for e in m.results]
        return max(results) if owner.name == "affine.max" else min(results)
    return None


_FOLDS: dict[str, Callable[..., int]] = {
    "arith.addi": operator.add, "arith.subi": operator.sub, "arith.muli": operator.mul,
    "arith.minsi": min, "arith.maxsi": max,
}  # fmt: skip


def _only_step(block: ir.Block, value: ir.Value) -> int | None:
    forall = block.owner
    if forall.operation.name != "scf.forall" or not isinstance(value.type, ir.IndexType):
        return None
    number = list(block.arguments).index(value)
    lower, upper, step = (
        list(ir.DenseI64ArrayAttr(forall.operation.attributes[n]))[number]
        for n in ("staticLowerBound", "staticUpperBound", "staticStep")
    )
    return lower if DYNAMIC not in (lower, upper, step) and lower < upper <= lower + step else None


def dynamic_sizes(op: ir.Operation) -> list[ir.Value]:
    """The sizes of a slice that are operands, in order."""
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    operands = list(op.operands)
    first = len(operands) - sum(segments[-3:]) + segments[-3]
    return operands[first : first + segments[-2]]


def _bounds(shape: Sequence[int], dynamic: Sequence[ir.Value]) -> list[int]:
    """Extents, and for the dynamic ones among them what their values never exceed."""
    rest, found = list(dynamic), []
    for n in shape:
        if n == DYNAMIC:
            value = rest.pop(0)
            limits = [x for x in (known(value), bound(value)) if x is not None]
            if not limits:
                raise Unsupported("a tile whose dynamic extent has no constant bound (an affine.min with a constant)")
            n = min(limits)
        found.append(n)
    return found


def tile_bounds(value: ir.Value) -> list[int]:
    """Bounds of a tile's extents: its type's, or what the op that made it shows; those of a loop's tiles are where it
    began. Raises Unsupported where nothing shows them."""
    shape, owner = list(ir.RankedTensorType(value.type).shape), value.owner
    if DYNAMIC not in shape:
        return shape
    if isinstance(owner, ir.Block):
        loop = owner.owner
        if loop.operation.name == "scf.for":
            return tile_bounds(list(loop.operation.operands)[3 + list(owner.arguments).index(value) - 1])
        raise Unsupported(f"a tile {value.type} whose extents nothing bounds")
    if owner.name == "tensor.extract_slice":
        static = list(ir.DenseI64ArrayAttr(owner.attributes["static_sizes"]))
        full = _bounds(static, dynamic_sizes(owner))
        return [full[i] for i in kept_dims(owner, value)]
    if owner.name in ("tensor.empty", "mlirc.get"):
        return _bounds(shape, list(owner.operands)[owner.name == "mlirc.get" :])
    if owner.name == "tensor.cast":
        return tile_bounds(owner.operands[0])
    if owner.name == "tensor.insert_slice":
        return tile_bounds(owner.operands[1])
    if owner.name == "scf.for":
        return tile_bounds(list(owner.operands)[3 + list(owner.results).index(value)])
    if owner.name == "linalg.fill":
        return tile_bounds(owner.operands[1])
    if owner.name == "linalg.generic":
        segments = list(ir.DenseI32ArrayAttr(owner.attributes["operandSegmentSizes"]))
        return tile_bounds(list(owner.operands)[segments[0] + list(owner.results).index(value)])
    if owner.name in RESHAPES:
        return _reshaped_bounds(owner, shape)
    raise Unsupported(f"a tile {value.type} whose extents nothing bounds: it is made by a {owner.name}")


def _reshaped_bounds(op: ir.Operation, shape: list[int]) -> list[int]:
    source, expand = tile_bounds(op.operands[0]), op.name == "tensor.expand_shape"
    groups = [[ir.IntegerAttr(i).value for i in g] for g in ir.ArrayAttr(op.attributes["reassociation"])]
    if not expand:
        return [math.prod(source[d] for d in g) for g in groups]
    return [next(source[k] for k, g in enumerate(groups) if i in g) if n == DYNAMIC else n for i, n in enumerate(shape)]


def is_global(value: ir.Value) -> bool:
    """Whether a tensor of a tile program is a window of global memory: what a kernel takes or an earlier forall made,
    and slices and reshapes of it that need no copy."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return owner.owner.operation.name in ("func.func", "scf.forall")
    if owner.name == "scf.forall":
        return True
    if owner.name in ("tensor.extract_slice", "tensor.cast"):
        return is_global(owner.operands[0])
    if owner.name == IM2COL:
        return True
    if owner.name in RESHAPES:
        outside = owner.operation.parent.name == "func.func"
        return is_global(owner.operands[0]) and (
            outside or view_order(owner, tile_bounds(owner.operands[0])) is not None
        )
    return False


def view_order(op: ir.Operation, shape: Sequence[int]) -> list[int] | None:
    """Which dimension of a window of global memory, of the extents `shape`, each dimension of a reshape of it is; None
    where one would not be a dimension of the memory."""
    groups = [[ir.IntegerAttr(i).value for i in g] for g in ir.ArrayAttr(op.attributes["reassociation"])]
    expand = op.name == "tensor.expand_shape"
    wide = list(ir.RankedTensorType(op.results[0].type).shape) if expand else list(shape)
    kept: list[int | None] = [None] * len(wide) if expand else []
    for i, g in enumerate(groups):
        real = [d for d in g if wide[d] != 1]
        if len(real) > 1:
            return None
        if expand:
            kept[real[0] if real else g[0]] = i
        else:
            kept.append(real[0] if real else g[0])
    order = [i for i in kept if i is not None]
    return order if len(order) == len(kept) else None  # an added dimension of size 1 is none of the memory


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
        size = None if n != DYNAMIC else dynamic_sizes.pop(0)
        gate = gated(size) if size is not None else None
        size = gate[1] if gate else size
        out.append(size is None or bool(gate) and known(size) is not None or _rest(size, offset, extent))
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
