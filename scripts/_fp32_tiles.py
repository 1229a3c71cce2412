"""How an FP32 product is cut that TF32 products on tensor cores make: three (`mma=tf32x3`), or one (`mma=tf32`)."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.scripts import _fp32_warpgroup_tiles
from mlirc.scripts._block_shape import BlockShape, Sizes, is_fp32
from mlirc.targets import Target

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
MOST_PRODUCTS = 8  # that share a loop and fit the registers
SUMS = 1024  # of a warp: as many accumulators, and what is read for them, fit the registers


def rate(shape: BlockShape) -> float:
    """FP32 products in a clock of a tile, by three TF32 products."""
    same = (t[-1] for t in _TILES if t[:3] == (shape.block_m, shape.block_n, shape.block_k))
    return PRODUCTS * next(same, 0.6)


def tiles(mma: str) -> list[BlockShape]:
    """All tiles, as tensor copies bring their slices."""
    return [BlockShape(m, n, k, wm, wn, 8, mma, copy="tma", warps_k=wk) for m, n, k, wm, wn, wk, _ in _TILES]


def pays(size: Sizes, c: ContractionInfo, target: Target) -> bool:
    """Whether tensor cores are the faster way, as measured: where tiles of 64 x 64 occupy two thirds of the
    multiprocessors. Smaller products wait for their operands, and scalar FMA is as fast."""
    blocks = size.batch * ceil_div(size.m, 64) * ceil_div(size.n, 64)
    large = size.m >= 64 and size.n >= 64 and 3 * blocks >= 2 * target.sms
    return is_fp32(c) and c.direct and c.count <= 2 and c.k >= 64 and large


def instruction(size: Sizes, c: ContractionInfo, target: Target, fp32: str, tensor_copies: bool) -> str | None:
    """The instruction of TF32 products that a product should take, by the user's choice; None for others."""
    if fp32 == "tf32" and is_fp32(c) and c.count <= MOST_PRODUCTS:
        return "wgmma_tf32" if tensor_copies and _fp32_warpgroup_tiles.pays(size, c, target) else "tf32"
    if fp32 != "tf32x3":
        return None
    if tensor_copies and _fp32_warpgroup_tiles.pays(size, c, target):
        return "wgmma_tf32x3"
    return "tf32x3" if pays(size, c, target) else None


def tile(size: Sizes, c: ContractionInfo, target: Target, tensor_copies: bool, mma: str) -> BlockShape:
    """The tile whose blocks finish first by a count of clocks, of three products (`mma`: `tf32x3`) or, which nobody has
    measured, of one; raises MlircError for too many products in one loop."""
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
        shape = BlockShape(block_m, block_n, block_k, warps_m, warps_n, stages, mma, copy=copy, warps_k=warps_k)
        found.append((clocks, -block_m * block_n, shape))
    if not found:
        raise MlircError(f"mma={mma}: {c.count} products that share a loop: use fma")
    return min(found, key=lambda f: f[:2])[2]
