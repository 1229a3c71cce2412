"""What bulk and tensor copies do in global memory: which bytes they read and write, and what is wrong with that.

The bytes of a copy are runs of equal length, one behind the other for bulk copies, one per row of the box for tensor
copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirc.device.arguments import check_given
from mlirc.device.machine import Machine
from mlirc.device.memory import Buffer
from mlirc.device.order.launch_order import DEVICE
from mlirc.device.order.proxies import KIND


@dataclass(frozen=True)
class Runs:
    """Bytes of a buffer's storage: `nbytes` from each of `first` [n] on."""

    buffer: Buffer
    first: np.ndarray
    nbytes: int

    @property
    def cells(self) -> np.ndarray:
        """All of the bytes, in order."""
        return (self.first[:, None] + np.arange(self.nbytes)).ravel()

    def granules(self, size: int) -> Runs:
        """Those granules that lie in it as a whole. Granules divide the accesses of threads, so that a copy that begins
        inside of one shares it with other copies alone, whose order is looked at by elements."""
        start = -(-self.first // size) * size
        ends = (self.first + self.nbytes) // size * size
        whole = int((ends - start).min(initial=self.nbytes))
        return Runs(self.buffer, start, max(whole, 0))


def read_global(m: Machine, source: Runs, who: tuple[int, int], op) -> np.ndarray | None:
    """A copy's read of global memory, which is checked as its thread's. Returns what is undefined of it, as
    `Machine.fetched` does."""
    (b, t), buffer = who, source.buffer
    lone = m.one(b, t)
    if m.waited is not None:
        m.check_wait(buffer, lone, False, op)
    if not m.check or not len(source.first):
        return None
    cells = source.cells
    if buffer.pending is not None and buffer.pending[cells].any():
        m.complain("unfinished copy", lone, f"reads {buffer.name} while a bulk store writes there", op)
    elif buffer.written is not None and not buffer.written[cells].all():
        m.complain("uninitialized read", lone, f"reads {buffer.name}, where nobody wrote", op)
    _check_generic(m, buffer, cells, lone, "reads", op)
    if m.order is not None and buffer.tracked:  # later writes are the business of async_reads.py
        size = m.races.granule  # type: ignore[union-attr]
        whole = source.granules(size)
        if whole.nbytes:
            thread = np.full(len(whole.first), b * m.nt + t)
            m.order.access(buffer, whole.first // size, whole.nbytes // size, thread, "read", op, note=False)
    return m.fetched(buffer, cells, op)


def _check_generic(m: Machine, buffer: Buffer, cells: np.ndarray, lone: np.ndarray, what: str, op) -> None:
    """What threads wrote to global memory is accessed through the asynchronous proxy."""
    if buffer.generic is not None and buffer.generic[cells].any():
        message = f"{what} {buffer.name} that threads wrote, with no fence.proxy of global memory (async, async.global)"
        m.complain(KIND, lone, message, op)
        buffer.generic[cells] = 0


def write_global(m: Machine, target: Runs, who: tuple[int, int], op, reduces: bool = False) -> None:
    """A copy's write of global memory: from now on, until its group is waited for. The bytes themselves are the
    caller's business. `reduces`: combined with what is there, in any order with others that do so."""
    (b, t), buffer = who, target.buffer
    lone = m.one(b, t)
    if m.waited is not None:
        m.check_wait(buffer, lone, True, op)
    if not len(target.first):
        return
    cells = target.cells
    if m.check:
        pending = buffer.mark("pending").pending
        assert pending is not None
        if not reduces and pending[cells].any():
            m.complain("overlapping copies", lone, f"copies to {buffer.name} where another copy is under way", op)
        note_write(m, target, who, op, reduces)
        pending[cells] = 0xFF
        _check_generic(m, buffer, cells, lone, "overwrites", op)
    check_given(m, buffer, np.full((1, 1), cells[0]), 1, lone, op)
    if reduces:
        if m.check and buffer.written is not None and not buffer.written[cells].all():
            m.complain("uninitialized read", lone, f"adds to {buffer.name}, where nobody wrote", op)
        m.combined(buffer, cells, lone, op)
    elif buffer.written is not None:
        buffer.written[cells] = 0xFF
    if buffer.watch is not None and (cells == buffer.watch[0]).any():
        m.watched(buffer, np.full((1, 1), buffer.watch[0]), 1, 1, lone, op)


def note_write(m: Machine, target: Runs, who: tuple[int, int], op, reduces: bool = False) -> None:
    """Logs a copy's write as its thread's, where the launch writes the buffer."""
    b, t = who
    if m.races is None or not target.buffer.tracked:
        return
    whole = target.granules(m.races.granule)
    if not whole.nbytes:
        return
    thread = np.full(len(whole.first), b * m.nt + t, np.int32)
    if reduces:
        m.races.note_atomic(target.buffer, whole.first, whole.nbytes, 1, thread, True, DEVICE, op)
    else:
        m.races.note_bytes(target.buffer, whole.first, whole.nbytes, thread, True, op)


def end_global_write(m: Machine, target: Runs, who: tuple[int, int], op, reduces: bool = False) -> None:
    """A copy has written: for its thread, which tells others."""
    if not len(target.first):
        return
    assert target.buffer.pending is not None
    target.buffer.pending[target.cells] = 0
    note_write(m, target, who, op, reduces)


def count_copy(m: Machine, runs: Runs, write: bool, op: Any) -> None:
    """Counts a tensor copy's accesses to global memory, where accesses are counted."""
    if m.counters is not None and len(runs.first):
        m.counters.copy(runs.buffer, runs.first, runs.nbytes, write, op)
