"""The barrier of all blocks of a recurrence, once a step."""

from __future__ import annotations

from mlirc.mlir import arith, gpu, ir, llvm, scf
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory.access import predicated


class Barrier:
    """`blocks` blocks that meet in front of each step but the first. Each has a flag, in the module's memory, which it
    alone counts up while they work: `flags` of all blocks, and behind them a counter of those that wait no more. Who
    comes last makes all of them zeros again, for the next launch."""

    def __init__(self, em: Emitter, blocks: int, threads: int, flags: str, block: IndexValue):
        self.em, self.blocks, self.threads, self.flags = em, blocks, threads, flags
        self.i32 = ir.IntegerType.get_signless(32)
        if blocks > 1:
            self.own = self._place(block)

    def _place(self, block: IndexValue) -> ir.Value:
        first = llvm.AddressOfOp(ir.Type.parse("!llvm.ptr<1>"), self.flags).result
        number = arith.IndexCastOp(self.i32, self.em.value(block)).result
        return llvm.GEPOp(first.type, first, [number], [-(1 << 31)], self.i32, None).result

    def _seen(self, place: ir.Value) -> ir.Value:
        order = llvm.AtomicOrdering.acquire
        return llvm.LoadOp(self.i32, place, alignment=4, ordering=order, syncscope="device").result

    def _set(self, place: ir.Value, value: ir.Value) -> None:
        order = llvm.AtomicOrdering.release
        llvm.StoreOp(value, place, alignment=4, ordering=order, syncscope="device")

    def _leads(self) -> ir.Value:
        return self.em.condition(self.em.equal(self.em.block_thread, 0))

    def arrive(self, step: ir.Value) -> None:
        """The block has written its part of a step."""
        gpu.BarrierOp()
        if self.blocks > 1:
            with predicated(self._leads()):
                self._set(self.own, arith.IndexCastOp(self.i32, self.em.value(self.em.add(step, 1))).result)

    def wait(self, step: ir.Value) -> None:
        """Waits until all blocks have arrived in the step before."""
        if self.blocks == 1:
            return
        em = self.em
        wanted = arith.IndexCastOp(self.i32, step).result
        for first in range(0, self.blocks, self.threads):
            number = em.add(em.block_thread, first)
            some = em.less(number, self.blocks) if first + self.threads > self.blocks else True
            with predicated(em.condition(some)):
                self._spin(self._place(number), wanted)
        gpu.BarrierOp()

    def finish(self) -> None:
        """Behind all steps."""
        if self.blocks == 1:
            return
        em = self.em
        with predicated(self._leads()):
            most, zero = (em.constant(ir.IntegerAttr.get(self.i32, n)) for n in (self.blocks - 1, 0))
            counter, order = self._place(self.blocks), llvm.AtomicOrdering.acq_rel
            before = llvm.AtomicRMWOp(llvm.AtomicBinOp.uinc_wrap, counter, most, order, syncscope="device").result
            with predicated(arith.CmpIOp(arith.CmpIPredicate.eq, before, most).result):
                loop = scf.ForOp(em.c(0), em.c(self.blocks), em.c(1), [])
                with ir.InsertionPoint(loop.body):
                    self._set(self._place(loop.induction_variable), zero)
                    scf.YieldOp([])

    def _spin(self, place: ir.Value, wanted: ir.Value) -> None:
        """Waits until a flag has gone up so far."""
        loop = scf.WhileOp([], [])
        with ir.InsertionPoint(loop.before.blocks.append()):
            scf.ConditionOp(arith.CmpIOp(arith.CmpIPredicate.ult, self._seen(place), wanted).result, [])
        with ir.InsertionPoint(loop.after.blocks.append()):
            scf.YieldOp([])
