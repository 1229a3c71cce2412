"""How a depthwise convolution by mma.sync (`tiles/banded.py`) lies over the lanes and warps of a block, and in shared
memory: plain data, which scripts ask for, too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from mlirc.passes.distribute.layouts.registers import WARP, Factor, Layout, lane, pow2_ceil, reg, warp

BLOCK = 8  # pixels along a row: n of an instruction
BLOCKS = 16  # m of an instruction
DEPTH = 16  # k of an instruction
PAIR = 2  # channels of a word
CHANNELS = 8  # of a chunk of 16 bytes


@dataclass(frozen=True)
class Band:
    """How a block's tile of results, `images` of `height` x `width` pixels, is laid over instructions: each lane has
    `rows` rows of a block of 8 pixels, of `pairs` times two channels, one after the other."""

    images: int
    height: int
    width: int
    channels: int
    rows: int
    window: tuple[int, int]
    stride: int
    whole: int  # rows of the image that a tile of all rows has in shared memory, 0 for another tile
    low: int
    pairs: int = 1

    @property
    def blocks(self) -> int:
        """Blocks of 8 pixels in a row, rounded to a power of two."""
        return pow2_ceil(-(-self.width // BLOCK))

    @property
    def strips(self) -> int:
        """Strips of rows, rounded to a power of two."""
        return pow2_ceil(-(-self.height // self.rows))

    @property
    def m(self) -> int:
        """Blocks of pixels that a warp computes at once."""
        return pow2_ceil(self.images) * self.strips * self.blocks

    @property
    def warps(self) -> int:
        return self.channels // (PAIR * self.pairs)

    @property
    def chunks(self) -> int:
        """16 bytes of channels."""
        return self.channels // CHANNELS

    @cached_property
    def layout(self) -> Layout:
        """Where the sums are, dims (n, p, q, c): block m of lane l and register half h is l / 4 + 8 h."""
        q, p = self._digits(self.blocks, 1), self._digits(self.strips, self.blocks)
        n = self._digits(pow2_ceil(self.images), self.blocks * self.strips)
        return Layout.of(n, (*p, reg(self.rows)), (*q, lane(4), reg(2)), (reg(self.pairs), warp(self.warps), reg(PAIR)))

    def _digits(self, count: int, before: int) -> tuple[Factor, ...]:
        """Factors of the bits of m from `before` on: the first three are lanes."""
        lanes = min(count, max(8 // before, 1))
        return reg(count // lanes), lane(lanes, 4 * before if lanes > 1 else 1)

    # -- shared memory, in words of two channels

    @property
    def columns(self) -> int:
        """Words of a phase of a row: those that all blocks read."""
        return BLOCK * (self.blocks - 1) + self.reach

    @property
    def reach(self) -> int:
        """Columns of a phase that a block of 8 pixels reads, in whole loads of four."""
        return -(-(BLOCK + self.taps(0) - 1) // 4) * 4

    @property
    def image_rows(self) -> int:
        """Rows of an image in shared memory."""
        if self.whole:
            return self.whole
        return (self.strips * self.rows - 1) * self.stride + self.window[0]

    @property
    def row_words(self) -> int:
        return self.stride * self.columns

    @property
    def image_words(self) -> int:
        """Words of an image, such that two blocks of pixels of two images lie in different banks."""
        words = self.image_rows * self.row_words
        return words + (16 - words) % 32 if self.blocks * self.strips == 1 else words

    @property
    def pitch(self) -> int:
        """Words of two channels: of the pixels, or of the results that come in their place."""
        words = max(self.images * self.image_words, self.images * self.strips * self.rows * self.blocks * BLOCK)
        return -(-words // 4) * 4

    @property
    def chunk_words(self) -> int:
        """Words of a chunk's channels, such that the chunks of a warp's pixels lie in different banks."""
        words = CHANNELS // PAIR * self.pitch
        return words + (WARP // self.chunks // 4 * 4 - words) % WARP

    @property
    def bytes(self) -> int:
        """Shared memory of a block."""
        return 4 * self.chunks * self.chunk_words

    @property
    def apart(self) -> int:
        """Warps that fill different images."""
        return math.gcd(self.warps, pow2_ceil(self.images))

    @property
    def accesses(self) -> int:
        """Chunks of 8 channels that a lane brings to shared memory."""
        lines = -(-self.images // self.apart) * -(-self.image_rows // (self.warps // self.apart))
        return lines * -(-self.row_words * self.chunks // WARP)

    def taps(self, phase: int) -> int:
        """Taps of a row of the window that read the columns of a phase."""
        return len(range(phase, self.window[1], self.stride))
