"""The first elements of long rows: a block for each row finds by counting digits which they are, and sorts them.

limit     for each digit, from the upper one on: count it in the elements that have the digits so far; the digit at
          which as many elements as are still missing have a lower or equal one is the limit's. Where they are just
          as many, the search ends; of equal keys, places are searched the same way
collect   elements up to the limit, in any order
sort      these, by a network
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.mlir import arith, gpu, ir, memref, scf
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.sort.keys import EQ, ULT, Keys, Pair, select
from mlirc.passes.sort.network import Network, write

DIGIT = 11  # bits
AHEAD = 8  # loads of a thread that are under way
_ADD = arith.AtomicRMWKind.addi


@dataclass(frozen=True)
class Search:
    """Where a search is: `key` and `place` have the limit's digits so far, and zeros; `wanted` elements are still
    missing; `done`: all elements with these digits are in front of the limit."""

    key: ir.Value
    place: ir.Value
    wanted: ir.Value
    done: ir.Value

    @property
    def values(self) -> list[ir.Value]:
        return [self.key, self.place, self.wanted, self.done]


def digits(bits: int) -> list[tuple[int, int]]:
    """(first bit, bits) of the digits of a number, from the upper one on."""
    found, end = [], bits
    while end:
        width = min(DIGIT, end)
        end -= width
        found.append((end, width))
    return found


class Select:
    """One row's block of `warps` warps."""

    def __init__(self, em: Emitter, keys: Keys, x: ir.Value, results: list[ir.Value], row: IndexValue) -> None:
        self.em, self.keys, self.x, self.results, self.row = em, keys, x, results, row
        self.threads = 32 * em.block_warps
        self.counts = em.alloc_smem([1 << DIGIT], keys.i32)
        self.sums = em.alloc_smem([em.block_warps], keys.i32)
        self.answer = em.alloc_smem([4], keys.i32)
        self.places = digits(max((keys.info.length - 1).bit_length(), 1))

    def build(self) -> None:
        keys, none = self.keys, self.em.condition(False)
        search = Search(keys.constant(0), keys.number(0), keys.number(keys.info.count), none)
        for first, bits in digits(keys.bits):
            search = self._step(search, first, bits, False)
        for first, bits in self.places:
            search = self._step(search, first, bits, True)
        self._sort(search)

    # -- the limit

    def _step(self, search: Search, first: int, bits: int, of_places: bool) -> Search:
        """The search with one more digit, which begins at bit `first` of keys, or of places."""
        branch = scf.IfOp(search.done, [v.type for v in search.values], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp(search.values)
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(self._searched(search, first, bits, of_places).values)
        return Search(*branch.results)

    def _searched(self, search: Search, first: int, bits: int, of_places: bool) -> Search:
        em, keys = self.em, self.keys
        self._zero(1 << bits)
        gpu.BarrierOp()
        self._each(lambda pair: self._count(search, pair, first, bits, of_places))
        gpu.BarrierOp()
        self._find(search.wanted, 1 << bits)
        gpu.BarrierOp()
        digit, before, same = (memref.LoadOp(self.answer, [em.c(i)]).result for i in range(3))
        wanted = arith.SubIOp(search.wanted, before).result
        done = arith.CmpIOp(EQ, same, wanted).result
        low = (1 << first) - 1  # all of it, where all of these elements are in front
        key, place = search.key, search.place
        if of_places:
            place = self._extended(place, digit, first, low, done)
        else:
            key = self._extended(key, digit, first, low, done)
            every = (1 << max(keys.info.length.bit_length(), 1)) - 1
            place = arith.SelectOp(done, keys.number(every), place).result
        return Search(key, place, wanted, done)

    def _extended(self, value: ir.Value, digit: ir.Value, first: int, low: int, done: ir.Value) -> ir.Value:
        t, em = ir.IntegerType(value.type), self.em
        wide = arith.ExtUIOp(t, digit).result if t.width > 32 else digit
        if first:
            wide = arith.ShLIOp(wide, em.constant(ir.IntegerAttr.get(t, first))).result
        end = em.constant(ir.IntegerAttr.get(t, low))
        rest = arith.SelectOp(done, end, em.constant(ir.IntegerAttr.get(t, 0))).result
        return arith.OrIOp(arith.OrIOp(value, wide).result, rest).result

    def _zero(self, count: int) -> None:
        em, zero = self.em, self.keys.number(0)
        for i in range(-(-count // self.threads)):
            at = em.add(em.block_thread, i * self.threads)
            with predicated(em.condition(em.less(at, count))):
                memref.StoreOp(zero, self.counts, [em.value(at)])

    def _count(self, search: Search, pair: Pair, first: int, bits: int, of_places: bool) -> None:
        """Counts the digit of an element that has the limit's digits above it."""
        keys = self.keys
        if of_places:
            same = arith.CmpIOp(EQ, pair.key, search.key).result
            above = self._above(pair.place, search.place, first + bits, self.places[0][0] + self.places[0][1])
            same = same if above is None else arith.AndIOp(same, above).result
            digit = keys.digit(pair.place, first, bits)
        else:
            same = self._above(pair.key, search.key, first + bits, keys.bits)
            digit = keys.digit(pair.key, first, bits)
        with predicated(True if same is None else same):
            memref.AtomicRMWOp(_ADD, keys.number(1), self.counts, [keys.index(digit)])

    def _above(self, value: ir.Value, limit: ir.Value, first: int, end: int) -> ir.Value | None:
        """Whether the bits from `first` on are the limit's; None where there are none."""
        if first >= end:
            return None
        shift = self.em.constant(ir.IntegerAttr.get(value.type, first))
        return arith.CmpIOp(EQ, arith.ShRUIOp(value, shift).result, arith.ShRUIOp(limit, shift).result).result

    def _find(self, wanted: ir.Value, count: int) -> None:
        """Leaves the digit at which the counts up to it reach `wanted`, what is counted before it, and its count."""
        em, keys = self.em, self.keys
        own = -(-count // self.threads)
        zero = keys.number(0)
        counts, total = [], zero
        for i in range(own):
            at = em.add(em.mul(em.block_thread, own), i)
            value = memref.LoadOp(self.counts, [em.value(em.min(at, count - 1))]).result
            counts.append(arith.SelectOp(em.condition(em.less(at, count)), value, zero).result)
            total = arith.AddIOp(total, counts[-1]).result
        before = exclusive(em, keys, total, self.sums)
        for i, value in enumerate(counts):
            until = arith.AddIOp(before, value).result
            here = arith.CmpIOp(ULT, before, wanted).result
            here = arith.AndIOp(here, arith.CmpIOp(arith.CmpIPredicate.uge, until, wanted).result).result
            with predicated(here):
                digit = keys.place(em.add(em.mul(em.block_thread, own), i))
                for number, found in enumerate((digit, before, value)):
                    memref.StoreOp(found, self.answer, [em.c(number)])
            before = until

    def _each(self, take) -> None:
        """Builds what is done with each element of the row."""
        em, keys, length = self.em, self.keys, self.keys.info.length
        step = self.threads * AHEAD
        loop = scf.ForOp(em.c(0), em.c(length), em.c(step), [])
        with ir.InsertionPoint(loop.body):
            first = em.add(loop.induction_variable, em.block_thread)
            at = [em.add(first, i * self.threads) for i in range(AHEAD)]
            pairs = [Pair(keys.load(self.x, self.row, em.min(a, length - 1)), keys.place(a)) for a in at]
            for a, pair in zip(at, pairs, strict=True):
                inside = True if length % step == 0 else em.condition(em.less(a, length))
                with predicated(inside):
                    take(pair)
            scf.YieldOp([])

    # -- what is in front of it

    def _sort(self, search: Search) -> None:
        em, keys, count = self.em, self.keys, self.keys.info.count
        size = 1 << max(count - 1, 1).bit_length()
        pairs = [em.alloc_smem([size], t) for t in (keys.type, keys.i32)]
        with predicated(em.condition(em.equal(em.block_thread, 0))):
            memref.StoreOp(keys.number(0), self.answer, [em.c(3)])
        gpu.BarrierOp()
        self._each(lambda pair: self._collect(search, pair, pairs))
        gpu.BarrierOp()
        threads = min(self.threads, size)
        thread = em.rem(em.block_thread, threads)
        mine = []
        for i in range(size // threads):
            at = em.add(thread, i * threads)
            where = [em.value(em.min(at, count - 1))]
            pair = Pair(*(memref.LoadOp(b, where).result for b in pairs))
            rest = Pair(keys.last, keys.place(em.add(at, keys.info.length)))
            mine.append(select(em.condition(em.less(at, count)), pair, rest))
        there = em.less(em.block_thread, threads) if threads < self.threads else True
        network = Network(em, keys, size, threads, thread, em.condition(there))
        write(em, keys, self.x, self.results, self.row, thread, network.sort(mine), there)

    def _collect(self, search: Search, pair: Pair, buffers: list[ir.Value]) -> None:
        keys, em = self.keys, self.em
        later = keys.before(Pair(search.key, search.place), pair)
        with predicated(arith.XOrIOp(later, em.condition(True)).result):
            at = memref.AtomicRMWOp(_ADD, keys.number(1), self.answer, [em.c(3)]).result
            for buffer, value in zip(buffers, (pair.key, pair.place), strict=True):
                memref.StoreOp(value, buffer, [keys.index(at)])


def exclusive(em: Emitter, keys: Keys, value: ir.Value, sums: ir.Value) -> ir.Value:
    """The sum of the i32 values of all threads in front; `sums` has an i32 for each warp. All threads meet."""
    until = lanes_until(em, keys, value)
    with predicated(em.condition(em.equal(em.lane, 31))):
        memref.StoreOp(until, sums, [em.value(em.block_warp)])
    gpu.BarrierOp()
    warps = em.block_warps
    mine = memref.LoadOp(sums, [em.value(em.min(em.lane, warps - 1))]).result
    zero = keys.number(0)
    mine = arith.SelectOp(em.condition(em.less(em.lane, em.block_warp)), mine, zero).result
    front = em.shuffle_from(lanes_until(em, keys, mine), 31)
    return arith.AddIOp(arith.SubIOp(until, value).result, front).result


def lanes_until(em: Emitter, keys: Keys, value: ir.Value) -> ir.Value:
    """The sum of a warp's i32 values up to each lane's."""
    offset = 1
    while offset < 32:
        up = em.shuffle_up(value, offset)
        up = arith.SelectOp(em.condition(em.less(em.lane, offset)), keys.number(0), up).result
        value, offset = arith.AddIOp(value, up).result, 2 * offset
    return value
