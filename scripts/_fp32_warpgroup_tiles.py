"""How an FP32 product is cut that warpgroups make of three TF32 products (`mma=wgmma_tf32x3`), or of one
(`mma=wgmma_tf32`)."""

from __future__ import annotations

from dataclasses import replace

from mlirc.errors import MlircError
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.scripts._block_shape import BlockShape, Sizes, is_fp32
from mlirc.targets import Target

# A tile's rows of the operand that comes through registers, and of the one that is split; its slice of K; the
# warpgroups along the first, and along K; and what 32 elements of K take, in clocks of an H200's multiprocessor: the
# tensor cores need 3 / 32 for each sum. These, and what a block costs beside them, what it costs more to divide K, and
# bytes per clock of global memory, of all and of one multiprocessor, are fitted to 96 schedules of 24 products.
_TILES = (
    (128, 128, 32, 2, 1, 1996), (192, 64, 32, 3, 1, 1493), (128, 64, 64, 2, 1, 1068), (64, 64, 64, 1, 2, 608),
    (192, 32, 64, 3, 1, 937), (192, 32, 32, 3, 1, 1138), (128, 32, 64, 2, 1, 747), (64, 32, 64, 1, 2, 434),
    (64, 32, 128, 1, 2, 424),
)  # fmt: skip
# The same of one product, which nobody has measured: what it moves through shared memory (`_one`).
_TILES_ONE = (
    (128, 256, 32, 2), (192, 128, 32, 3), (128, 128, 64, 2), (128, 64, 64, 2), (192, 32, 64, 3), (64, 64, 64, 1),
    (128, 32, 64, 2), (64, 32, 64, 1), (64, 32, 128, 1),
)  # fmt: skip
INSTRUCTIONS = ("wgmma_tf32x3", "wgmma_tf32")
PRODUCTS, SHARED_BYTES = 1024, 128  # of a multiprocessor's tensor cores and of its shared memory, in a clock
BLOCK_CLOCKS, PART_CLOCKS, GLOBAL_BYTES, ARRIVALS = 5300, 1800, 2154, 40
IN_MEMORY, SECOND_CLOCKS = (16, 32), 4000  # parts that a second launch adds, and what that costs more than a cluster
# Of 132 multiprocessors, so many hold the blocks of clusters of a size at once: a cluster lies in one GPC.
_IN_CLUSTERS = {1: 132, 2: 132, 4: 120, 8: 112}
LEAST = 1 << 22  # multiplications
# Elements of K at the least, by how many results there are; and of windows of few channels, which nobody else reads as
# they come.
SHORTEST, STEP = {0: 256, 1 << 22: 128}, 32


def held(size: Sizes, c: ContractionInfo) -> int | None:
    """Which operand comes through registers: the other one's rows run along K. None where neither can."""
    if c.narrow:
        return c.windows_at
    if all(c.along_k):
        return 1 if size.n >= size.m else 0
    return 1 if c.along_k[0] else 0 if c.along_k[1] else None


def pays(size: Sizes, c: ContractionInfo, target: Target) -> bool:
    """Whether this is the faster way."""
    which = held(size, c)
    if not (is_fp32(c) and target.has_wgmma and c.boxes and c.count == 1) or which is None:
        return False
    rows = size.n if which else size.m
    results = size.m * size.n * size.batch
    least = min(k for many, k in SHORTEST.items() if results >= many)
    return rows >= 64 and c.k >= (STEP if c.narrow else least) and results * c.k >= LEAST


def _one(tall: int, wide: int) -> float:
    """Clocks of 32 elements of K in one product: of 128 bytes of every row, both operands are written by copies, the
    rows of one are read once, those of the other read and written to be rounded, and read by each warpgroup's wgmma."""
    lines = 2 * tall + (3 + tall / 64) * wide
    return max(tall * wide * 32 / PRODUCTS, lines * 128 / SHARED_BYTES)


def candidates(
    size: Sizes, c: ContractionInfo, target: Target, tensor_copies: bool, mma: str = "wgmma_tf32x3"
) -> list[tuple[float, BlockShape]]:
    """Every tile and division of K, and how many clocks it takes by this count, the fewest first."""
    which = held(size, c)
    if which is None:
        raise MlircError(f"mma={mma}: rows of one operand must run along k: use {mma.removeprefix('wgmma_')}")
    rows, columns = (size.n, size.m) if which else (size.m, size.n)
    moved = 4 * (size.m * c.k + size.n * c.k + size.m * size.n) * size.batch
    found: list[tuple[float, BlockShape]] = []
    one = ((*tile, 1, _one(*tile[:2])) for tile in _TILES_ONE)
    for tall, most, block_k, along, warps_k, clocks in one if mma == "wgmma_tf32" else _TILES:
        wide = min(most, ceil_div(columns, 8) * 8)
        blocks = size.batch * ceil_div(rows, tall) * ceil_div(columns, wide)
        for parts in (*_IN_CLUSTERS, *IN_MEMORY) if tensor_copies else (1,):
            steps = ceil_div(ceil_div(c.k, block_k), parts)
            if parts > 1 and steps < 2 or parts in IN_MEMORY and blocks * parts > target.sms:
                continue
            slot = (tall + wide) * block_k * 4
            loop = steps * max(clocks * block_k / 32 * (0.3 + 0.7 * wide / most), slot / ARRIVALS)
            each = loop + BLOCK_CLOCKS + (PART_CLOCKS if parts > 1 else 0)
            rounds = ceil_div(blocks * parts, max(target.sms * _IN_CLUSTERS.get(parts, 132) // 132, 1))
            total = max(rounds * each, moved / GLOBAL_BYTES + BLOCK_CLOCKS)
            total += SECOND_CLOCKS + 8 * parts * size.m * size.n / GLOBAL_BYTES if parts in IN_MEMORY else 0
            m, n = (wide, tall) if which else (tall, wide)
            warps = (1, 4 * along) if which else (4 * along, 1)
            copy, stages = ("tma", 8) if tensor_copies else ("cp_async", 4)
            shape = BlockShape(m, n, block_k, *warps, stages, mma, copy=copy, warps_k=warps_k, parts=parts, producers=4)
            found.append((total, replace(shape, through="memory") if parts in IN_MEMORY else shape))
    return sorted(found, key=lambda f: f[0])


def tile(size: Sizes, c: ContractionInfo, target: Target, tensor_copies: bool, mma: str) -> BlockShape:
    """The tile whose blocks finish first by a count of clocks."""
    return candidates(size, c, target, tensor_copies, mma)[0][1]
