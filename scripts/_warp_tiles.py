"""Tiles of products whose warps copy the slices that they compute with ahead themselves."""

from __future__ import annotations

from mlirc.schedule.verbs import ceil_div
from mlirc.scripts._block_shape import BlockShape

# Fastest of some twenty each on an H200, for the layers of TinyLlama-1.1B at 1, 128 and 512 tokens and for 4096^3,
# from the most reuse of operands to the most blocks.
TENSOR_CORE_TILES = (
    BlockShape(128, 128, 64, 2, 2, 3),
    BlockShape(128, 64, 64, 2, 2, 4),
    BlockShape(64, 64, 64, 2, 2, 4),
    BlockShape(32, 64, 128, 1, 4, 4),
    BlockShape(32, 32, 128, 2, 2, 4),
)
# The same for two products that share their left operand and their loop.
_TENSOR_CORES_TWICE = (
    BlockShape(128, 64, 64, 2, 2, 3),
    BlockShape(64, 64, 64, 2, 2, 4),
    BlockShape(64, 32, 64, 2, 1, 4),
    BlockShape(32, 32, 128, 1, 2, 4),
)
# Warpgroups, where the target has them; where none of these fills the machine, the tiles above do better.
_WARPGROUPS = (
    BlockShape(128, 256, 64, 8, 1, 4, "wgmma"),
    BlockShape(128, 128, 64, 8, 1, 5, "wgmma"),
    BlockShape(128, 64, 64, 8, 1, 6, "wgmma"),
)
_WARPGROUPS_TWICE = (
    BlockShape(128, 96, 64, 8, 1, 4, "wgmma"),
    BlockShape(128, 64, 64, 8, 1, 4, "wgmma"),
)
# Scalar FMA: eight by eight sums per thread where the shape allows.
FMA_TILES = (
    BlockShape(128, 64, 32, 4, 1, 2, "fma"),
    BlockShape(64, 32, 32, 4, 1, 3, "fma"),
    BlockShape(32, 32, 64, 2, 2, 4, "fma"),
    BlockShape(16, 32, 128, 1, 4, 4, "fma"),
    BlockShape(4, 16, 128, 1, 2, 4, "fma"),
)
_FMA_TWICE = (
    BlockShape(64, 64, 32, 2, 2, 2, "fma"),
    BlockShape(32, 32, 64, 2, 2, 2, "fma"),
    BlockShape(16, 32, 64, 1, 4, 2, "fma"),
    BlockShape(4, 16, 128, 1, 2, 2, "fma"),
)


def few_rows(n: int, k: int, count: int) -> BlockShape:
    """At most 16 rows: bound by reading the right operand, so deep slices of it and many blocks."""
    if count > 1:
        return BlockShape(16, 32, 128, 1, 2, 4)
    return BlockShape(16, 16, 256, 1, 2, 6) if k >= 4096 and n <= 8192 else BlockShape(16, 32, 256, 1, 4, 6)


def warpgroup_tile(m: int, n: int, batch: int, count: int, sms: int) -> BlockShape | None:
    """The largest warpgroup tile whose blocks fill the machine (twice for the largest ones); None if no tile's do."""
    if m <= 64:
        return None
    tiles = _WARPGROUPS if count == 1 else _WARPGROUPS_TWICE if count == 2 else ()
    for t, enough in zip(tiles, (2.0, 1.0, 0.66) if count == 1 else (1.33, 0.66), strict=False):
        if batch * ceil_div(m, t.block_m) * ceil_div(n, t.block_n) >= enough * sms:
            return t
    return None


def default_tile(
    m: int, n: int, k: int, batch: int, count: int, half: bool, sms: int, most_sums: int = 0
) -> BlockShape:
    """The tile with the most reuse of operands that still keeps two thirds of the multiprocessors busy, else the one
    with the most blocks. `count` products share the loop; a thread has room for `most_sums` (0: for all)."""
    if half and m <= 16:
        return few_rows(n, k, count)
    one, several = (TENSOR_CORE_TILES, _TENSOR_CORES_TWICE) if half else (FMA_TILES, _FMA_TWICE)
    tiles = one if count == 1 else several
    rows = max(1 << (m - 1).bit_length(), 4)
    least = 16 if m > 8 else 1
    fitting = [t for t in tiles if least <= t.block_m <= rows and _has_room(t, count, most_sums)] or [tiles[-1]]
    for t in fitting:
        if 3 * batch * ceil_div(m, t.block_m) * ceil_div(n, t.block_n) >= 2 * sms:
            return t
    return fitting[-1]


def _has_room(tile: BlockShape, count: int, most_sums: int) -> bool:
    return not most_sums or count * tile.block_m * tile.block_n <= 32 * most_sums * tile.warps_m * tile.warps_n
