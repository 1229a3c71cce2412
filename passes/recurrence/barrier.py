"""The barrier of all blocks of a launch, once a step."""

from __future__ import annotations

from mlirc.mlir import arith, gpu, ir, llvm, scf
from mlirc.passes.distribute.emit.emitter import Emitter
from mlirc.passes.distribute.memory.access import predicated

_ACQUIRE = 4  # LLVM's AtomicOrdering


class Barrier:
    """`blocks` blocks that meet in front of each of `steps` steps but the first, by a counter that goes up. Behind the
    last arrival it is 0 again."""

    def __init__(self, em: Emitter, blocks: int, steps: int, counter: str):
        self.em, self.blocks, self.steps, self.counter = em, blocks, steps, counter
        self.i32 = ir.IntegerType.get_signless(32)

    def _place(self) -> ir.Value:
        return llvm.AddressOfOp(ir.Type.parse("!llvm.ptr<1>"), self.counter).result

    def _one_thread(self) -> ir.Value:
        return self.em.condition(self.em.equal(self.em.block_thread, 0))

    def arrive(self) -> None:
        """The block has written its part."""
        gpu.BarrierOp()
        if self.blocks == 1:
            return
        with predicated(self._one_thread()):
            most = self.em.constant(ir.IntegerAttr.get(self.i32, self.blocks * self.steps - 1))
            llvm.AtomicRMWOp(
                llvm.AtomicBinOp.uinc_wrap, self._place(), most, llvm.AtomicOrdering.acq_rel, syncscope="device"
            )

    def wait(self, step: ir.Value) -> None:
        """Waits until all blocks have arrived in the steps before."""
        if self.blocks == 1:
            return
        em = self.em
        with predicated(em.both(self._one_thread(), em.less(0, step))):
            wanted = arith.IndexCastOp(self.i32, em.value(em.mul(step, self.blocks))).result
            loop = scf.WhileOp([], [])
            with ir.InsertionPoint(loop.before.blocks.append()):
                seen = llvm.LoadOp(
                    self.i32, self._place(), alignment=4, ordering=llvm.AtomicOrdering.acquire, syncscope="device"
                ).result
                scf.ConditionOp(arith.CmpIOp(arith.CmpIPredicate.ult, seen, wanted).result, [])
            with ir.InsertionPoint(loop.after.blocks.append()):
                scf.YieldOp([])
        gpu.BarrierOp()
