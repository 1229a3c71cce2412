"""How an FP32 product is cut that three TF32 products on tensor cores make (`mma=tf32x3`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlirc.errors import MlircError
from mlirc.schedule.kernel_info import ContractionInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.targets import Target

if TYPE_CHECKING:
    from mlirc.scripts._matmul_tiles import BlockShape, Sizes

# Of one multiprocessor of an H200, in its clocks: FP32 products per clock; what a tile costs beside its products; bytes
# per clock of global memory, of all. Fitted to some forty schedules of ten products.
PRODUCTS, TILE_CLOCKS, GLOBAL_BYTES = 146, 4000, 4.0e12 / 1.8e9
# block_m, block_n, block_k, warps_m, warps_n, warps_k, and how close to PRODUCTS it comes. Few tiles leave room for
# warps that share out k: they read every element of shared memory once.
_TILES = (
    (128, 64, 32, 4, 2, 1, 1.0), (64, 64, 64, 2, 2, 2, 0.87), (64, 32, 64, 2, 1, 4, 0.87), (32, 64, 64, 1, 2, 4, 0.8),
    (32, 32, 128, 1, 1, 8, 0.75), (32, 32, 64, 1, 2, 4, 0.6), (16, 32, 128, 1, 1, 8, 0.5),
    (16, 32, 64, 1, 4, 2, 0.3),
)  # fmt: skip
SUMS = 1024  # of a warp: as many accumulators, and what is read for them, fit the registers


def is_fp32(c: ContractionInfo) -> bool:
    """Whether a product's factors and sums are all f32."""
    return c.a_type == c.b_type == c.acc_type == "f32"


def pays(size: Sizes, c: ContractionInfo, target: Target) -> bool:
    """Whether tensor cores are the faster way, as measured: where tiles of 64 x 64 occupy two thirds of the
    multiprocessors. Smaller products wait for their operands, and scalar FMA is as fast."""
    blocks = size.batch * ceil_div(size.m, 64) * ceil_div(size.n, 64)
    large = size.m >= 64 and size.n >= 64 and 3 * blocks >= 2 * target.sms
    return is_fp32(c) and c.direct and c.count <= 2 and c.k >= 64 and large


def tile(size: Sizes, c: ContractionInfo, target: Target, tensor_copies: bool) -> BlockShape:
    """The tile whose blocks finish first by a count of clocks; raises MlircError for too many products in one loop."""
    from mlirc.scripts._matmul_tiles import BlockShape

    large = c.count == 1 and pays(size, c, target)
    moved = 4 * (size.m * c.k + c.count * size.n * c.k + c.count * size.m * size.n) * size.batch
    found = []
    for block_m, block_n, block_k, warps_m, warps_n, warps_k, rate in _TILES:
        sums = c.count * block_m * block_n
        if sums > SUMS * warps_m * warps_n or large and block_m < 64:
            continue
        rounds = ceil_div(size.batch * ceil_div(size.m, block_m) * ceil_div(size.n, block_n), target.sms)
        clocks = max(rounds * (c.k * sums / (PRODUCTS * rate) + TILE_CLOCKS), moved / GLOBAL_BYTES + TILE_CLOCKS)
        copy, stages = ("tma", 8) if tensor_copies else ("cp_async", 4)
        shape = BlockShape(block_m, block_n, block_k, warps_m, warps_n, stages, "tf32x3", copy=copy, warps_k=warps_k)
        found.append((clocks, -block_m * block_n, shape))
    if not found:
        raise MlircError(f"mma=tf32x3: {c.count} products that share a loop: use fma")
    return min(found, key=lambda f: f[:2])[2]
