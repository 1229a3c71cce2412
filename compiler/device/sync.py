"""Barriers and the scheduler of the groups of threads that a launch has split into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirc.device.deadlocks import report_deadlock
from mlirc.device.events import Fork, Wait
from mlirc.device.limits import Stop
from mlirc.device.machine import WARP, Machine, State
from mlirc.device.membermask import active_lanes, check_aligned, members
from mlirc.device.membermask import threads as threads_of
from mlirc.device.translate import Program

BARRIERS = 16  # of a block, by their numbers


@dataclass
class Barrier:
    """One barrier of every block of the batch: who has arrived, and how often it has opened."""

    arrived: np.ndarray
    opened: np.ndarray
    wanted: np.ndarray  # per block how many threads it waits for, as who arrived first said
    first: dict[int, Any] = field(default_factory=dict)  # per block the operation by which somebody arrived first
    left: dict[int, np.ndarray] = field(default_factory=dict)  # per block the clocks of who has arrived
    taken: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # (block, times opened) -> clocks


def block_barrier(s: State, op, number: int = 0, threads: int | None = None):
    """bar.sync: waits for all threads of the block, or for a number of them. A generator of events."""
    m: Machine = s.m
    wanted = m.nt if threads is None else threads
    mine = m.everyone(s.mask)
    if m.check:
        _check_barrier(m, mine, number, threads, op)
    counts = mine.sum(axis=1)
    if wanted == m.nt and ((counts == 0) | (counts == m.nt)).all() and number not in m.arrived:
        if m.races is not None:
            m.races.barrier(s.mask, counts > 0)
            if m.clocks is not None:
                m.clocks.meet(m.clocks.active(s.mask))
        if m.waited is not None:
            m.share_wait(mine)
        return
    none = np.zeros(m.nb, np.int64)
    b: Barrier = m.arrived.setdefault(number, Barrier(np.zeros((m.nb, m.nt), bool), none, none.copy()))
    blocks = counts > 0
    target = b.opened[blocks] + 1
    _check_arrivals(m, b, mine, wanted, op)
    b.arrived |= mine
    here = m.clocks.active(s.mask) if m.clocks is not None else []
    for k, row in here:
        m.clocks.release(k, row, b.left.setdefault(k, np.zeros(m.clocks.columns, np.int32)))
    complete = b.arrived.sum(axis=1) >= wanted
    if complete.any():
        if m.waited is not None:
            m.share_wait(b.arrived & complete[:, None])
        b.opened[complete] += 1
        b.arrived[complete] = False
        for k in np.flatnonzero(complete):
            b.taken[int(k), int(b.opened[k])] = b.left.pop(int(k), np.zeros(0, np.int32))
        if m.races is not None:  # of some threads only: taken for one of all, so that no order is overlooked
            m.races.barrier(s.mask, complete)
    goal = dict(zip(np.flatnonzero(blocks).tolist(), target.tolist(), strict=True))
    yield _wait_for_barrier(b, mine, blocks, target, (number, wanted), op)
    if m.races is not None and m.clocks is not None:
        m.races.met(s.mask)
    for k, row in here:
        m.clocks.lanes.meet(k, row % m.clocks.warps)
        m.clocks.acquire(k, row, b.taken[k, goal[k]])


def _wait_for_barrier(b: Barrier, mine: np.ndarray, blocks: np.ndarray, target: np.ndarray, which: tuple[int, int], op):
    """The wait of threads that have arrived at a barrier (its number, and how many it waits for) until it has opened in
    their `blocks` as often as `target` says."""
    number, wanted = which
    goals = np.zeros(len(blocks), np.int64)
    goals[blocks] = target
    name = f"barrier {number} of the block" if number else "the barrier of the block"
    whole = wanted == mine.shape[1]
    return Wait(
        lambda: bool((b.opened[blocks] >= target).all()),
        lambda k: name if whole else f"{name}, where {int(b.arrived[k].sum())} of {wanted} threads have arrived",
        mine,
        op,
        still=lambda: mine & (b.opened < goals)[:, None],
        missing=(lambda k: ~b.arrived[k]) if whole else None,
    )


def _check_barrier(m: Machine, mine: np.ndarray, number: int, threads: int | None, op) -> None:
    """PTX ISA, "barrier": there are 16 per block, a count is of whole warps, and all of a warp's lanes execute the same
    one (it is `.aligned`)."""
    if not 0 <= number < BARRIERS:
        m.complain("bad barrier", mine, f"is number {number}: a block has {BARRIERS} barriers, from 0 on", op)
    if threads is not None and (threads <= 0 or threads % WARP):
        m.complain("bad barrier", mine, f"waits for {threads} threads: a barrier takes whole warps of {WARP}", op)
    check_aligned(m, mine, op)


def _check_arrivals(m: Machine, b: Barrier, mine: np.ndarray, wanted: int, op) -> None:
    """All who meet say the same count, no thread arrives twice before it opens, and where the dialect asks for one
    operation that all threads execute, it is one."""
    if not m.check:
        return
    twice = b.arrived & mine
    if twice.any():
        m.complain("divergent barrier", twice, "arrives twice at a barrier that has not opened", op)
    begun: np.ndarray = np.asarray(b.arrived.any(axis=1))
    here = mine.any(axis=1)
    other = begun & here & (b.wanted != wanted)
    if other.any():
        count = int(b.wanted[other][0])
        message = f"waits for {wanted} threads at a barrier at which others wait for {count}"
        m.complain("bad barrier", mine & other[:, None], message, op)
    b.wanted[here & ~begun] = wanted
    for k in np.flatnonzero(here):
        first = b.first[int(k)] if begun[k] else op
        b.first[int(k)] = first
        if first != op and "gpu.barrier" in (first.name, op.name):
            message = f"meets others at {first.name} at {m.report.place(first)}: all threads of a block execute one"
            m.complain("divergent barrier", mine & (np.arange(m.nb)[:, None] == k), message, op)


def warp_barrier(s: State, mask: np.ndarray, op) -> None:
    """bar.warp.sync: orders the lanes that the 32-bit mask names, which must all be here."""
    m = s.m
    group = members(s, mask, op)
    if group.shape[1] == 1:
        _meet(s, None if s.mask is None and group.all() else threads_of(m, group[:, 0]))
        return
    lead = group.argmax(axis=2)  # the first lane of each lane's group
    for first in np.unique(lead[active_lanes(s)]):
        _meet(s, threads_of(m, active_lanes(s) & (lead == first)))


def _meet(s: State, mask: np.ndarray | None) -> None:
    """Some lanes of each warp (bool [blocks, threads]; None: all) meet."""
    m = s.m
    if m.waited is not None:
        for w in range(0, m.nt, WARP):
            warp = np.zeros((m.nb, m.nt), bool)
            warp[:, w : w + WARP] = True if mask is None else mask[:, w : w + WARP]
            m.share_wait(warp)
    if m.races is not None:
        m.races.warp_barrier(mask)


@dataclass
class Task:
    """A group of threads under way. `number`: tasks are counted in the order of blocks and threads."""

    run: object
    machine: Machine
    number: int
    parent: Task | None = None
    children: int = 0
    wait: Wait | None = None
    held: bool = False  # until no other task can go on


SPLITS = (2, 2, 2, 3, 3, 4)  # numbers of groups to draw from: every group costs about as much as the whole block


def groups_of(m: Machine, program: Program, draw: np.random.Generator | None) -> list[np.ndarray | None]:
    """The groups that the threads of a batch run in, as masks [blocks or 1, threads]; None: all threads.

    A group is of whole units (warps, or warpgroups where there is wgmma). Where units wait for each other by more than
    barriers of the block, each is a group of its own. Else all are together, or with `draw` each block's units are
    dealt out to a few groups at random."""
    units = -(-m.nt // program.unit)
    number = np.arange(m.nt)[None, :] // program.unit
    if program.waits:
        return [number == u for u in range(units)] if units > 1 else [None]
    if draw is None:
        return [None]
    count = min(int(draw.choice(SPLITS)), units if units > 1 else m.nb)
    if count == 1:
        return [None]
    place = draw.random((m.nb, units)).argsort(axis=1) + draw.permutation(m.nb)[:, None]
    dealt = np.take_along_axis(place % count, m.full(number), axis=1)
    return [dealt == g for g in range(count)]


@dataclass
class Scheduler:
    """Runs tasks until all have ended. `machines` are started in their order, `resident` at a time (as many as a GPU
    holds at once), and handed to `finish` when they have ended. Which of several tasks that can go on is next is drawn,
    or is the one with the `first` or `last` number; the groups of threads are drawn where `varied`. `hold`: a block of
    which every task that comes to an operation (its hash) lets all others go on first."""

    machines: Iterator[Machine]
    finish: Callable[[Machine], None]
    draw: np.random.Generator
    varied: bool
    pick: str = "drawn"
    resident: int = 1
    hold: tuple[int, int] | None = None
    shortage: Callable[[int], str] = lambda running: ""  # why blocks have not started, while so many run or have run
    blocked: list[Task] = field(default_factory=list)
    live: dict[int, tuple[Machine, int]] = field(default_factory=dict)  # machines under way, and tasks left of each
    begun: int = 0  # machines
    tasks: int = 0
    points: dict[int, int] = field(default_factory=dict)  # operations in front of which tasks let others run: how often

    def run(self, program: Program, registers: list) -> None:
        """Runs a kernel's code on all machines; raises Stop after reporting a deadlock."""
        ready = self._start(program, registers)
        while ready or self.blocked:
            if not ready:
                ready = [t for t in self.blocked if not t.held and (t.wait is None or t.wait.ready())]
                ready = ready or [t for t in self.blocked if t.held]
                if not ready:
                    if any(m.engine is not None and m.engine.advance() for m, _ in self.live.values()):
                        continue
                    self._deadlock()
                chosen = {id(t) for t in ready}
                self.blocked = [t for t in self.blocked if id(t) not in chosen]
            task = ready.pop(self._choose(ready))
            task.wait, task.held = None, False
            ready += self._advance(task)
            if len(self.live) < self.resident:
                ready += self._start(program, registers)

    def _choose(self, ready: list[Task]) -> int:
        if len(ready) == 1:
            return 0
        if self.pick == "drawn":
            return int(self.draw.integers(len(ready)))
        numbers = [t.number for t in ready]
        return numbers.index(min(numbers) if self.pick == "first" else max(numbers))

    def _start(self, program: Program, registers: list) -> list[Task]:
        """Starts machines while there is room for them."""
        tasks: list[Task] = []
        while len(self.live) < self.resident and (m := next(self.machines, None)) is not None:
            groups = groups_of(m, program, self.draw if self.varied else None)
            for mask in groups:
                mine = list(registers)
                for number, memory in m.own.items():
                    mine[number] = memory
                tasks.append(Task(program.code.start(State(mine, mask, m)), m, self.tasks))
                self.tasks += 1
            self.live[id(m)] = m, len(groups)
            self.begun += 1
        return tasks

    def _advance(self, task: Task) -> list[Task]:
        event = next(task.run, None)  # type: ignore[call-overload]
        if event is None:
            parent = task.parent
            if parent is None:
                self._end(task.machine)
                return []
            parent.children -= 1
            return [parent] if parent.children == 0 else []
        if isinstance(event, Fork):
            children = [Task(code.start(state), task.machine, task.number, task) for code, state in event.branches]
            task.children = len(children)
            return children
        task.wait = event
        if event.free:
            point = hash(event.op)
            self.points[point] = self.points.get(point, 0) + 1
            task.held = self.hold is not None and self.hold[0] == point and self.hold[1] in task.machine.blocks
        self.blocked.append(task)
        return []

    def _end(self, machine: Machine) -> None:
        """A task of a machine has ended."""
        left = self.live[id(machine)][1] - 1
        self.live[id(machine)] = machine, left
        if not left:
            del self.live[id(machine)]
            self.finish(machine)

    def _deadlock(self) -> None:
        waits = [(t.machine, t.number, t.wait) for t in self.blocked if t.wait is not None]
        report_deadlock(waits, self.shortage(self.begun))
        raise Stop
