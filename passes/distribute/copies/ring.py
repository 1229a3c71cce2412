"""A ring of slots in shared memory between a producer warp, which fills them by tensor copies, and the warps that
compute. It has two mbarriers a slot: `full`, which the copies complete, and `empty`, at which every consumer warp
arrives when it has read the slot (the pipeline of CUTLASS's sm90 mainloop; Tawa's aref). What the producer does is in
`lowerings/producer.py`, what the consumers do in `lowerings/consumer.py`."""

from __future__ import annotations

from mlirc.dialects import rings
from mlirc.mlir import arith, ir, memref, nvvm
from mlirc.passes.distribute.copies.loop_places import LoopPlaces
from mlirc.passes.distribute.copies.tensor_copies import TensorTile
from mlirc.passes.distribute.emit import asynchronous
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.distribute.products import rewriting
from mlirc.passes.rings.check import Flow, Site

PATIENCE = 10_000_000  # nanoseconds that a try_wait may sleep before it looks again


class Ring:
    """What a `mlirc.make_ring` becomes, made by the team that reads it. `rewriters`: warps that write its
    tiles anew, where products read some so. A slot's number counts all puts (or gets), of all the blocks that a
    persistent block computes."""

    def __init__(self, em: Emitter, scope, flow: Flow, cluster: int, rewriters: int):
        self.em, self.flow, self.cluster, self.depth = em, flow, cluster, flow.spec.depth
        self.readers = em.team.warps
        if cluster > 1 and not any(slot.multicast for slot in flow.spec.slots):
            em.waste.append(f"the {cluster} blocks of a cluster share no copy: each reads all that it needs itself")
        self.tiles = [
            TensorTile(em, slot, self.depth, cluster if slot.multicast else 1) for slot in flow.spec.slots
        ]  # fmt: skip
        for site in flow.puts:
            for number, op in sorted(site.ops.items()):
                window = scope.slice_view(rings.slice_of(op), lambda _: 0)  # wherever it begins
                self.tiles[number].describe(window[0], op)
        self.rewriters = rewriters if any(slot.rewrite for slot in flow.spec.slots) else 0  # warps
        barriers = em.alloc_smem([(3 if self.rewriters else 2) * self.depth], ir.IntegerType.get_signless(64))
        with em.at_entry():
            self.start = memref.ExtractAlignedPointerAsIndexOp(barriers).result

    def full(self, slot: IndexValue) -> ir.Value:
        """The mbarrier that a slot's copies complete."""
        return self.em.shared_pointer(self.em.add(self.start, self.em.mul(slot, 8)))

    def empty(self, slot: IndexValue) -> ir.Value:
        """The mbarrier at which a slot's readers arrive."""
        return self.em.shared_pointer(self.em.add(self.start, self.em.add(self.em.mul(slot, 8), 8 * self.depth)))

    def ready(self, slot: IndexValue) -> ir.Value:
        """The mbarrier at which those arrive who write a slot's tiles anew."""
        return self.em.shared_pointer(self.em.add(self.start, self.em.add(self.em.mul(slot, 8), 16 * self.depth)))

    def initialize(self) -> None:
        """Makes the mbarriers, by one thread."""
        em = self.em
        i32 = ir.IntegerType.get_signless(32)
        for slot in range(self.depth):
            nvvm.MBarrierInitOp(self.full(slot), em.constant(ir.IntegerAttr.get(i32, 1)))
            readers = em.constant(ir.IntegerAttr.get(i32, self.readers * self.cluster))
            nvvm.MBarrierInitOp(self.empty(slot), readers)
            if self.rewriters:
                nvvm.MBarrierInitOp(self.ready(slot), em.constant(ir.IntegerAttr.get(i32, self.rewriters)))

    def first(self, sites: list[Site], site: Site, scope) -> IndexValue:
        """The number of the slot that a site uses first: behind those of the sites in front of it, as a scope sees
        them, and of the blocks that this one computed before."""
        em, first = self.em, 0
        for other in sites[: sites.index(site)]:
            first = em.add(first, count_of(other, scope))
        turn, started = scope.program.turn, scope.program.started.get(self.flow.ring)
        if turn == 0 or started is not None:
            return em.add(first, started or 0)
        counts = [s.count() for s in sites]
        return em.add(first, em.mul(turn, sum(n for n in counts if n is not None)))

    def place(self, number: IndexValue) -> tuple[IndexValue, IndexValue]:
        """(slot, parity of its phase) of a number."""
        em = self.em
        return em.rem(number, self.depth), em.rem(em.div(number, self.depth), 2)

    def wait(self, barrier: ir.Value, parity: IndexValue, other: bool = False) -> ir.Operation:
        """Waits until the phase of this parity (or of the other one) has ended."""
        i32 = ir.IntegerType.get_signless(32)
        phase = arith.IndexCastOp(i32, self.em.value(parity)).result
        if other:
            phase = arith.XOrIOp(phase, self.em.constant(ir.IntegerAttr.get(i32, 1))).result
        patience = self.em.constant(ir.IntegerAttr.get(i32, PATIENCE))
        return nvvm.MBarrierTryWaitParityOp(barrier, phase, patience).operation

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

    def claim(self, number: IndexValue) -> None:
        """Waits until a slot is free, and says how much will be copied there; by one thread of the block."""
        em = self.em
        slot, parity = self.place(number)
        self.wait(self.empty(slot), parity, other=True)
        nbytes = em.constant(ir.IntegerAttr.get(ir.IntegerType.get_signless(32), sum(t.nbytes for t in self.tiles)))
        nvvm.MBarrierArriveExpectTxOp(self.full(slot), nbytes)

    def copy(self, number: IndexValue, tile: int, window: access.View, rank: IndexValue) -> None:
        """Starts the copy of one tile, by the same thread of the block number `rank` of its cluster. One that is
        multicast is a part of it from each block, to all of them."""
        target, (slot, _) = self.tiles[tile], self.place(number)
        shared = target.split > 1
        everybody = (1 << self.cluster) - 1 if shared else 0
        target.copy(window, slot, self.full(slot), rank if shared else 0, everybody)

    def rewrite(self, number: IndexValue) -> None:
        """Writes a slot's tiles anew, by the team that works: where they lie, or where those of a slot lie that every
        reader is done with."""
        em = self.em
        anew = [(tile, tile.rewriting) for tile in self.tiles if tile.rewriting is not None]
        if not all(kind.in_place for _, kind in anew):
            before, turn = self.place(em.add(number, self.depth - rewriting.SLOTS))
            self.wait(self.empty(before), turn, other=True)
        slot, parity = self.place(number)
        self.wait(self.full(slot), parity)
        for tile, kind in anew:
            kind.write(em, (tile.buffer, slot), tile.anew(slot, number), tile.shared)
        asynchronous.proxy_fence()
        em.warp_barrier()
        with predicated(em.equal(em.lane, 0)):
            nvvm.MBarrierArriveOp(self.ready(slot))


def count_of(site: Site, scope) -> IndexValue:
    """How many slots a site uses, as a scope sees it."""
    return 1 if site.loop is None else LoopPlaces(scope, site.loop).count()
