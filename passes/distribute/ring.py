"""A ring of slots in shared memory between a producer warp, which fills them by tensor copies, and the warps that
compute. Each slot has two mbarriers: `full`, which the copies complete, and `empty`, at which every consumer warp
arrives when it has read the slot (the pipeline of CUTLASS's sm90 mainloop; Tawa's aref)."""

from __future__ import annotations

from mlirc.mlir import arith, ir, memref, nvvm, scf
from mlirc.passes.distribute.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.loop_operands import LoopOperands
from mlirc.passes.distribute.memory import predicated
from mlirc.passes.distribute.staging import Staged
from mlirc.passes.distribute.tensor_copies import TensorTile

PATIENCE = 10_000_000  # nanoseconds that a try_wait may sleep before it looks again


def depends(op: ir.Operation, on: ir.Value) -> bool:
    """Whether an op's operands are computed from a value."""
    for v in op.operands:
        if v == on or not isinstance(v.owner, ir.Block) and depends(v.owner.operation, on):
            return True
    return False


class Ring:
    """The slots of the operands of one loop. A slot's number counts all iterations of the loop, of all the tiles that a
    block computes. Blocks of a cluster differ in the induction variable `fastest`: a slice that does not depend on it
    is theirs together, and each copies a part of it to all of them."""

    def __init__(self, em: Emitter, loop: ir.Operation, cluster: int, fastest: ir.Value):
        self.em, self.loop, self.cluster, self.fastest = em, loop, cluster, fastest
        self.depth = em.taken.take(loop, "stages", 1)
        self.tiles: list[TensorTile] = []
        self.operands: LoopOperands | None = None

    def open(self, operands: LoopOperands) -> None:
        """Lays out the slots; raises Unsupported for an operand that cannot be copied so."""
        em, self.operands = self.em, operands
        if operands.others or not operands.found:
            what = "an operand of a product in this loop is computed, not a slice of a kernel argument"
            raise Unsupported(f"mlirc.producers: {what}: leave it out", self.loop, "producers")
        if self.depth < 2:
            raise Unsupported("mlirc.producers: a ring has mlirc.stages >= 2", self.loop, "stages")
        for o in operands.found.values():
            if em.taken.take(o.product, "copy") != "tma":
                raise Unsupported(
                    'mlirc.producers: a producer warp copies by tensor copies: stage(product, copy="tma")',
                    self.loop, "producers",
                )  # fmt: skip
            split = 1 if depends(o.op, self.fastest) else self.cluster
            self.tiles.append(TensorTile(em, o, self.depth, split))
        self._by_result = dict(zip(operands.found, self.tiles, strict=True))
        i64 = ir.IntegerType.get_signless(64)
        self.barriers = em.alloc_smem([2 * self.depth], i64)
        with em.at_entry():
            self.start = memref.ExtractAlignedPointerAsIndexOp(self.barriers).result
        lb, ub, step = operands.lb, operands.ub, operands.step
        if not all(isinstance(x, int) for x in (lb, ub, step)):
            raise Unsupported("mlirc.producers: a loop whose bounds are not constant", self.loop, "producers")
        self.count = len(range(lb, ub, step))  # type: ignore[arg-type]

    # -- barriers

    def full(self, slot: IndexValue) -> ir.Value:
        """The mbarrier that a slot's copies complete."""
        return self.em.shared_pointer(self.em.add(self.start, self.em.mul(slot, 8)))

    def empty(self, slot: IndexValue) -> ir.Value:
        """The mbarrier at which a slot's readers arrive."""
        return self.em.shared_pointer(self.em.add(self.start, self.em.add(self.em.mul(slot, 8), 8 * self.depth)))

    def initialize(self) -> None:
        """Makes the mbarriers, by one thread; the block (or cluster) must meet before it uses them."""
        em = self.em
        i32 = ir.IntegerType.get_signless(32)
        for slot in range(self.depth):
            nvvm.MBarrierInitOp(self.full(slot), em.constant(ir.IntegerAttr.get(i32, 1)))
            readers = em.constant(ir.IntegerAttr.get(i32, em.warps * self.cluster))
            nvvm.MBarrierInitOp(self.empty(slot), readers)
        nvvm.FenceMbarrierInitOp()

    def place(self, number: IndexValue) -> tuple[IndexValue, IndexValue]:
        """(slot, parity of its phase) of an iteration."""
        em = self.em
        return em.rem(number, self.depth), em.rem(em.div(number, self.depth), 2)

    def number(self, iv: IndexValue) -> IndexValue:
        """The number of an iteration of the current tile."""
        em, operands = self.em, self.operands
        assert operands is not None
        return em.add(em.mul(em.turn, self.count), em.div(em.sub(iv, operands.lb), operands.step))  # type: ignore[arg-type]

    def wait(self, barrier: ir.Value, parity: IndexValue, other: bool = False) -> None:
        """Waits until the phase of this parity (or of the other one) has ended."""
        i32 = ir.IntegerType.get_signless(32)
        phase = arith.IndexCastOp(i32, self.em.value(parity)).result
        if other:
            phase = arith.XOrIOp(phase, self.em.constant(ir.IntegerAttr.get(i32, 1))).result
        nvvm.MBarrierTryWaitParityOp(barrier, phase, self.em.constant(ir.IntegerAttr.get(i32, PATIENCE)))

    def release(self, number: IndexValue) -> None:
        """This warp has read a slot: tells every block of the cluster whose copies write it."""
        em = self.em
        slot, _ = self.place(number)
        barrier = self.empty(slot)
        if self.cluster == 1:
            with predicated(em.equal(em.lane, 0)):
                nvvm.MBarrierArriveOp(barrier)
            return
        with predicated(em.less(em.lane, self.cluster)):
            i32 = ir.IntegerType.get_signless(32)
            block = arith.IndexCastOp(i32, em.lane).result
            there = ir.Type.parse("!llvm.ptr<7>")
            remote = nvvm.MapaOp(there, barrier, block).result
            nvvm.MBarrierArriveOp(remote)

    # -- the producer

    def fill(self, scope, rank: IndexValue) -> None:
        """The producer's side of the loop, by one thread: `rank` is the block's number in its cluster."""
        em = self.em
        assert self.operands is not None
        operands = self.operands.seen_from(scope)
        loop = scf.ForOp(*(em.value(v) for v in (operands.lb, operands.ub, operands.step)), [])
        with ir.InsertionPoint(loop.body):
            iv = em.known_multiple(loop.induction_variable, min(em.divisor(operands.lb), em.divisor(operands.step)))
            slot, parity = self.place(self.number(iv))
            self.wait(self.empty(slot), parity, other=True)
            full = self.full(slot)
            nbytes = em.constant(ir.IntegerAttr.get(ir.IntegerType.get_signless(32), sum(t.nbytes for t in self.tiles)))
            nvvm.MBarrierArriveExpectTxOp(full, nbytes)
            for tile in self.tiles:
                view, _, _ = operands.at(tile.operand.op, iv)
                shared = tile.split > 1
                tile.copy(view, slot, full, rank if shared else 0, (1 << self.cluster) - 1 if shared else 0)
            scf.YieldOp([])


