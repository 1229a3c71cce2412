"""Bytes that bulk copies read beside their threads, until the phase of an mbarrier: who overwrites them must have seen
it end. Shared memory, and global memory, whose readers all machines of a launch know."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirc.device.memory import Buffer


class AsyncReads:
    """The reads of a batch of blocks, by the clocks that they are known by."""

    def __init__(self, clocks: Any):
        self.clocks = clocks
        order = clocks.machine.order
        self.machine = 0 if order is None else order.first  # its number
        # buffer's id -> (first byte, behind the last, machine, unit, column) -> epoch, operation
        self.found: dict[int, dict[tuple, tuple[int, Any]]] = {} if order is None else order.order.async_reads

    def note(self, buffer: Buffer, first: int, last: int, unit: int, agent: tuple[int, int], op) -> None:
        """A copy reads some bytes of a buffer's storage; it is known by (column, epoch) of a unit's clocks."""
        key = first, last, self.machine, unit, agent[0]
        self.found.setdefault(id(buffer), {})[key] = agent[1], op

    def check(self, buffer: Buffer, first: np.ndarray, nbytes: int, thread: np.ndarray, op) -> None:
        """Complains about writes of `nbytes` bytes from `first` [n] on, by threads counted through the batch, that do
        not come after the end of such a read."""
        mine = self.found.get(id(buffer))
        if not mine or not len(first):
            return
        c, m = self.clocks, self.clocks.machine
        low, high = int(first.min()), int(first.max()) + nbytes
        near = [(key, x) for key, x in mine.items() if key[0] < high and key[1] > low]
        thread = np.broadcast_to(thread, len(first))
        b, t = thread // m.nt, thread % m.nt
        for (begin, end, machine, unit, column), (epoch, reader) in near:
            bad = (first < end) & (first + nbytes > begin)
            here = (c.unit(b) == unit) & (machine == self.machine)  # others are ordered with it by flags, or not at all
            more = np.broadcast_to(c.lanes.beyond(thread, np.array([[column]])), (len(first), 1))[:, 0]
            known = np.maximum(c.now[c.unit(b), c.row(b, t), column], more)
            bad &= np.where(here, known < epoch, not (m.order is not None and m.order.ordered))
            if bad.any():
                i = int(np.argmax(bad))
                m.report.add(
                    "race" if here[i] else "race between blocks",
                    f"block {int(m.blocks[b[i]])} thread {int(t[i])} overwrites {buffer.name}, which the copy at "
                    f"{m.report.place(reader)} reads, before the wait for it",
                    op, m.kernel, int(bad.sum()),
                )  # fmt: skip
                return
