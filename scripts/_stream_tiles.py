"""Which products divide the steps of K that tiles leave behind one full wave (`stream_k`), where no knob says so:
those of which a count of clocks says that whole tiles, of any width, lose more than dividing costs.

Dividing costs sums that go through memory and a second launch, and slices that fewer blocks share. Of more waves, or
more than a quarter of one left over, none that was measured gained (benchmarks/results/stream-k-h200.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div, product
from mlirc.scripts._block_shape import ROW_BYTES, BlockShape, Sizes
from mlirc.scripts._split_k_tiles import KNOBS
from mlirc.scripts._tensor_copy_tiles import TILE_CLOCKS, step_clocks
from mlirc.targets import Target

ROWS, COLUMNS = 128, 256  # of the largest tile of two warpgroups
LEAST_STEPS = 128  # none with fewer was measured that the count of clocks would divide, or gained
COSTS = 24_000  # by the count: of what lost so many clocks by whole tiles, all that was measured gained when divided


def streamed(
    tile: BlockShape, kernel: KernelInfo, size: Sizes, c: ContractionInfo, target: Target, given: Mapping[str, Any]
) -> BlockShape:
    """The tile that a product starts from, or the largest one, whose blocks share what one wave leaves; the same where
    knobs are given."""
    whole = tile.parts == 1 and tile.mma == "wgmma" and tile.copy == "tma" and not tile.swap_operands
    if not whole or c.count > 1 or c.chosen or any(given.get(knob) is not None for knob in (*KNOBS, "group", "copy")):
        return tile
    if any(product(r.shape) != size.m * size.n * size.batch for r in kernel.results):
        return tile
    depth = ROW_BYTES // c.element_bytes
    steps, tiles = ceil_div(c.k, depth), _tiles(size, ROWS, COLUMNS)
    left = tiles - target.sms
    if steps < LEAST_STEPS or not 0 < left <= target.sms // 4:
        return tile
    rounds = ceil_div(_tiles(size, tile.block_m, tile.block_n), target.sms)
    now = rounds * (steps * step_clocks(tile.block_m, tile.block_n) + TILE_CLOCKS)
    divided = steps * tiles / target.sms * step_clocks(ROWS, COLUMNS)
    if now - divided < COSTS:
        return tile
    return replace(tile, block_m=ROWS, block_n=COLUMNS, block_k=depth, warps_m=8, warps_n=1, producers=4, stream=1)


def _tiles(size: Sizes, rows: int, columns: int) -> int:
    return size.batch * ceil_div(size.m, rows) * ceil_div(size.n, columns)
