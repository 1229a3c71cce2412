"""Reductions across the blocks of a cluster that share rows (`mlirc.spread`).

Each warp leaves its partial results in its block's shared memory. Where somebody needs a result first, the blocks meet:
each combines its warps' partial results, leaves that, the cluster meets, and a warp of each block reads what all blocks
left (PTX ISA, "mapa", ld.shared::cluster), for the others. All reductions that are under way then share the meeting.
The order is fixed, and all threads have the same results, bit by bit: butterflies of commutative operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, gpu, ir, llvm, memref, nvvm
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layouts.registers import WARP, Factor, Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.values import Fragment, Tile


class Combines(Protocol):
    """What combines two elements."""

    def apply(self, a: ir.Value, b: ir.Value) -> ir.Value: ...


class AcrossBlocks(Tile):
    """A reduction whose partial results, one of each warp, wait for the blocks to meet. `finish` makes the result of
    what they are combined to."""

    def __init__(self, em: Emitter, partial: Fragment, combiner: Combines, factors: list[Factor]):
        super().__init__(em, partial.element, partial.shape, partial.sizes)
        self.partial, self.combiner = partial, combiner
        self.finish: Callable[[Fragment], Fragment] = lambda combined: combined
        self._found: Fragment | None = None
        self.count, own = factors[0].size, em.team.warps // em.spread
        by_row = any(f.kind != "r" for d in partial.layout.dims for f in d)
        if by_row or len(factors) > 1 or factors[0].stride != 1:
            raise Unsupported(f"mlirc.spread = {em.spread}: warps have other rows: give one row to a block")
        if self.count & (self.count - 1) or own & (own - 1):
            raise Unsupported(f"mlirc.spread = {em.spread}: {self.count} warps share a row: not a power of two")
        self.warps = min(own, self.count)  # of each block; warps from number `count` on have copies
        self.stored = access.storage_type(partial.element)
        values = [partial.scalar(i) for i in range(partial.layout.num_regs)]
        # Who goes on to a loop's next iteration finds other memory there. All have read it at the one behind that: they
        # have met in between.
        self.turn, copies = (0, 1) if em.turn is None else (em.turn, 2)
        self.buffer = em.alloc_smem([copies * own, len(values)], self.stored, alignment=16)
        self.first = em.mul(self.turn, own)
        with access.predicated(em.equal(em.lane, 0)):
            self._leave(self.buffer, em.add(self.first, em.own_warp), values)
        em.meeting.append(self)

    def natural(self) -> Layout:
        return self.partial.layout

    def complete(self) -> None:
        if self._found is None:
            meet(self.em)

    def get(self, layout: Layout) -> Fragment:
        assert self._found is not None, "who reads a tile has it completed where it stands"
        return self._found.get(layout)

    def _leave(self, buffer: ir.Value, place: IndexValue, values: list[ir.Value]) -> None:
        for i, x in enumerate(values):
            wide = x if self.stored == self.element else arith.ExtUIOp(self.stored, x).result
            memref.StoreOp(wide, buffer, [self.em.value(place), self.em.c(i)])

    def _butterfly(self, value: ir.Value, lanes: int) -> ir.Value:
        step = 1
        while step < lanes:
            value = self.combiner.apply(value, self.em.shuffle_xor(value, step))
            step *= 2
        return value

    def left(self, buffer: ir.Value, place: IndexValue) -> list[ir.Value]:
        """What lies in a buffer."""
        em = self.em
        loaded = [memref.LoadOp(buffer, [em.value(place), em.c(i)]).result for i in range(self.partial.layout.num_regs)]
        return [access.join(em, [x], 1, self.element, 1) for x in loaded]

    def of_block(self) -> list[ir.Value]:
        """What the warps of this block left, combined: each lane reads one warp's."""
        parts = self.left(self.buffer, self.em.add(self.first, self.em.rem(self.em.lane, self.warps)))
        return [self._butterfly(value, min(self.warps, WARP)) for value in parts]

    def leave(self, totals: list[ir.Value]) -> ir.Value:
        """Memory where the block's first thread leaves them."""
        buffer = self.em.alloc_smem([1 if isinstance(self.turn, int) else 2, len(totals)], self.stored, alignment=16)
        with access.predicated(self.em.equal(self.em.lane, 0)):
            self._leave(buffer, self.turn, totals)
        return buffer

    def of_cluster(self, buffer: ir.Value) -> list[ir.Value]:
        """What the blocks left in their `buffer`, combined: each lane reads one block's."""
        em, totals = self.em, []
        blocks = self.count // self.warps
        i32 = ir.IntegerType.get_signless(32)
        base = em.shared_pointer(memref.ExtractAlignedPointerAsIndexOp(buffer).result)
        rank = arith.IndexCastOp(i32, em.value(em.rem(em.lane, blocks))).result
        there = nvvm.MapaOp(ir.Type.parse("!llvm.ptr<7>"), base, rank).result
        size = element_bytes(self.stored)
        for i in range(self.partial.layout.num_regs):
            number = em.add(em.mul(self.turn, size * self.partial.layout.num_regs), i * size)
            number = arith.IndexCastOp(i32, em.value(number)).result
            where = llvm.GEPOp(there.type, there, [number], [-(1 << 31)], ir.IntegerType.get_signless(8), None).result
            loaded = llvm.LoadOp(self.stored, where, alignment=size).result
            totals.append(self._butterfly(access.join(em, [loaded], 1, self.element, 1), blocks))
        return totals

    def take(self, totals: list[ir.Value]) -> None:
        """These are the results."""
        p = self.partial
        pieces = [self.em.pack(totals[i : i + p.piece]) for i in range(0, len(totals), p.piece)]
        self._found = self.finish(Fragment(self.em, p.element, p.shape, p.sizes, p.layout, pieces, p.piece))


@contextmanager
def in_loop(em: Emitter, iv: ir.Value) -> Iterator[None]:
    """What is built inside is an iteration of a loop, in which the blocks meet for all that they began in it."""
    if em.spread == 1:
        yield
        return
    if em.turn is not None:
        raise Unsupported(f"mlirc.spread = {em.spread}: a loop in a loop")
    em.turn = em.rem(iv, 2)
    yield
    meet(em)
    em.turn = None


def meet(em: Emitter) -> None:
    """The blocks meet here for all reductions that are under way, if any is."""
    waiting: list[AcrossBlocks] = em.meeting
    if not waiting:
        return
    em.meeting = []
    gpu.BarrierOp()
    totals = [r.of_block() for r in waiting]
    several = [(r, t) for r, t in zip(waiting, totals, strict=True) if r.count > r.warps]
    found = {}
    if several:
        first = em.equal(em.own_warp, 0)
        with access.predicated(first):
            buffers = [r.leave(t) for r, t in several]
        nvvm.ClusterArriveOp()
        nvvm.ClusterWaitOp()
        with access.predicated(first):  # all warps of a cluster would get in each other's way
            combined = [r.leave(r.of_cluster(b)) for (r, _), b in zip(several, buffers, strict=True)]
        gpu.BarrierOp()
        found = {r: r.left(b, r.turn) for (r, _), b in zip(several, combined, strict=True)}
    for r, t in zip(waiting, totals, strict=True):
        r.take(found.get(r, t))
