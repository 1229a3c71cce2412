"""Which products divide K, where no knob says so: those whose tiles are fewer than multiprocessors. Tiles and parts are
the fastest of those measured on an H200 (benchmarks/results/split-k-h200.md); for products unlike those, the fastest by
a count of clocks (`_split_k_clocks.py`), where that is far less.

Blocks of a cluster start together: where one takes most of a multiprocessor's shared memory, clusters of four and eight
leave some multiprocessors idle, or wait. So rings are short there, and two blocks fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div, product
from mlirc.scripts import _fp32_tiles
from mlirc.scripts._block_shape import BlockShape, Sizes
from mlirc.scripts._split_k_clocks import IN_CLUSTERS, clocks, resident, slice_bytes
from mlirc.scripts._warp_tiles import FMA_TILES, TENSOR_CORE_TILES
from mlirc.targets import Target

KNOBS = (
    "block_m", "block_n", "block_k", "warps_m", "warps_n", "warps_k", "mma", "store", "parts", "through", "persist",
    "cluster", "stream",
)  # fmt: skip


def divided(
    tile: BlockShape, kernel: KernelInfo, size: Sizes, c: ContractionInfo, target: Target, given: Mapping[str, Any],
    tensor_copies: bool,
) -> BlockShape:  # fmt: skip
    """The tile that a product starts from, or another one whose K is divided; the same where knobs are given."""
    if any(given.get(knob) is not None for knob in KNOBS) or c.count > 1:
        return tile
    if any(product(r.shape) != size.m * size.n * size.batch for r in kernel.results):
        return tile
    found, half = tile, c.a_type in ("bf16", "f16")
    if tensor_copies and half and tile.mma == "mma" and tile.block_m == 16:
        found = _few_rows(tile, size, c, target)
    elif tensor_copies and half and tile.mma == "wgmma" and size.m <= 128:
        found = _warpgroups(tile, size, c, target)
    elif tensor_copies and c.a_type == "f32" and kernel.fp32 != "ieee" and c.direct and size.m > 16:
        found = _fp32(tile, size, c, target, kernel.fp32)
    found = found if found.parts > 1 else _through_memory(found, size, c, target.sms) or found
    fp32 = kernel.fp32 if (tensor_copies or c.alignable) and c.direct and size.m > 16 else "ieee"
    return _counted(found, size, c, target, fp32)


FASTER = 0.75  # of the clocks of what was measured, or is not divided: a count is off by less
_COUNTED = {"mma": ("bf16", "f16"), "wgmma": ("bf16", "f16"), "fma": ("f32",)}


def _counted(found: BlockShape, size: Sizes, c: ContractionInfo, target: Target, fp32: str) -> BlockShape:
    """The division that takes the fewest clocks, or what was found, if that does not take many more. `fp32`: how tensor
    copies' FP32 products may be made."""
    few = 2 * _tiles(size, 64, 64) <= target.sms and c.k >= 1024 and found.through == "cluster"
    if not few or c.packed or c.a_type != c.b_type or c.a_type not in _COUNTED.get(found.mma, ()):
        return found
    best = min(_divisions(found, size, c, target, fp32), key=lambda s: clocks(s, size, c, target), default=found)
    return best if clocks(best, size, c, target) < FASTER * clocks(found, size, c, target) else found


