"""`mlirc.tensor_map`: a tensor map of a buffer as an argument of a launch, for kernels that copy by TMA.

    %m = "mlirc.tensor_map"(%buffer) {box = array<i64: 128, 64>, swizzle = 128 : i64}
        : (memref<512x3584xbf16>) -> !llvm.ptr
    gpu.launch_func @k_gpu::@k_0 ... args(%m : !llvm.ptr)

is of the `gpu` level's host functions. `box` is what one copy moves, outermost extent first, as in the memref;
`swizzle` the bytes of its pattern in shared memory, 0 for none. One for im2col copies of an image [N, spatial
dimensions, C] has a box of pixels and channels, and `im2col`: lower corner, upper corner and strides, a number for each
spatial dimension, one after the other. The kernel takes the map as an argument of type
`!llvm.ptr` with the attributes of `map_argument`.
"""

# No `from __future__ import annotations` here: the bindings read the op class's annotations as types.
from collections.abc import Sequence
from typing import Any

from mlirc.dialects.mlirc_dialect import Mlirc, checked
from mlirc.mlir import ext, ir
from mlirc.runtime.tensor_map import MAP_ALIGNMENT, MAP_BYTES, Im2col, TensorMapSpec

TENSOR_MAP = "mlirc.tensor_map"
IM2COL = "im2col"


class TensorMapOp(Mlirc.Operation, name="tensor_map", traits=[ext.Pure]):  # type: ignore
    """A tensor map of a whole memref; see the module's docstring."""

    buffer: ext.Operand[Any]
    box: Any
    swizzle: Any
    result: ext.Result[Any]

    verify_invariants = checked(lambda op: map_spec(op))


def map_spec(op: Any) -> TensorMapSpec:
    """What a `mlirc.tensor_map` says; raises ValueError naming the broken rule."""
    op = op.operation
    memref, result = op.operands[0].type, op.results[0].type
    if not isinstance(memref, ir.MemRefType) or not memref.has_static_shape:
        raise ValueError(f"takes a memref of static shape, not {memref}")
    if memref.affine_map != ir.AffineMap.get_identity(memref.rank, context=op.context):
        raise ValueError(f"takes a memref with identity layout, not {memref}")
    if str(result) != "!llvm.ptr":
        raise ValueError(f"makes a !llvm.ptr, not {result}")
    box, swizzle = op.attributes["box"], op.attributes["swizzle"]
    if not isinstance(box, ir.DenseI64ArrayAttr):
        raise ValueError(f"attribute 'box' must be an array of i64, not {box}")
    if not isinstance(swizzle, ir.IntegerAttr):
        raise ValueError(f"attribute 'swizzle' must be an integer, not {swizzle}")
    spec = TensorMapSpec(
        str(memref.element_type), tuple(memref.shape), tuple(box), ir.IntegerAttr(swizzle).value, _im2col(op)
    )
    if problem := spec.problem():
        raise ValueError(f"of {memref}: {problem}")
    return spec


def _im2col(op: ir.Operation) -> Im2col | None:
    """The attribute `im2col`; raises ValueError for one that is not three numbers for each spatial dimension."""
    if IM2COL not in op.attributes:
        return None
    numbers = op.attributes[IM2COL]
    if not isinstance(numbers, ir.DenseI64ArrayAttr) or len(numbers) % 3:
        raise ValueError(
            f"attribute '{IM2COL}' must be an array of i64, three for each spatial dimension, not {numbers}"
        )
    spatial = len(numbers) // 3
    return Im2col(*(tuple(numbers)[i * spatial : (i + 1) * spatial] for i in range(3)))


def tensor_map(
    buffer: ir.Value,
    box: Sequence[int],
    swizzle: int = 0,
    im2col: Im2col | None = None,
    loc: ir.Location | None = None,
) -> ir.Value:
    """Builds `mlirc.tensor_map` at the current insertion point and returns its result."""
    i64 = ir.IntegerType.get_signless(64)
    attributes = {"box": ir.DenseI64ArrayAttr.get(list(box)), "swizzle": ir.IntegerAttr.get(i64, swizzle)}
    if im2col is not None:
        attributes[IM2COL] = ir.DenseI64ArrayAttr.get([*im2col.lower, *im2col.upper, *im2col.strides])
    pointer = ir.Type.parse("!llvm.ptr")
    return ir.Operation.create(TENSOR_MAP, [pointer], [buffer], attributes, loc=loc).results[0]


def map_argument() -> ir.DictAttr:
    """The attributes of a `gpu.func`'s argument that is a tensor map, by value. The back end adds `nvvm.grid_constant`,
    without which tensor copies would get the address of a copy: MLIR has it on an `llvm.func` only."""
    text = f"{{llvm.align = {MAP_ALIGNMENT} : i64, llvm.byval = !llvm.array<{MAP_BYTES} x i8>}}"
    return ir.DictAttr(ir.Attribute.parse(text))
