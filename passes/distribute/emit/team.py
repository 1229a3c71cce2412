"""Teams: warps of a block that work together. Layouts, barriers, reductions and elections are those of the team that
works (`Emitter.team`); a block whose warps all do the same is one team."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from mlirc.mlir import arith, gpu, ir, nvvm, scf
from mlirc.passes.distribute.emit.builder import Builder, IndexValue, Unsupported
from mlirc.passes.distribute.emit.pending import Groups
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.schedule.attributes import Taken
from mlirc.targets import Target


@dataclass(frozen=True)
class Warps:
    """`warps` of a block from its warp number `first` on. `barrier`: the number of the barrier at which they meet (0:
    all of the block's warps); `registers`: of a thread, where whole warpgroups move some (PTX ISA, "setmaxnreg").
    `alike`: so many teams of as many warps stand one behind the other, and do the same at once, each for itself: what
    is emitted is emitted once, and a thread is in one of them. They meet at the barriers from number 1 on."""

    warps: int
    first: int = 0
    barrier: int = 0
    registers: int | None = None
    alike: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.warps

    def part(self, first: int, warps: int) -> Warps:
        """Some of these warps, from the team's own number `first` on. Where they are several, they do not meet."""
        assert first + warps <= self.warps
        return Warps(warps, self.first + first, self.barrier, self.registers)


class Team:
    """Warps of a block, and what they emit together."""

    def __init__(self, em: Builder, members: Warps):
        self.em, self.members = em, members
        self.first, self.warps, self.threads = members.first, members.warps, members.threads
        self.alike = members.alike
        assert self.first + self.warps * self.alike <= em.block_warps
        self.groups = Groups()  # of products that may be under way
        self.begins: ir.Operation | None = None  # where what it does begins, where others do something else
        self._parts: dict = {}
        self._own: dict[str, IndexValue] = {}

    def _number(self, of_block: IndexValue, before: int, count: int) -> IndexValue:
        """A number in the block less what is before the team; of several alike, in the thread's own one."""
        number = self.em.sub(of_block, before) if before else of_block
        return self.em.rem(number, count) if self.alike > 1 else number

    @property
    def number(self) -> IndexValue:
        """Which of several teams that are alike the thread is in."""
        if self.alike == 1:
            return 0
        if "number" not in self._own:
            with self.em.at_entry():
                self._own["number"] = self.em.div(self.em.sub(self.em.block_warp, self.first), self.warps)
        return self._own["number"]

    @property
    def warp(self) -> IndexValue:
        """The warp's number in the team."""
        if "warp" not in self._own:
            with self.em.at_entry():
                self._own["warp"] = self._number(self.em.block_warp, self.first, self.warps)
        return self._own["warp"]

    @property
    def thread(self) -> IndexValue:
        """The thread's number in the team."""
        if "thread" not in self._own:
            with self.em.at_entry():
                self._own["thread"] = self._number(self.em.block_thread, 32 * self.first, self.threads)
        return self._own["thread"]

    @property
    def whole(self) -> bool:
        """Whether all of the block's warps are of the team."""
        return self.warps == self.em.block_warps

    def begin(self) -> None:
        """What the team does begins here."""
        self.begins = arith.ConstantOp(self.em.index, 0).operation

    @contextmanager
    def run(self) -> Iterator[Groups]:
        """What is built inside is one run of a block, which begins with nothing under way."""
        outer, self.groups = self.groups, Groups()
        try:
            yield self.groups
        finally:
            self.groups = outer

    # -- who

    def comes_first(self) -> bool | ir.Value:
        """Whether a thread is of the team, if it is of none in front of it."""
        em, last = self.em, self.first + self.warps
        if self.first and self.warps == 1:
            return True if last == em.block_warps else em.equal(em.block_warp, self.first)
        return True if last == em.block_warps else em.less(em.block_warp, last)

    def leads(self) -> bool | ir.Value:
        """Whether the thread is the team's first one."""
        em = self.em
        return em.equal(em.lane if self.warps == 1 else self.thread, 0)

    def thread_part(self, layout: Layout, dim: int) -> IndexValue:
        """The coordinate of a thread's first register along a dimension."""
        em, key = self.em, (layout.dims[dim], layout.xors_of(dim))
        if key not in self._parts:
            total: IndexValue = 0
            with em.at_entry():
                if layout.xors_of(dim):
                    total = self._xored_part(layout, dim)
                    self._parts[key] = total
                    return total
                for kind, number in (("l", em.lane), ("w", self.warp)):
                    for f, weight in layout.thread_factors(dim, kind):
                        others = self.warps if self.alike > 1 else em.block_warps - self.first
                        whole = others if kind == "w" else 32
                        part = em.div(number, f.stride)
                        if f.stride * f.size < whole:
                            part = em.rem(part, f.size)
                        total = em.add(total, em.mul(part, weight))
            self._parts[key] = total
        return self._parts[key]

    def _xored_part(self, layout: Layout, dim: int) -> IndexValue:
        em, total = self.em, self.em.c(0)
        for row in layout.map.rows:
            if row.axis != f"d{dim}":
                continue
            digit = em.c(0)
            for axis, stride in sorted(row.sources):
                if axis != "r":
                    number = em.lane if axis == "l" else self.warp
                    digit = arith.XOrIOp(digit, em.value(em.rem(em.div(number, stride), row.size))).result
            total = arith.AddIOp(total, em.value(em.mul(digit, row.weight))).result
        return total

    def coordinate(self, layout: Layout, dim: int, register: int) -> IndexValue:
        """The coordinate of a thread's register along a dimension."""
        em, first = self.em, self.thread_part(layout, dim)
        offset = int(layout.reg_offsets[register, dim])
        if not layout.xors_of(dim):
            return em.add(first, offset)
        return arith.XOrIOp(em.value(first), em.c(offset)).result if offset else first

    # -- where they meet

    def meet(self) -> None:
        """All threads of the team meet: what they wrote to memory before is seen by all of them behind it."""
        em = self.em
        if em.spread > 1:
            what = "threads of several blocks would exchange a tile through shared memory, and only sums of rows can be"
            raise Unsupported(f"mlirc.spread = {em.spread}: {what}")
        if self.warps == 1:
            em.warp_barrier()
        elif self.whole:
            gpu.BarrierOp()
        else:
            i32 = ir.IntegerType.get_signless(32)
            assert self.alike > 1 or self.members.barrier, (
                "a team that meets without the others has a barrier of its own"
            )
            threads = em.constant(ir.IntegerAttr.get(i32, self.threads))
            if self.alike == 1:
                number = em.constant(ir.IntegerAttr.get(i32, self.members.barrier))
                nvvm.BarrierOp(barrierId=number, numberOfThreads=threads)
            for team in range(self.alike if self.alike > 1 else 0):
                mine = scf.IfOp(em.condition(em.equal(self.number, team)))
                with ir.InsertionPoint(mine.then_block):
                    number = em.constant(ir.IntegerAttr.get(i32, team + 1))
                    nvvm.BarrierOp(barrierId=number, numberOfThreads=threads)
                    scf.YieldOp([])


class Planner(Protocol):
    """For whom products are planned: an Emitter, or where nothing is emitted, a `Planned`."""

    @property
    def team(self) -> Team | Warps: ...

    target: Target | None
    taken: Taken


@dataclass
class Planned:
    """Warps of which nothing is emitted."""

    team: Warps
    target: Target | None
    taken: Taken