class Consumer:
    """The consumers' side of the loop: what `loop.lower` asks of a pipeline."""

    ahead = 1

    def __init__(self, outer, op: ir.Operation, ring: Ring):
        self.em, self.ring = outer.em, ring
        self.operands = LoopOperands(outer, op)
        self.warpgroups = self.operands.warpgroups
        ring.open(self.operands)
        self.slot: IndexValue = 0
        self.now: IndexValue = 0

    def begin_loop(self) -> None:
        """The producer has begun on its own."""

    def begin_iteration(self, iv: ir.Value) -> None:
        """Waits for the iteration's slot."""
        self.now = self.ring.number(iv)
        self.slot, parity = self.ring.place(self.now)
        self.ring.wait(self.ring.full(self.slot), parity)

    def bind(self, scope, slice_op) -> bool:
        """Makes a slice that the ring holds a tile in shared memory; False for other slices."""
        tile = self.ring._by_result.get(slice_op.results[0])
        if tile is None:
            return False
        _, shape, sizes = scope.slice_view(slice_op, scope.scalar)
        scope.tiles[slice_op.results[0]] = Staged(self.em, tile.element, shape, sizes, tile.view(self.slot))
        return True

    def end_iteration(self, iv: ir.Value, deferred: bool) -> None:
        """Gives back what has been read: the slot, or the one before where its products are still under way."""
        em, lb = self.em, self.operands.lb
        if not deferred:
            em.warp_barrier()
            self.ring.release(self.now)
            return
        with predicated(em.less(lb, iv)):
            self.ring.release(em.sub(self.now, 1))

    def end_loop(self, deferred: bool) -> None:
        """Gives back the last slot where its products were still under way."""
        if deferred and self.ring.count:
            em = self.em
            last = em.add(em.mul(em.turn, self.ring.count), self.ring.count - 1)
            self.ring.release(last)
