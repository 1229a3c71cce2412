"""Bitonic sorts of elements in the registers of threads (Batcher, "Sorting networks and their applications", 1968)."""

from __future__ import annotations

from mlirc.mlir import arith, gpu, ir, memref, scf
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.sort.keys import Keys, Pair, select

LANES = 32


class Network:
    """A sort of `size` elements, a power of two, by `threads` threads, of which `thread` is one: it has size / threads
    neighbours. Where these are several warps all threads of the block take part, and those alone that `there` says
    write to shared memory."""

    def __init__(
        self, em: Emitter, keys: Keys, size: int, threads: int, thread: IndexValue, there: bool | ir.Value = True
    ) -> None:  # fmt: skip
        self.em, self.keys, self.size, self.threads, self.thread, self.there = em, keys, size, threads, thread, there
        self.count = size // threads
        self.buffers: list[ir.Value] = []
        self.is_read = False
        if threads > LANES:
            self.buffers = [em.alloc_smem([size], t) for t in (keys.type, keys.i32)]

    def sort(self, pairs: list[Pair]) -> list[Pair]:
        """The thread's elements of the sorted row, from its elements of the row in any order."""
        run = 2
        while run <= self.size:
            distance = run // 2
            while distance:
                pairs = self._exchange(pairs, run, distance)
                distance //= 2
            run *= 2
        return pairs

    def _bit(self, bit: int) -> ir.Value:
        """Whether a bit of the place of the thread's elements is 0."""
        number = self.em.rem(self.em.div(self.thread, bit // self.count), 2)
        return self.em.condition(self.em.equal(number, 0))

    def _exchange(self, pairs: list[Pair], run: int, distance: int) -> list[Pair]:
        """Orders the elements of all pairs of places that differ in the bit `distance`: upwards where the bit `run` is
        0, else downwards."""
        if distance < self.count:
            return self._own(pairs, run, distance)
        others = self._others(pairs, distance // self.count)
        low, upwards = self._bit(distance), self._bit(run) if run < self.size else None
        least = low if upwards is None else arith.CmpIOp(arith.CmpIPredicate.eq, low, upwards).result
        found = []
        for mine, other in zip(pairs, others, strict=True):
            first = self.keys.before(mine, other)
            found.append(select(arith.CmpIOp(arith.CmpIPredicate.eq, first, least).result, mine, other))
        return found

    def _own(self, pairs: list[Pair], run: int, distance: int) -> list[Pair]:
        found = list(pairs)
        for i in range(self.count):
            if i & distance:
                continue
            a, b = pairs[i], pairs[i + distance]
            ordered = self.keys.before(a, b)
            if run < self.count and i & run:
                ordered = self.keys.before(b, a)
            elif self.count <= run < self.size:
                ordered = arith.CmpIOp(arith.CmpIPredicate.eq, ordered, self._bit(run)).result
            found[i], found[i + distance] = select(ordered, a, b), select(ordered, b, a)
        return found

    def _others(self, pairs: list[Pair], apart: int) -> list[Pair]:
        """The elements of the thread whose number differs in the bit `apart`."""
        em = self.em
        if apart < LANES:
            return [Pair(em.shuffle_xor(p.key, apart), em.shuffle_xor(p.place, apart)) for p in pairs]
        partner = arith.XOrIOp(em.value(self.thread), em.c(apart)).result
        if self.is_read:
            gpu.BarrierOp()  # others have read what was there
        self.is_read = True
        with predicated(self.there):
            for i, p in enumerate(pairs):
                for buffer, value in zip(self.buffers, (p.key, p.place), strict=True):
                    memref.StoreOp(value, buffer, [em.value(em.add(self.thread, i * self.threads))])
        gpu.BarrierOp()
        return [
            Pair(*(memref.LoadOp(b, [em.value(em.add(partner, i * self.threads))]).result for b in self.buffers))
            for i in range(len(pairs))
        ]


def sort_rows(em: Emitter, keys: Keys, x: ir.Value, results: list[ir.Value], size: int, threads: int) -> None:
    """What a block does where each `threads` of its threads sort a row, filled up to `size` elements."""
    info, block = keys.info, 32 * em.block_warps
    rows = block // threads
    count = size // threads
    own, thread = em.div(em.block_thread, threads), em.rem(em.block_thread, threads)
    number = em.add(em.mul(gpu.BlockIdOp(gpu.Dimension.x).result, rows), own) if info.rows > rows else own
    row = em.min(number, info.rows - 1)
    pairs = []
    for i in range(count):
        at = em.add(thread, i * threads)
        pair = Pair(keys.load(x, row, em.min(at, info.length - 1)), keys.place(at))
        inside = em.condition(em.less(at, info.length))
        pairs.append(select(inside, pair, Pair(keys.last, pair.place)))
    pairs = Network(em, keys, size, threads, thread).sort(pairs)
    write(em, keys, x, results, row, thread, pairs, em.less(number, info.rows))


def write(
    em: Emitter, keys: Keys, x: ir.Value, results: list[ir.Value], row: IndexValue, thread: IndexValue,
    pairs: list[Pair], there: bool | ir.Value,
) -> None:  # fmt: skip
    """Writes a thread's elements of the sorted row to the results, as far as these go."""
    for i, pair in enumerate(pairs):
        at = em.add(em.mul(thread, len(pairs)), i)
        branch = scf.IfOp(em.condition(em.both(there, em.less(at, keys.info.count))))
        with ir.InsertionPoint(branch.then_block):
            keys.store(x, results, row, at, pair.place)
            scf.YieldOp([])
