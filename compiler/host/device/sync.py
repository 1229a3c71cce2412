"""Barriers and the scheduler of the groups of threads that a launch has split into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mlirc.host.device.limits import Stop
from mlirc.host.device.machine import Machine, State
from mlirc.host.device.scf_rules import Fork
from mlirc.host.device.translate import Code, Program


@dataclass
class Wait:
    """Event of a step: go on when `ready()` holds. `what` says what is waited for, `who` which threads wait."""

    ready: Callable[[], bool]
    what: str | Callable[[], str]
    who: np.ndarray
    op: object


@dataclass
class Barrier:
    """One barrier of every block of the batch: who has arrived, and how often it has opened."""

    arrived: np.ndarray
    opened: np.ndarray
    left: dict[int, np.ndarray] = field(default_factory=dict)  # per block the clocks of who has arrived
    taken: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # (block, times opened) -> clocks


def block_barrier(s: State, op, number: int = 0, threads: int | None = None):
    """bar.sync: waits for all threads of the block, or for a number of them. A generator of events."""
    m: Machine = s.m
    wanted = m.nt if threads is None else threads
    mine = np.ones((m.nb, m.nt), bool) if s.mask is None else np.broadcast_to(s.mask, (m.nb, m.nt))
    counts = mine.sum(axis=1)
    if wanted == m.nt and ((counts == 0) | (counts == m.nt)).all() and number not in m.arrived:
        if m.races is not None:
            m.races.barrier(s.mask, counts > 0)
            if m.clocks is not None:
                m.clocks.meet(m.clocks.active(s.mask))
        if m.waited is not None:
            m.share_wait(mine)
        return
    b: Barrier = m.arrived.setdefault(number, Barrier(np.zeros((m.nb, m.nt), bool), np.zeros(m.nb, np.int64)))
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
    yield Wait(
        lambda: bool((b.opened[blocks] >= target).all()),
        f"barrier {number} of the block, which the others never reach"
        if number
        else "the barrier of the block, which the others never reach",
        mine,
        op,
    )
    for k, row in here:
        m.clocks.acquire(k, row, b.taken[k, goal[k]])
    if m.races is not None and m.clocks is not None:
        m.races.met(s.mask)


def _check_arrivals(m: Machine, b: Barrier, mine: np.ndarray, wanted: int, op) -> None:
    """A barrier's count is of whole warps, and no thread arrives twice before it opens."""
    twice = b.arrived & mine
    if m.check and twice.any():
        m.complain("divergent barrier", twice, "arrives twice at a barrier that has not opened", op)
    if m.check and wanted % 32 and wanted != m.nt:
        m.complain("divergent barrier", mine, f"waits for {wanted} threads: a barrier takes whole warps", op)


def warp_barrier(s: State, needed: np.ndarray, op) -> None:
    """bar.warp.sync: the lanes of the 32-bit mask must all be here."""
    m = s.m
    if s.mask is not None:
        here = np.broadcast_to(s.mask, (m.nb, m.nt))
        lanes = m.lane
        wanted = (np.broadcast_to(needed, (1, 1)).astype(np.int64) >> lanes) & 1 != 0
        warps = here.reshape(m.nb, -1, min(32, m.nt))
        missing = warps.any(axis=2, keepdims=True) & ~warps & np.broadcast_to(wanted, (m.nb, m.nt)).reshape(warps.shape)
        if missing.any():
            m.complain("divergent barrier", missing.reshape(m.nb, m.nt), "does not reach a barrier of its warp", op)
    if m.waited is not None:
        for w in range(0, m.nt, 32):
            warp = np.zeros((m.nb, m.nt), bool)
            warp[:, w : w + 32] = True if s.mask is None else np.broadcast_to(s.mask, (m.nb, m.nt))[:, w : w + 32]
            m.share_wait(warp)
    if m.races is not None:
        m.races.warp_barrier(s.mask)


@dataclass
class Task:
    """A group of threads under way."""

    run: object
    parent: Task | None = None
    children: int = 0
    wait: Wait | None = None


SPLITS = (2, 2, 2, 2, 2, 3, 3, 4)  # numbers of groups to draw from: every group costs about as much as the whole block


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
    dealt = np.take_along_axis(place % count, np.broadcast_to(number, (m.nb, m.nt)), axis=1)
    return [dealt == g for g in range(count)]


@dataclass
class Scheduler:
    """Runs tasks until all have ended; which of several ready ones goes next is drawn."""

    machine: Machine
    draw: np.random.Generator
    blocked: list[Task] = field(default_factory=list)

    def run(self, code: Code, registers: list, groups: list[np.ndarray | None]) -> None:
        """Runs a kernel's code for each of the groups of threads; raises Stop after reporting a deadlock."""
        draw, m = self.draw, self.machine
        ready = [Task(code.start(State(list(registers), mask, m))) for mask in groups]
        while ready or self.blocked:
            if not ready:
                ready = [t for t in self.blocked if t.wait is None or t.wait.ready()]
                if not ready:
                    if self.machine.engine is not None and self.machine.engine.advance():
                        continue
                    self._deadlock()
                self.blocked = [t for t in self.blocked if not any(t is o for o in ready)]
            task = ready.pop(int(draw.integers(len(ready))) if len(ready) > 1 else 0)
            task.wait = None
            ready += self._advance(task)

    def _advance(self, task: Task) -> list[Task]:
        event = next(task.run, None)  # type: ignore[call-overload]
        if event is None:
            parent = task.parent
            if parent is None:
                return []
            parent.children -= 1
            return [parent] if parent.children == 0 else []
        if isinstance(event, Fork):
            children = [Task(code.start(state), task) for code, state in event.branches]
            task.children = len(children)
            return children
        task.wait = event
        self.blocked.append(task)
        return []

    def _deadlock(self) -> None:
        m = self.machine
        waiting: dict[int, tuple[Wait, np.ndarray]] = {}  # by operation: groups that wait at one are one finding
        for task in self.blocked:
            w = task.wait
            assert w is not None
            first, who = waiting.get(hash(w.op), (w, np.zeros_like(w.who)))
            waiting[hash(w.op)] = first, who | w.who
        for w, who in waiting.values():
            per_block = who.sum(axis=1)
            b = int(np.flatnonzero(per_block)[0])
            threads = np.flatnonzero(who[b])
            others = int((per_block > 0).sum()) - 1
            m.report.add(
                "deadlock",
                f"{per_block[b]} of {m.nt} threads of block {int(m.blocks[b])} ({threads[0]}..{threads[-1]}) wait for "
                f"{w.what if isinstance(w.what, str) else w.what()}"
                + (f"; likewise in {others} more blocks" if others else ""),
                w.op,
                m.kernel,
            )
        raise Stop
