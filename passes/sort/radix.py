"""Rows of any length: stable passes over digits of 8 bits, of three launches each.

    count     a block for each tile of a row: how often the tile has each digit
    add up    a warp for each digit of a row: in place of each tile's count, what the tiles before it have
    move      a block for each tile: elements in the order of their digits, by way of shared memory to the other buffers

Within a tile an element's place among those of its digit is that of its warp, of the warp's elements before it, and of
its lane, which the lanes that have the digit tell each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.mlir import arith, gpu, ir, math, memref, nvvm, scf
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.sort.keys import Keys, Pair
from mlirc.passes.sort.select import exclusive, lanes_until

DIGIT, DIGITS = 8, 1 << 8
WARPS, ELEMENTS = 16, 8  # of a block, and of a thread
TILE = 32 * WARPS * ELEMENTS
ADDING = 8  # warps of a block that adds up
AT_ONCE = 8  # counts of a lane whose loads are under way together


@dataclass(frozen=True)
class Buffers:
    """What a pass reads and writes: rows of keys and places, or the row itself (`x`) for the first one; `counts`
    [rows, DIGITS, tiles] and `totals` [rows, DIGITS] of i32; results for the last one."""

    x: ir.Value
    source: list[ir.Value] | None
    target: list[ir.Value] | None
    counts: ir.Value
    totals: ir.Value
    results: list[ir.Value]


def tiles(length: int) -> int:
    return -(-length // TILE)


class Pass:
    """One block of a launch of the pass over the digit from bit `first` on."""

    def __init__(self, em: Emitter, keys: Keys, buffers: Buffers, first: int) -> None:
        self.em, self.keys, self.b, self.first = em, keys, buffers, first
        self.tiles = tiles(keys.info.length)

    def _own_tile(self) -> tuple[IndexValue, IndexValue]:
        """The block's row, and its tile in that."""
        em, rows = self.em, self.keys.info.rows
        block = gpu.BlockIdOp(gpu.Dimension.x).result if rows * self.tiles > 1 else 0
        return em.div(block, self.tiles), em.rem(block, self.tiles)

    def _load(self, row: IndexValue, at: IndexValue) -> Pair:
        em = self.em
        at = em.min(at, self.keys.info.length - 1)
        if self.b.source is None:
            return Pair(self.keys.load(self.b.x, row, at), self.keys.place(at))
        return Pair(*(memref.LoadOp(s, [em.value(row), em.value(at)]).result for s in self.b.source))

    def _key(self, row: IndexValue, at: IndexValue) -> ir.Value:
        em = self.em
        at = em.min(at, self.keys.info.length - 1)
        if self.b.source is None:
            return self.keys.load(self.b.x, row, at)
        return memref.LoadOp(self.b.source[0], [em.value(row), em.value(at)]).result

    def _places(self, tile: IndexValue) -> list[IndexValue]:
        """The thread's elements, those of its warp one behind the other."""
        em = self.em
        first = em.add(em.mul(tile, TILE), em.add(em.mul(em.block_warp, 32 * ELEMENTS), em.lane))
        return [em.add(first, 32 * i) for i in range(ELEMENTS)]

    def _inside(self, at: IndexValue) -> bool | ir.Value:
        length = self.keys.info.length
        return True if length % TILE == 0 else self.em.less(at, length)

    # -- launches

    def count(self) -> None:
        em, keys = self.em, self.keys
        row, tile = self._own_tile()
        counts = em.alloc_smem([DIGITS], keys.i32)
        digit = em.condition(em.less(em.block_thread, DIGITS))
        with predicated(digit):
            memref.StoreOp(keys.number(0), counts, [em.block_thread])
        gpu.BarrierOp()
        places = self._places(tile)
        found = [keys.digit(self._key(row, at), self.first, DIGIT) for at in places]
        for at, value in zip(places, found, strict=True):
            with predicated(em.condition(self._inside(at))):
                kind = arith.AtomicRMWKind.addi
                memref.AtomicRMWOp(kind, keys.number(1), counts, [keys.index(value)])
        gpu.BarrierOp()
        with predicated(digit):
            value = memref.LoadOp(counts, [em.block_thread]).result
            memref.StoreOp(value, self.b.counts, [em.value(v) for v in (row, em.block_thread, tile)])

    def add_up(self) -> None:
        em, keys = self.em, self.keys
        block = gpu.BlockIdOp(gpu.Dimension.x).result
        number = em.add(em.mul(block, ADDING), em.block_warp)
        row, digit = em.div(number, DIGITS), em.rem(number, DIGITS)
        step = min(AT_ONCE, -(-self.tiles // 32))
        loop = scf.ForOp(em.c(0), em.c(self.tiles), em.c(32 * step), [keys.number(0)])
        with ir.InsertionPoint(loop.body):
            first = em.add(loop.induction_variable, em.lane)
            own = [em.add(first, 32 * i) for i in range(step)]
            total = loop.inner_iter_args[0]
            for tile, value in zip(own, [self._counted(row, digit, tile) for tile in own], strict=True):
                until = lanes_until(em, keys, value)
                with predicated(em.condition(em.less(tile, self.tiles))):
                    front = arith.AddIOp(arith.SubIOp(until, value).result, total).result
                    memref.StoreOp(front, self.b.counts, [em.value(v) for v in (row, digit, tile)])
                total = arith.AddIOp(total, em.shuffle_from(until, 31)).result
            scf.YieldOp([total])
        with predicated(em.condition(em.equal(em.lane, 0))):
            memref.StoreOp(loop.results[0], self.b.totals, [em.value(row), em.value(digit)])

    def _counted(self, row: IndexValue, digit: IndexValue, tile: IndexValue) -> ir.Value:
        """A tile's count of a digit; 0 behind the last tile."""
        em, keys = self.em, self.keys
        branch = scf.IfOp(em.condition(em.less(tile, self.tiles)), [keys.i32], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp([memref.LoadOp(self.b.counts, [em.value(v) for v in (row, digit, tile)]).result])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([keys.number(0)])
        return branch.results[0]

    def move(self) -> None:
        em, keys = self.em, self.keys
        row, tile = self._own_tile()
        places = self._places(tile)
        pairs = [self._load(row, at) for at in places]
        # Those behind the row's end have a digit of their own, the last one.
        digits = [
            arith.SelectOp(
                em.condition(self._inside(at)), keys.digit(p.key, self.first, DIGIT), keys.number(DIGITS)
            ).result
            for at, p in zip(places, pairs, strict=True)
        ]
        before, starts, moved = self._rank(digits, row, tile)
        self._leave(pairs, before, starts, moved, row, tile)

    def _rank(
        self, digits: list[ir.Value], row: IndexValue, tile: IndexValue
    ) -> tuple[list[ir.Value], ir.Value, ir.Value]:  # fmt: skip
        """The place of each of the thread's elements in the sorted tile; and arrays in shared memory: what must be
        added to the place in the sorted tile of an element of a digit, to have that in the row; and the counts."""
        em, keys = self.em, self.keys
        counts = em.alloc_smem([WARPS, DIGITS + 1], keys.i32)
        for i in range(-(-WARPS * (DIGITS + 1) // (32 * WARPS))):
            at = em.add(em.block_thread, i * 32 * WARPS)
            with predicated(em.condition(em.less(at, WARPS * (DIGITS + 1)))):
                where = [em.value(em.div(at, DIGITS + 1)), em.value(em.rem(at, DIGITS + 1))]
                memref.StoreOp(keys.number(0), counts, where)
        gpu.BarrierOp()
        ranks = [self._rank_in_warp(counts, digit) for digit in digits]
        gpu.BarrierOp()
        moved = em.alloc_smem([DIGITS + 1], keys.i32)
        self._add_warps(counts, moved, row, tile)
        gpu.BarrierOp()
        found = []
        for digit, rank in zip(digits, ranks, strict=True):
            front = memref.LoadOp(counts, [em.value(em.block_warp), keys.index(digit)]).result
            found.append(arith.AddIOp(front, rank).result)
        return found, counts, moved

    def _rank_in_warp(self, counts: ir.Value, digit: ir.Value) -> ir.Value:
        """How many of the warp's elements before this one have its digit; they are counted."""
        em, keys = self.em, self.keys
        where = [em.value(em.block_warp), keys.index(digit)]
        same = nvvm.match_sync(
            em.full_mask(), digit, ir.Attribute.parse("#nvvm<match_sync_kind any>"), results=[keys.i32]
        )
        below = arith.SubIOp(arith.ShLIOp(keys.number(1), keys.place(em.lane)).result, keys.number(1)).result
        rank = math.ctpop(arith.AndIOp(same, below).result)
        seen = memref.LoadOp(counts, where).result
        em.warp_barrier()
        with predicated(arith.CmpIOp(arith.CmpIPredicate.eq, rank, keys.number(0)).result):
            memref.StoreOp(arith.AddIOp(seen, math.ctpop(same)).result, counts, where)
        em.warp_barrier()
        return arith.AddIOp(seen, rank).result

    def _add_warps(self, counts: ir.Value, moved: ir.Value, row: IndexValue, tile: IndexValue) -> None:
        """Makes of each warp's count of a digit where its elements begin in the sorted tile, and writes what they are
        moved by."""
        em, keys, zero = self.em, self.keys, self.keys.number(0)
        digit = em.min(em.block_thread, DIGITS)
        real, last = em.condition(em.less(em.block_thread, DIGITS)), em.less(em.block_thread, DIGITS + 1)
        parts = [memref.LoadOp(counts, [em.c(w), em.value(digit)]).result for w in range(WARPS)]
        total = parts[0]
        for part in parts[1:]:
            total = arith.AddIOp(total, part).result
        total = arith.SelectOp(em.condition(last), total, zero).result
        sums = em.alloc_smem([WARPS], keys.i32)
        start = exclusive(em, keys, total, sums)
        others = em.alloc_smem([WARPS], keys.i32)
        at = [em.value(row), em.value(em.min(em.block_thread, DIGITS - 1))]
        all_ = arith.SelectOp(real, memref.LoadOp(self.b.totals, at).result, zero).result
        first = exclusive(em, keys, all_, others)
        front = memref.LoadOp(self.b.counts, [*at, em.value(tile)]).result
        with predicated(em.condition(last)):
            to = arith.SubIOp(arith.AddIOp(first, front).result, start).result
            memref.StoreOp(to, moved, [em.value(digit)])
            for w, part in enumerate(parts):
                memref.StoreOp(start, counts, [em.c(w), em.value(digit)])
                start = arith.AddIOp(start, part).result

    def _leave(
        self, pairs: list[Pair], places: list[ir.Value], counts: ir.Value, moved: ir.Value, row: IndexValue,
        tile: IndexValue,
    ) -> None:  # fmt: skip
        """Writes the elements, in the order of their digits, each to where it goes in its row."""
        em, keys = self.em, self.keys
        sorted_ = [em.alloc_smem([TILE], t) for t in (keys.type, keys.i32)]
        for pair, place in zip(pairs, places, strict=True):
            for buffer, value in zip(sorted_, (pair.key, pair.place), strict=True):
                memref.StoreOp(value, buffer, [keys.index(place)])
        gpu.BarrierOp()
        for i in range(ELEMENTS):
            at = em.add(em.block_thread, i * 32 * WARPS)
            key, place = (memref.LoadOp(b, [em.value(at)]).result for b in sorted_)
            by = memref.LoadOp(moved, [keys.index(keys.digit(key, self.first, DIGIT))]).result
            to = keys.index(arith.AddIOp(keys.place(at), by).result)
            with predicated(em.condition(self._inside(em.add(em.mul(tile, TILE), at)))):
                self._write(row, to, Pair(key, place))

    def _write(self, row: IndexValue, to: ir.Value, pair: Pair) -> None:
        em, keys = self.em, self.keys
        if self.b.target is not None:
            for buffer, value in zip(self.b.target, (pair.key, pair.place), strict=True):
                memref.StoreOp(value, buffer, [em.value(row), to])
            return
        with predicated(em.condition(True if keys.info.count == keys.info.length else em.less(to, keys.info.count))):
            keys.store(self.b.x, self.b.results, row, to, pair.place)
