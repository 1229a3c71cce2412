"""cp.async: a copy's bytes arrive when its thread waits for its group, not before, and are visible to other threads
after a barrier that follows.

Groups are each thread's own (PTX ISA, "cp.async.commit_group"): a thread commits its copies since its last commit, and
waits for its own groups only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mlirc.device.machine import Machine, State
from mlirc.device.memory import Buffer, MemRef, gather, scatter
from mlirc.device.numbers import UNSIGNED


@dataclass
class Copy:
    """One cp.async of many threads, on its way."""

    target: MemRef
    address: np.ndarray  # element numbers in the target's storage [n]
    words: np.ndarray  # [n, width]
    threads: np.ndarray | None  # counted through the batch [n], None: all
    group: int | np.ndarray  # how often each thread had committed before, [n] where that differs
    number: int  # of the copy, in the order of the batch
    op: Any

    def part(self, chosen: np.ndarray) -> Copy:
        """The copies of some of the threads (bool [n])."""
        threads = np.flatnonzero(chosen) if self.threads is None else self.threads[chosen]
        group = self.group if isinstance(self.group, int) else self.group[chosen]
        return replace(self, address=self.address[chosen], words=self.words[chosen], threads=threads, group=group)


@dataclass
class Copies:
    """The copies under way of a batch, and how many groups each thread has committed: one number while all threads
    commit together, else an array counted through the batch."""

    committed: int | np.ndarray = 0
    under_way: list[Copy] = field(default_factory=list)
    issued: int = 0

    def commits_of(self, threads: np.ndarray | None) -> int | np.ndarray:
        """How many groups some threads have committed."""
        if isinstance(self.committed, int):
            return self.committed
        return self.committed if threads is None else self.committed[threads]

    def commit(self, active: np.ndarray | None, threads: int) -> None:
        """The active of the batch's threads (bool [threads], None: all) commit a group."""
        if active is None:
            self.committed = self.committed + 1
            return
        if isinstance(self.committed, int):
            self.committed = np.full(threads, self.committed)
        self.committed[active] += 1

    def writing(self, buffer: Buffer, first: int, nbytes: int) -> Any:
        """The operation of a copy under way to any of the bytes of a buffer's storage; None if there is none."""
        for c in self.under_way:
            item = c.target.item
            if c.target.buffer is buffer:
                byte = c.address * item
                if ((byte < first + nbytes) & (first < byte + c.words.shape[1] * item)).any():
                    return c.op
        return None

    def take(self, active: np.ndarray | None, due: Callable[[Copy], bool | np.ndarray]) -> list[Copy]:
        """Removes the copies of the active threads that are due (bool, or bool [n]); returns them."""
        taken, kept = [], []
        for c in self.under_way:
            which = due(c)
            if active is not None:
                which = which & (active if c.threads is None else active[c.threads])
            if np.all(which):
                taken.append(c)
            elif not np.any(which):
                kept.append(c)
            else:
                assert isinstance(which, np.ndarray)
                taken.append(c.part(which))
                kept.append(c.part(~which))
        self.under_way = kept
        return taken


def active_threads(s: State) -> np.ndarray | None:
    """The active threads counted through the batch (bool), None for all."""
    m = s.m
    if s.mask is None:
        return None
    full = m.full(s.mask)
    return None if full.all() else full.ravel()


def copy_async(s: State, to: tuple, at: tuple, width: int, count, op) -> None:
    """Starts copies of `width` elements per thread, of which `count` are read and the rest are zeros."""
    m, (target, to_indices), (source, at_indices) = s.m, to, at
    item, mask = target.item, s.mask
    nbytes = item * width
    if m.check:
        to_indices, mask = m.in_bounds(target, to_indices, width, mask, op)
    words = _source(s, source, at_indices, width, count, mask, op)
    if m.waited is not None:
        m.check_wait(target.buffer, mask, True, op)
    offset = target.offset(to_indices)
    if m.check:
        mask = m.inside(target, offset, width, mask, op)
        if mask is not None and not mask.any():
            return
    fits = m.aligned(target, offset, width, nbytes, mask, op)
    if not isinstance(offset, np.ndarray):
        offset = np.full((1, 1), offset, dtype=np.int64)
    if m.counters is not None:
        m.count_access(target, offset, width, mask, True, op)
    address = m.absolute(target.buffer, offset, item)
    chosen = m.lanes(mask)
    if m.check and m.races is not None:
        m.races.note(target.buffer, address, width, item, True, mask, op)
    rows = np.ascontiguousarray(m.compress(words, chosen))
    copies: Copies = m.copies
    copy = Copy(target, m.compress(address, chosen), rows, chosen, copies.commits_of(chosen), copies.issued, op)
    copies.issued += 1
    if m.check:
        if target.buffer.reading is not None:
            m.check_reading(target.buffer, address, item, width, fits, mask, op)
        busy = gather(target.buffer.mark("pending"), "pending", address, item, width, fits).any(axis=-1)
        bad = m.active(mask, busy)
        if bad is not None:
            byte = m.first(bad, address) * item
            other = copies.writing(target.buffer, byte, nbytes)
            place = f"byte {target.buffer.within(byte)} of {target.buffer.name}"
            which = "another copy" if other is None else f"the copy at {m.report.place(other)}"
            m.complain("overlapping copies", bad, f"copies to {place}, where {which} is under way", op)
        _mark(copy, 0xFF, fits)
    copies.under_way.append(copy)


def _source(s: State, source: MemRef, indices: list, width: int, count, mask, op) -> np.ndarray:
    """What the active threads' copies read: `count` of `width` elements each, and zeros; what is not read may lie
    anywhere."""
    m, nbytes = s.m, source.item * width
    if isinstance(count, int) and count == width:
        return m.load(source, indices, width, nbytes, mask, op)
    many = np.asarray(count).reshape(np.shape(count) or (1, 1))

    def reading(some: np.ndarray):
        return some if mask is None else some & mask

    if not reading((many > 0) & (many < width)).any():
        words = m.load(source, indices, width, nbytes, reading(many > 0), op)
    else:  # only as many elements have to be in bounds
        columns = []
        for i in range(width):
            at = [*indices[:-1], indices[-1] + i]
            columns.append(m.load(source, at, 1, source.item, reading(many > i), op))
        words = np.concatenate(np.broadcast_arrays(*columns), axis=-1)
    return np.where(np.arange(width) < many[..., None], words, 0).astype(words.dtype)


def _mark(copy: Copy, value: int, fits: bool = True) -> None:
    item = copy.target.item
    flags = np.full(copy.words.shape, UNSIGNED[item](value * (np.iinfo(UNSIGNED[item]).max // 255)))
    scatter(copy.target.buffer, "pending", copy.address, flags, item, fits)


def commit(s: State) -> None:
    """cp.async.commit_group."""
    s.m.copies.commit(active_threads(s), s.m.nb * s.m.nt)


def wait_group(s: State, pending: int) -> None:
    """cp.async.wait_group: at most `pending` of each thread's latest groups may still be on their way."""
    copies: Copies = s.m.copies
    finish(s.m, copies.take(active_threads(s), lambda c: c.group < copies.commits_of(c.threads) - pending))


def finish(m: Machine, done: list[Copy]) -> None:
    """The bytes of copies arrive."""
    for c in done:
        item = c.target.item
        m.write(c.target.buffer, c.address, c.words, item, True)
        if m.check:
            _mark(c, 0)
            if m.races is not None:
                m.races.arrived(c.target.buffer, c.address, c.words.shape[1], item, c.threads, c.op)
