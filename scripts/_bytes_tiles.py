"""How a product of 8-bit operands is cut that `mma.sync` makes (`mma=mma8`), and which ones it does by itself."""

from __future__ import annotations

from dataclasses import replace

from mlirc.passes.distribute import instructions
from mlirc.passes.distribute.instructions.mma8 import WIDENED
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.scripts._block_shape import BlockShape, Sizes, element_types, is_short
from mlirc.scripts._warp_tiles import default_tile
from mlirc.targets import Target


def takes(kernel: KernelInfo, target: Target) -> bool:
    """Whether a product whose knobs name no instruction, and that warpgroups do not make, is one of `mma8`. On sm_90
    ptxas makes 16-bit products of those of 8-bit floats, as exact as any; what others keep of a sum is not said."""
    c = kernel.contraction
    assert c is not None
    types = element_types(c)
    if instructions.refusal("mma8", types, target) or not c.casts <= set(WIDENED) or c.count * _sums(c) > 4:
        return False
    return types.sums == "i32" or target.cc == 90 or is_short(kernel)


def _sums(c: ContractionInfo) -> int:
    """Registers of `mma8` for each sum: 8-bit floats have those of a slice beside the running ones."""
    return 2 if c.acc_type == "f32" else 1


def tile(size: Sizes, c: ContractionInfo, target: Target) -> BlockShape:
    """That of 16-bit operands, with slices of as many bytes, and more warps where each has two sums for one. Nobody has
    measured others."""
    if size.m <= 16:
        return BlockShape(16, 32, 256, 1, 2, 6, "mma8")
    sums = c.count * _sums(c)
    shape = default_tile(size.m, size.n, c.k, size.batch, sums, True, target.sms)
    if shape.block_m == 128 and sums > 1:
        shape = replace(shape, block_m=128 if sums == 2 else 64, warps_m=4 if sums == 2 else 2)
    return replace(shape, block_k=2 * shape.block_k, mma="mma8")
