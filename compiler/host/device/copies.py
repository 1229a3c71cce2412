"""cp.async: a copy's bytes arrive when its thread waits for its group, not before, and are visible to other threads
after a barrier that follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlirc.host.device.machine import State
from mlirc.host.device.memory import MemRef, gather, scatter
from mlirc.host.device.numbers import UNSIGNED


@dataclass
class Copy:
    """One cp.async of many threads, on its way."""

    target: MemRef
    address: np.ndarray  # element numbers in the target's storage [n]
    words: np.ndarray  # [n, width]
    threads: np.ndarray | None
    op: object


def copy_async(s: State, to: tuple, at: tuple, width: int, count, op) -> None:
    """Starts copies of `width` elements per thread, of which `count` are read and the rest are zeros."""
    m, (target, to_indices), (source, at_indices) = s.m, to, at
    item, mask = target.item, s.mask
    nbytes = item * width
    if m.check:
        to_indices, mask = m.in_bounds(target, to_indices, width, mask, op)
    reading = mask
    whole = isinstance(count, int) and count == width
    if not whole:  # what is not read may lie anywhere
        some = np.asarray(count > 0).reshape((1, 1) if isinstance(count, int) else count.shape)
        reading = some if mask is None else some & mask
    words = m.load(source, at_indices, width, nbytes, reading, op)
    if not whole:
        words = np.where(np.arange(width) < np.asarray(count)[..., None], words, 0).astype(words.dtype)
    offset = target.offset(to_indices)
    if m.check:
        mask = m.inside(target, offset, width, mask, op)
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
    copy = Copy(target, m.compress(address, chosen), rows, chosen, op)
    if m.check:
        if target.buffer.reading is not None:
            m.check_reading(target.buffer, address, item, width, fits, mask, op)
        busy = gather(target.buffer.mark("pending"), "pending", address, item, width, fits).any(axis=-1)
        bad = m.active(mask, busy)
        if bad is not None:
            m.complain("overlapping copies", bad, f"copies to {target.buffer.name} where another copy is under way", op)
        _mark(copy, 0xFF, fits)
    m.copies.append((m.groups, copy))


def _mark(copy: Copy, value: int, fits: bool = True) -> None:
    item = copy.target.item
    flags = np.full(copy.words.shape, UNSIGNED[item](value * (np.iinfo(UNSIGNED[item]).max // 255)))
    scatter(copy.target.buffer, "pending", copy.address, flags, item, fits)


def commit(s: State, op) -> None:
    """cp.async.commit_group. Groups are counted per batch: all threads commit together."""
    m = s.m
    if s.mask is not None and not np.broadcast_to(s.mask, (m.nb, m.nt)).all():
        quiet = ~np.broadcast_to(s.mask, (m.nb, m.nt))
        busy = {id(c) for _, c in m.copies}
        if busy and m.check and quiet.any() and np.broadcast_to(s.mask, (m.nb, m.nt)).any(axis=1).all():
            m.complain("divergent commit", quiet, "does not commit a group of copies that other threads commit", op)
    m.groups += 1


def wait_group(s: State, pending: int) -> None:
    """cp.async.wait_group: at most `pending` of the latest groups may still be on their way."""
    m = s.m
    done = [c for g, c in m.copies if g < m.groups - pending]
    m.copies = [(g, c) for g, c in m.copies if g >= m.groups - pending]
    finish(m, done)


def finish(m, done: list[Copy]) -> None:
    """The bytes of copies arrive."""
    for c in done:
        item = c.target.item
        m.write(c.target.buffer, c.address, c.words, item, True)
        if m.check:
            _mark(c, 0)
            if m.races is not None:
                m.races.arrived(c.target.buffer, c.address, c.words.shape[1], item, c.threads, c.op)


def unfinished(m) -> None:
    """At a kernel's end: copies that nobody waited for are no error, but their bytes never count as written."""
    m.copies.clear()
