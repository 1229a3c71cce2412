"""Tiles of products with packed weights, of more rows than `packed_rows` takes."""

from __future__ import annotations

from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.scripts._block_shape import BlockShape, Sizes
from mlirc.targets import Target

DIRECT = "mma_direct"  # their instruction
ROWS = 128  # at most: whose sums, and 16 columns of a warp, fit its registers
BYTES = 64 * 1024  # of the ring of the left operand's slices, so that several blocks fit a multiprocessor


def unit_of(bits: int) -> int:
    """Numbers of a block of words of the narrowest plane (`packing.py`): of so many, a thread loads 16 bytes."""
    return 16 * 32 // (bits & -bits)


def packed_tile(size: Sizes, c: ContractionInfo, target: Target) -> BlockShape | None:
    """A block takes all rows, so that each weight is unpacked once, in the fragments of the one warp that has its
    column; None for more rows. Nothing here was measured."""
    if size.m > ROWS or c.count > 1 and size.m > ROWS // 2:
        return None
    rows, block_k = ceil_div(size.m, 8) * 8, min(max(unit_of(c.packed), 128), 256)
    stages = max(min(BYTES // (rows * block_k * 2), 6), 2)
    columns = 64 if size.batch * ceil_div(size.n, 64) >= target.sms else 32
    return BlockShape(rows, columns, block_k, 1, columns // 16, stages, DIRECT)
