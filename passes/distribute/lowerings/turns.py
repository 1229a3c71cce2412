"""Groups of a team's warps that issue a loop's products in turns (`mlirc.turns`): what one group computes between its
products runs while the tensor cores have those of the others (FlashAttention-3's ping-pong: Shah et al., 2024, section
3.1). Without, warps that start together stay in step: all multiply, and then none does.

    group 0     (its turn) products, next | softmax ...            (its turn) products, next | ...
    group 1     ...                         (its turn) products, next | softmax ...

A group has a barrier, at which it waits and the group before arrives behind its products (PTX ISA, "bar, barrier"). In
front of the loop the last group gives the first one its turn, and behind it the first one takes what the last one
gives: every arrival is met, however often the loop runs."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.mlir import ir, nvvm
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.distribute.program.scope import Scope

WARPGROUP = 4  # warps
BARRIERS = 16  # of a block


@dataclass(frozen=True)
class Turns:
    """`groups` of the team that works, with the barriers from number `first` on."""

    em: Emitter
    groups: int
    first: int

    @property
    def group(self) -> IndexValue:
        """Of this thread."""
        with self.em.at_entry():
            return self.em.div(self.em.team.warp, self.em.team.warps // self.groups)

    def _numbers(self, group: int) -> tuple[ir.Value, ir.Value]:
        """A group's barrier, and the threads that meet there: the group's and those of the one before."""
        i32 = ir.IntegerType.get_signless(32)
        both = 2 * self.em.team.threads // self.groups
        number, threads = (self.em.constant(ir.IntegerAttr.get(i32, n)) for n in (self.first + group, both))
        return number, threads

    def _await(self, group: int) -> None:
        with predicated(self.em.equal(self.group, group)):
            number, threads = self._numbers(group)
            nvvm.BarrierOp(barrierId=number, numberOfThreads=threads)

    def _give(self, group: int) -> None:
        with predicated(self.em.equal(self.group, group)):
            number, threads = self._numbers((group + 1) % self.groups)
            nvvm.BarrierArriveOp(numberOfThreads=threads, barrierId=number)

    def begin(self) -> None:
        """In front of the loop."""
        self._give(self.groups - 1)

    def end(self) -> None:
        """Behind the loop."""
        self._await(0)

    def take(self, body: ir.Block, loop: ir.Operation) -> None:
        """In the loop's body: an iteration's products are a group's turn. Raises Unsupported where it issues none."""
        ops = [o.operation for o in body.operations]
        fences = [op for op in ops if op.name == "nvvm.wgmma.fence.aligned"]
        commits = [op for op in ops if op.name == "nvvm.wgmma.commit.group.sync.aligned"]
        if not fences or not commits:
            raise Unsupported("mlirc.turns: no product of warpgroups (wgmma) in this loop: leave it out", loop, "turns")
        with ir.InsertionPoint(fences[0]):
            for group in range(self.groups):
                self._await(group)
        with ir.InsertionPoint.after(commits[-1]):
            for group in range(self.groups):
                self._give(group)


def turns_of(scope: Scope, loop: ir.Operation) -> Turns | None:
    """What a loop's schedule says; raises Unsupported for groups that are no warpgroups, or have no barriers left."""
    em, team = scope.em, scope.em.team
    groups = em.taken.take(loop, "turns", 1)
    if groups == 1:
        return None
    if team.warps % (groups * WARPGROUP):
        what = f"{team.warps} warps that compute are not {groups} groups of whole warpgroups (of {WARPGROUP})"
        raise Unsupported(f"mlirc.turns = {groups}: {what}", loop, "turns")
    known = [warps.barrier for warps in scope.program.teams]
    first = max(known) + 1 + max(team.members.barrier - 1, 0) * groups
    if first + groups > BARRIERS:
        what = f"a block has {BARRIERS} barriers, and its teams have {max(known) + 1}: fewer groups, or fewer teams"
        raise Unsupported(f"mlirc.turns = {groups}: {what}", loop, "turns")
    return Turns(em, groups, first)
