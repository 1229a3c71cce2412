"""A ring of slots in shared memory between a producer warp, which fills them by tensor copies, and the warps that
compute. Slices that different products read come and go on their own: each such channel of a slot has two mbarriers,
`full`, which the copies complete, and `empty`, at which every consumer warp arrives when it has read them (the pipeline
of CUTLASS's sm90 mainloop; Tawa's aref). What the consumers do is in `consumer.py`."""

from __future__ import annotations

from mlirc.mlir import arith, ir, memref, nvvm, scf
from mlirc.passes.distribute.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.loop_operands import LoopOperands
from mlirc.passes.distribute.memory import predicated
from mlirc.passes.distribute.tensor_copies import TensorTile

PATIENCE = 10_000_000  # nanoseconds that a try_wait may sleep before it looks again


def depends(op: ir.Operation, on: ir.Value) -> bool:
    """Whether an op's operands are computed from a value."""
    for v in op.operands:
        if v == on or not isinstance(v.owner, ir.Block) and depends(v.owner.operation, on):
            return True
    return False


class Channel:
    """The slots of the slices that some products of a loop read together, and their mbarriers."""

    def __init__(self, em: Emitter, depth: int, cluster: int, tiles: list[TensorTile]):
        self.em, self.depth, self.cluster, self.tiles = em, depth, cluster, tiles
        barriers = em.alloc_smem([2 * depth], ir.IntegerType.get_signless(64))
        with em.at_entry():
            self.start = memref.ExtractAlignedPointerAsIndexOp(barriers).result

    def full(self, slot: IndexValue) -> ir.Value:
        """The mbarrier that a slot's copies complete."""
        return self.em.shared_pointer(self.em.add(self.start, self.em.mul(slot, 8)))

    def empty(self, slot: IndexValue) -> ir.Value:
        """The mbarrier at which a slot's readers arrive."""
        return self.em.shared_pointer(self.em.add(self.start, self.em.add(self.em.mul(slot, 8), 8 * self.depth)))

    def initialize(self) -> None:
        """Makes the mbarriers, by one thread."""
        em = self.em
        i32 = ir.IntegerType.get_signless(32)
        for slot in range(self.depth):
            nvvm.MBarrierInitOp(self.full(slot), em.constant(ir.IntegerAttr.get(i32, 1)))
            readers = em.constant(ir.IntegerAttr.get(i32, em.warps * self.cluster))
            nvvm.MBarrierInitOp(self.empty(slot), readers)

    def place(self, number: IndexValue) -> tuple[IndexValue, IndexValue]:
        """(slot, parity of its phase) of an iteration."""
        em = self.em
        return em.rem(number, self.depth), em.rem(em.div(number, self.depth), 2)

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

    def fill(self, number: IndexValue, operands: LoopOperands, iv: IndexValue, rank: IndexValue, ops: list) -> None:
        """Starts the copies of one iteration, of the slices `ops`, by one thread of the block number `rank` of its
        cluster."""
        em = self.em
        slot, parity = self.place(number)
        self.wait(self.empty(slot), parity, other=True)
        full = self.full(slot)
        nbytes = em.constant(ir.IntegerAttr.get(ir.IntegerType.get_signless(32), sum(t.nbytes for t in self.tiles)))
        nvvm.MBarrierArriveExpectTxOp(full, nbytes)
        for tile, op in zip(self.tiles, ops, strict=True):
            view, _, _ = operands.at(op, iv)
            shared = tile.split > 1
            tile.copy(view, slot, full, rank if shared else 0, (1 << self.cluster) - 1 if shared else 0)


class Ring:
    """The slots of the operands of one loop, or of several that follow each other and read slices of the same form. A
    slot's number counts all iterations of these loops, of all the tiles that a block computes. Blocks of a cluster
    differ in the induction variable `fastest`: a slice that does not depend on it is theirs together, and each copies a
    part of it to all of them."""

    def __init__(self, em: Emitter, loops: list[ir.Operation], cluster: int, fastest: ir.Value):
        self.em, self.loops, self.cluster, self.fastest = em, loops, cluster, fastest
        depths = [em.taken.take(loop, "stages", 1) for loop in loops]
        self.depth = depths[0]
        if any(d != self.depth for d in depths):
            raise Unsupported("mlirc.producers: loops that share a ring have the same mlirc.stages", loops[1], "stages")
        self.channels: list[Channel] = []
        self.operands: dict[int, LoopOperands] = {}  # by the loop's number

    def open(self, operands: LoopOperands) -> None:
        """Lays out the slots of a loop; raises Unsupported for an operand that cannot be copied so."""
        em, loop, number = self.em, operands.op, self.loops.index(operands.op)
        self.operands[number] = operands
        if not operands.found:
            what = "no product in this loop reads a slice of a kernel argument"
            raise Unsupported(f"mlirc.producers: {what}: leave it out", loop, "producers")
        if self.depth < 2:
            raise Unsupported("mlirc.producers: a ring has mlirc.stages >= 2", loop, "stages")
        for o in operands.found.values():
            if em.taken.take(o.product, "copy") != "tma":
                raise Unsupported(
                    'mlirc.producers: a producer warp copies by tensor copies: stage(product, copy="tma")',
                    loop, "producers",
                )  # fmt: skip
        if number == 0:
            for group in operands.groups():
                tiles = [
                    TensorTile(em, o, self.depth, 1 if depends(o.op, self.fastest) else self.cluster) for o in group
                ]
                self.channels.append(Channel(em, self.depth, self.cluster, tiles))
            return
        first = self.operands[0].groups()
        if [[o.form() for o in g] for g in operands.groups()] != [[o.form() for o in g] for g in first]:
            what = "loops that share a ring read slices of the same tensors, in the same form and order"
            raise Unsupported(f"mlirc.producers: {what}", loop, "producers")

    def initialize(self) -> None:
        """Makes the mbarriers, by one thread; the block (or cluster) must meet before it uses them."""
        for channel in self.channels:
            channel.initialize()
        nvvm.FenceMbarrierInitOp()

    def first_number(self, operands: LoopOperands, scope=None) -> IndexValue:
        """The number of the first iteration of a loop: behind those of the loops in front of it, as a scope sees them,
        and of the tiles that the block computed before."""
        em, first = self.em, 0
        known = [self.operands[i] for i in range(self.loops.index(operands.op))]
        for other in known if scope is None else [o.seen_from(scope) for o in known]:
            first = em.add(first, other.count())
        if em.turn == 0:
            return first
        total = operands.count()
        if len(self.loops) > 1 or not isinstance(total, int):
            what = "mlirc.persist: blocks with several loops, or bounds that are not constant, compute one tile each"
            raise Unsupported(what, self.loops[0].parent, "persist")
        return em.mul(em.turn, total)

    # -- the producer

    def fill(self, scope, loop: ir.Operation, rank: IndexValue) -> None:
        """The producer's side of a loop, by one thread: `rank` is the block's number in its cluster."""
        em = self.em
        operands = self.operands[self.loops.index(loop)].seen_from(scope)
        first = self.first_number(operands, scope)
        body = scf.ForOp(*(em.value(v) for v in (operands.lb, operands.ub, operands.step)), [])
        with ir.InsertionPoint(body.body):
            iv = em.known_multiple(body.induction_variable, min(em.divisor(operands.lb), em.divisor(operands.step)))
            number = em.add(first, operands.number(iv))
            for channel, group in zip(self.channels, operands.groups(), strict=True):
                channel.fill(number, operands, iv, rank, [o.op for o in group])
            scf.YieldOp([])
