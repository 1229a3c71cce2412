"""Pixels of a depthwise convolution by tensor cores (`banded.py`) in shared memory: words of two channels, so that a
lane finds neighbours of a row beside each other. `layouts/bands.py` says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mlirc.mlir import arith, ir, scf, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.layouts.bands import BLOCK, CHANNELS, PAIR, Band
from mlirc.passes.distribute.layouts.registers import WARP, Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.values import Fragment

BATCH = 16  # loads that a thread has under way
T = TypeVar("T")


class Pixels:
    """A block's pixels: `place` is where the first of them lies in the image [n, h, w, c] or [h, w, c]."""

    def __init__(self, em: Emitter, band: Band, image: access.View, place: list[IndexValue]):
        self.em, self.band, self.image, self.place = em, band, image, place
        self.shape = [band.chunks, PAIR * band.chunk_words]
        self.buffer = em.alloc_smem(self.shape, image.element, alignment=128)

    def place_of(self, pair: IndexValue, word: IndexValue) -> list[IndexValue]:
        """Where a pixel's word of a pair of channels lies."""
        em, pairs = self.em, CHANNELS // PAIR
        row = em.add(em.mul(em.rem(pair, pairs), self.band.pitch), word)
        return [em.div(pair, pairs), em.mul(row, PAIR)]

    def read(self, pair: IndexValue, word: IndexValue, count: int) -> ir.Value:
        """Neighbours of two channels."""
        return access.load_elements(self.em, access.View(self.buffer, [], []), self.place_of(pair, word), count * PAIR)

    def fill(self, meanwhile: Callable[[], T]) -> T:
        """The pixels that the tile's windows cover, 8 channels of one by a thread at a time; zeros outside of the
        image. A warp has whole rows, of an image of its own where there are several: what differs from access to access
        is a constant. What `meanwhile` builds, and returns, is computed while the first of them are under way."""
        em, band = self.em, self.band
        em.meet_before_writing(self.buffer)
        apart = band.apart
        image, row = em.rem(em.team.warp, apart), em.div(em.team.warp, apart)
        lines = [
            (em.add(image, i), em.add(row, r), i + apart > band.images, r + band.warps // apart > band.image_rows)
            for i in range(0, band.images, apart)
            for r in range(0, band.image_rows, band.warps // apart)
        ]
        columns = self._columns()
        accesses = [(*line, *column) for line in lines for column in columns]
        chunks = [self._chunk(*a) for a in accesses[:BATCH]]
        found = meanwhile()
        for start in range(0, len(accesses), BATCH):
            for exists, value, chunk, word in chunks or [self._chunk(*a) for a in accesses[start : start + BATCH]]:
                with access.predicated(exists):
                    self._store(value, chunk, word)
            chunks = []
        return found

    def _columns(self) -> list[tuple]:
        """Of each access of a row: (pixel of the row, 8 channels, its word, whether a lane may lie beyond the row)."""
        em, band = self.em, self.band
        chunks = band.chunks
        lane, chunk = em.div(em.lane, chunks), em.rem(em.lane, chunks)
        out = []
        for first in range(0, band.row_words, WARP // chunks):
            pixel = em.add(lane, first)
            word = em.add(em.mul(em.rem(pixel, band.stride), band.columns), em.div(pixel, band.stride))
            out.append((pixel, chunk, word, first + WARP // chunks > band.row_words))
        return out

    def _chunk(
        self, image: IndexValue, row: IndexValue, cut_images: bool, cut_rows: bool,
        pixel: IndexValue, chunk: IndexValue, column: IndexValue, cut: bool,
    ) -> tuple:  # fmt: skip
        """(whether it exists, 8 channels of a pixel, their chunk, the pixel's word)."""
        em, band = self.em, self.band
        exists: bool | ir.Value = True
        for needed, number, count in (
            (cut_images, image, band.images), (cut_rows, row, band.image_rows), (cut, pixel, band.row_words)
        ):  # fmt: skip
            exists = em.both(exists, em.less(number, count)) if needed else exists
        word = em.add(em.add(em.mul(image, band.image_words), em.mul(row, band.row_words)), column)
        *lead, h, w, _ = self.image.shape
        first = em.add(self.place[-3], band.low) if band.whole else self.place[-3]
        y, x = em.add(first, row), em.add(self.place[-2], pixel)
        inside = em.both(exists, within(em, x, w))
        if not band.whole:
            inside = em.both(inside, within(em, y, h))
        at = [y, x, em.add(self.place[-1], em.mul(chunk, 8))]
        if lead:
            n = em.add(self.place[0], image)
            inside = em.both(inside, True if band.images == 1 else em.less(n, lead[0]))
            at = [n, *at]
        return exists, self._loaded(inside, at), chunk, word

    def _store(self, value: ir.Value, chunk: IndexValue, word: IndexValue) -> None:
        """8 channels of a pixel as words of two."""
        em, pair_type = self.em, ir.VectorType.get([PAIR], self.image.element)
        for i in range(CHANNELS // PAIR):
            part = vector.ExtractStridedSliceOp(pair_type, value, [PAIR * i], [PAIR], [1]).result
            at = [chunk, em.mul(em.add(word, i * self.band.pitch), PAIR)]
            access.store_elements(em, access.View(self.buffer, [], []), at, part, PAIR)

    def _loaded(self, inside: bool | ir.Value, at: list[IndexValue]) -> ir.Value:
        em = self.em
        if inside is True:
            return access.load_elements(em, self.image, at, 8)
        t = ir.VectorType.get([8], self.image.element)
        branch = scf.IfOp(em.condition(inside), [t], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp([access.load_elements(em, self.image, at, 8)])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([em.constant(ir.FloatAttr.get(self.image.element, 0.0), 8)])
        return branch.results[0]

    def regrouped(self, frag: Fragment, layout: Layout) -> Fragment:
        """A result of 16 bits in another layout: words of two channels where the pixels were, then 16 bytes of each."""
        em, band = self.em, self.band
        view = access.View(em.seen_as(self.buffer, self.shape, frag.element), [], [])
        em.team.meet()
        own, both = frag.layout, PAIR * band.pairs  # registers of two neighbours of a row
        with access.predicated(access.first_copy(em, own)):
            for r in (r + PAIR * i for r in range(0, own.num_regs, 2 * both) for i in range(band.pairs)):
                pair = em.div(em.team.coordinate(own, own.rank - 1, r), PAIR)
                at = self.place_of(pair, self._pixel(own, r, [None] * own.rank))
                access.store_elements(em, view, at, frag.read([r, r + 1, r + both, r + both + 1]), 2 * PAIR)
        em.team.meet()
        bounds = [*[band.images][4 - own.rank :], band.strips * band.rows, band.blocks * BLOCK, band.channels]
        pieces = []
        for r in range(0, layout.num_regs, layout.piece):
            pixel = self._pixel(layout, r, bounds)
            channel, _ = access.coordinate(em, layout, layout.rank - 1, r, band.channels, layout.piece, False)
            pair = em.div(channel, PAIR)
            words = [
                access.load_elements(em, view, self.place_of(em.add(pair, i), pixel), PAIR)
                for i in range(layout.piece // PAIR)
            ]
            pieces.append(access.join(em, words, PAIR, frag.element, layout.piece))
        return Fragment(em, frag.element, frag.shape, frag.sizes, layout, pieces, layout.piece)

    def _pixel(self, layout: Layout, register: int, bounds: list) -> IndexValue:
        """A register's pixel among those of the tile."""
        em, band = self.em, self.band
        total: IndexValue = 0
        extents = [1, band.strips * band.rows, band.blocks * BLOCK]
        for d, extent in zip(range(layout.rank - 1), extents[4 - layout.rank :], strict=True):
            c = em.team.coordinate(layout, d, register)
            if bounds[d] is not None:
                c, _ = access.coordinate(em, layout, d, register, bounds[d], 1, False)
            total = em.add(em.mul(total, extent), c)
        return total


def within(em: Emitter, index: IndexValue, size: int) -> bool | ir.Value:
    """Whether an index is in [0, size)."""
    if isinstance(index, int):
        return 0 <= index < size
    return arith.CmpIOp(arith.CmpIPredicate.ult, index, em.c(size)).result