def _divisions(found: BlockShape, size: Sizes, c: ContractionInfo, target: Target, fp32: str) -> Iterator[BlockShape]:
    """Tiles that may be divided, each in as many parts as clusters have blocks, or, through memory, as fill the
    multiprocessors once or some times."""
    clusters = IN_CLUSTERS if target.has_clusters else {}
    for tile in _tiles_like(found, size, c, target, fp32):
        steps, room = ceil_div(c.k, tile.block_k), resident(tile, c, target)
        tiles = _tiles(size, tile.block_m, tile.block_n)
        together = (p for p, most in clusters.items() if 1 < p <= steps and tiles * p <= most * target.sms)
        yield from (replace(tile, parts=p, through="cluster") for p in together)
        fills = {times * target.sms // tiles for times in range(1, room + 1)}
        yield from (replace(tile, parts=p, through="memory") for p in sorted(fills) if 2 <= p <= steps)


def _tiles_like(found: BlockShape, size: Sizes, c: ContractionInfo, target: Target, fp32: str) -> Iterator[BlockShape]:
    """The tile as it is, and others for the same instruction and the same copies, of no more rows than twice the
    product's."""
    yield replace(found, parts=1, store="vector")
    if found.copy == "tma" and found.mma == "wgmma":
        for block_m, block_n in ((64, 64), (64, 128), (128, 64), (128, 128)):
            tile = replace(found, block_m=block_m, block_n=block_n, warps_m=block_m // 16, warps_n=1, store="vector")
            most = (target.max_smem - 1024) // slice_bytes(tile, c)
            if block_m < 2 * size.m:
                yield from (replace(tile, stages=s) for s in sorted({min(6, most), min(8, most)}))
    elif c.a_type == "f32" and fp32 != "ieee":
        tiles = [tile for tile in _fp32_tiles.tiles(fp32) if tile.block_m < 2 * size.m]
        if c.boxes:
            yield from tiles
        else:  # whose slices are copied 4 bytes at a time; where tiles are large, one block waits for them
            few = (tile for tile in tiles if tile.block_m * tile.block_n <= 64 * 64)
            yield from (replace(tile, copy="cp_async", stages=4) for tile in few)
    elif found.copy == "cp_async" and found.mma in ("mma", "fma"):
        for tile in TENSOR_CORE_TILES if found.mma == "mma" else FMA_TILES:
            if tile.block_m < 2 * size.m:
                yield tile


def _tiles(size: Sizes, rows: int, columns: int) -> int:
    return size.batch * ceil_div(size.m, rows) * ceil_div(size.n, columns)


def _through_memory(shape: BlockShape, size: Sizes, c: ContractionInfo, blocks: int) -> BlockShape | None:
    """A tile in as many parts as make so many blocks, each of 1024 elements of K or more; None where K is short or
    tiles many, and a cluster's parts are enough."""
    parts = min(blocks // _tiles(size, shape.block_m, shape.block_n), c.k // 1024)
    return replace(shape, parts=parts, through="memory") if parts >= 16 else None


def _few_rows(tile: BlockShape, size: Sizes, c: ContractionInfo, target: Target) -> BlockShape:
    """At most 16 rows: tiles of 64 columns in four parts or eight, of three slices or more. Two parts gain nothing."""
    tiles, steps = _tiles(size, 16, 64), ceil_div(c.k, 64)
    shape = replace(tile, block_n=64, warps_n=4 if c.panels else 8, stages=8)
    parts = next((p for p in (8, 4) if tiles * p <= target.sms and steps >= 3 * p), 1)
    memory = _through_memory(shape, size, c, target.sms // 2)
    return memory or (replace(shape, parts=parts) if parts > 1 else tile)


def _warpgroups(tile: BlockShape, size: Sizes, c: ContractionInfo, target: Target) -> BlockShape:
    """17 to 128 rows, of 16 bits: bound by reading the right operand."""
    steps = ceil_div(c.k, 64)
    shape = replace(tile, block_m=64, block_n=64, warps_m=4, stages=8)
    memory = _through_memory(shape, size, c, target.sms // 2)
    if memory:
        return memory
    if size.m < 64 and _tiles(size, 64, 128) * 4 <= target.sms and steps >= 32:
        return replace(shape, block_n=128, parts=4)
    if size.m > 64:
        twice = _tiles(size, 128, 64) * 2 <= target.sms and steps >= 128
        return replace(shape, block_m=128, warps_m=8, parts=2) if twice else tile
    parts = next((p for p in (8, 4, 2) if _tiles(size, 64, 64) * p <= target.sms and steps >= 8 * p), 1)
    return replace(shape, stages=8 if parts == 2 else 6, parts=parts) if parts > 1 else tile


def _fp32(tile: BlockShape, size: Sizes, c: ContractionInfo, target: Target, mma: str) -> BlockShape:
    """More than 16 rows of f32: long K with few tiles, by three TF32 products or one (`mma`). What a cluster divides is
    decided with the tile (`_fp32_warpgroup_tiles.py`)."""
    shape = replace(tile, block_n=64, warps_n=2, mma=mma, copy="tma", stages=8, producers=1, parts=1)
    if size.m > 64:
        large = replace(shape, block_m=128, block_k=32, warps_m=4, warps_k=1)
        return _through_memory(large, size, c, 2 * target.sms) or tile
    small = replace(shape, block_m=64, block_k=64, warps_m=2, warps_k=2)
    return _through_memory(small, size, c, target.sms) or tile
