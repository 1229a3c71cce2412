"""How an FP32 product is cut that three TF32 products on tensor cores make (`mma=tf32x3`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlirc.schedule.kernel_info import ContractionInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.targets import Target

if TYPE_CHECKING:
    from mlirc.scripts._matmul_tiles import BlockShape, Sizes

# Of one multiprocessor of an H200, in its clocks: FP32 products per clock; bytes that arrive from L2; what a tile costs
# beside its products; bytes per clock of global memory.
PRODUCTS, ARRIVALS, TILE_CLOCKS, GLOBAL_BYTES = 160, 50, 4000, 4.0e12 / 1.8e9
# (block_m, block_n, warps_m, warps_n)
_TILES = (
    (128, 64, 4, 2), (64, 128, 2, 4), (64, 64, 2, 4), (32, 128, 1, 8), (32, 64, 1, 8), (32, 32, 1, 4), (16, 64, 1, 8),
    (16, 32, 1, 4),
)  # fmt: skip


def is_fp32(c: ContractionInfo) -> bool:
    """Whether a product's factors and sums are all f32."""
    return c.a_type == c.b_type == c.acc_type == "f32"


def pays(size: Sizes, c: ContractionInfo, target: Target) -> bool:
    """Whether tensor cores are the faster way: small tiles leave them waiting for operands, so large ones must occupy
    two thirds of the multiprocessors."""
    blocks = size.batch * ceil_div(size.m, 64) * ceil_div(size.n, 64)
    return is_fp32(c) and c.direct and c.k >= 64 and size.m >= 64 and size.n >= 64 and 3 * blocks >= 2 * target.sms


def tile(size: Sizes, c: ContractionInfo, target: Target, tensor_copies: bool) -> BlockShape:
    """The tile whose blocks finish first by a count of clocks."""
    from mlirc.scripts._matmul_tiles import BlockShape

    large = pays(size, c, target)
    moved = 4 * (size.m * c.k + c.count * size.n * c.k + c.count * size.m * size.n) * size.batch
    found = []
    for block_m, block_n, warps_m, warps_n in _TILES:
        if c.count * block_m * block_n > 1024 * warps_m * warps_n or large and block_m < 64:
            continue
        width = c.count * block_n
        step = max(block_m * width / PRODUCTS, (block_m + width) * 4 / ARRIVALS)
        blocks = size.batch * ceil_div(size.m, block_m) * ceil_div(size.n, block_n)
        rounds = ceil_div(blocks, target.sms)
        clocks = max(rounds * (c.k * step + TILE_CLOCKS), moved / GLOBAL_BYTES + TILE_CLOCKS)
        block_k = 32 if block_m >= 64 else 64
        copy = "tma" if tensor_copies else "cp_async"
        shape = BlockShape(
            block_m, block_n, block_k, warps_m, warps_n, 8 if tensor_copies else 4, "tf32x3", copy=copy, store="vector"
        )
        found.append((clocks, -block_m * block_n, shape))
    return min(found, key=lambda f: f[:2])[2]
