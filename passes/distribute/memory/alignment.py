"""What numbers of a tile program are known to be multiples of, and how wide the copies of a slice can be for that."""

from __future__ import annotations

from mlirc.dialects.im2col import IM2COL
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import ir
from mlirc.passes.distribute.layouts.registers import pow2_divisor
from mlirc.passes.distribute.memory import slices
from mlirc.passes.distribute.memory.access import storage_type

_MOST = 1 << 30
_LEAST = ("arith.addi", "arith.subi", "arith.minsi", "arith.maxsi", "affine.min", "affine.max")


def multiple(value: ir.Value) -> int:
    """A power of two known to divide an index value."""
    number = slices.known(value)
    if number is not None:
        return pow2_divisor(number)
    owner = value.owner
    if isinstance(owner, ir.Block):
        return _of_argument(owner, value)
    operands = list(owner.operands)
    if owner.name.startswith("affine."):
        m = ir.AffineMapAttr(owner.attributes["map"]).value
        known = [multiple(v) for v in operands]
        return min(_of_expression(e, known[: m.n_dims], known[m.n_dims :]) for e in m.results)
    if owner.name in _LEAST:
        return min(map(multiple, operands))
    if owner.name == "arith.muli":
        return min(multiple(operands[0]) * multiple(operands[1]), _MOST)
    if owner.name == "tensor.dim":
        number, shape = slices.known(operands[1]), ir.RankedTensorType(operands[0].type).shape
        return pow2_divisor(shape[number]) if number is not None and shape[number] != slices.DYNAMIC else 1
    return 1


def _of_argument(block: ir.Block, value: ir.Value) -> int:
    op = block.owner.operation
    if op.name == "scf.for" and value == block.arguments[0]:
        return min(multiple(op.operands[0]), multiple(op.operands[2]))
    if op.name == "scf.forall" and isinstance(value.type, ir.IndexType):
        number = list(block.arguments).index(value)
        lower, step = (list(ir.DenseI64ArrayAttr(op.attributes[n]))[number] for n in ("staticLowerBound", "staticStep"))
        return 1 if slices.DYNAMIC in (lower, step) else min(pow2_divisor(lower), pow2_divisor(step))
    return 1


def _of_expression(e: ir.AffineExpr, dims: list[int], symbols: list[int]) -> int:
    if isinstance(e, ir.AffineConstantExpr):
        return pow2_divisor(e.value)
    if isinstance(e, ir.AffineDimExpr | ir.AffineSymbolExpr):
        return (dims if isinstance(e, ir.AffineDimExpr) else symbols)[e.position]
    if isinstance(e, ir.AffineAddExpr | ir.AffineMulExpr):
        a, b = _of_expression(e.lhs, dims, symbols), _of_expression(e.rhs, dims, symbols)
        return min(a, b) if isinstance(e, ir.AffineAddExpr) else min(a * b, _MOST)
    return 1


def _window(value: ir.Value) -> tuple[list[int], list[int], list[int]]:
    """Of a window of global memory: the memory's extents, which of its dimensions each of the window's is, and what the
    offset along each of the memory's is a multiple of."""
    owner = value.owner
    outside = not isinstance(owner, ir.Block) and owner.operation.parent.name == "func.func"
    if isinstance(owner, ir.Block) or owner.name == "scf.forall" or outside and owner.name != "tensor.extract_slice":
        shape = list(ir.RankedTensorType(value.type).shape)
        return shape, list(range(len(shape))), [_MOST] * len(shape)
    shape, dims, offsets = _window(owner.operands[0])
    if owner.name == "tensor.cast":
        return shape, dims, offsets
    if owner.name in slices.RESHAPES:
        order = slices.view_order(owner, slices.tile_bounds(owner.operands[0]))
        assert order is not None  # or it would be no window
        return shape, [dims[i] for i in order], offsets
    offsets = list(offsets)
    for d, known in zip(dims, _mixed(owner, "static_offsets", 0), strict=True):
        offsets[d] = min(offsets[d], known)
    return shape, [dims[i] for i in slices.kept_dims(owner, value)], offsets


def _mixed(op: ir.Operation, name: str, which: int) -> list[int]:
    """What the offsets (0) or sizes (1) of a slice are multiples of."""
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    first = len(op.operands) - sum(segments[-3:]) + sum(segments[-3 : -3 + which] if which else [])
    rest = list(op.operands)[first:]
    static = list(ir.DenseI64ArrayAttr(op.attributes[name]))
    return [multiple(rest.pop(0)) if n == slices.DYNAMIC else pow2_divisor(n) for n in static]


def row_bytes(op: ir.Operation) -> int:
    """Bytes of a row of the memory that a slice (a tensor.extract_slice) is cut from."""
    return _window(op.results[0])[0][-1] * element_bytes(ir.RankedTensorType(op.results[0].type).element_type)


def copy_width(op: ir.Operation) -> int | None:
    """How many elements of a slice (a tensor.extract_slice) one cp.async can copy, of 4, 8 or 16 bytes: None where its
    rows are not contiguous, or not even four bytes of them aligned."""
    element = ir.RankedTensorType(op.results[0].type).element_type
    shape, dims, offsets = _window(op.results[0])
    made_by = op.operands[0].owner
    windows = not isinstance(made_by, ir.Block) and made_by.name == IM2COL
    if windows or storage_type(element) != element or not dims or dims[-1] != len(shape) - 1:
        return None
    kept, size = slices.kept_dims(op, op.results[0]), element_bytes(element)
    bounds = slices.tile_bounds(op.results[0])
    known = min(offsets[-1], pow2_divisor(shape[-1]), _mixed(op, "static_sizes", 1)[kept[-1]], pow2_divisor(bounds[-1]))
    width = min(16 // size, 8, known)
    return width if width * size >= 4 else None
