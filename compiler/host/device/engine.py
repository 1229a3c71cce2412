"""What runs beside the threads of a block: tensor copies, mbarriers, and wgmma's asynchronous products.

A tensor copy's bytes arrive as late as possible, when no thread can go on without them; from its start they count as
under way, so that a thread that reads them without waiting, or early reuse of a buffer, is seen. An mbarrier is what
the PTX ISA says ("Parallel Synchronization and Communication Instructions: mbarrier"): a count of arrivals still to
come, a count of bytes still to come, and the parity of its phase."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mlirc.host.device.machine import Machine, State
from mlirc.host.device.memory import Buffer, MemRef


@dataclass
class Barrier:
    """One mbarrier of one block."""

    count: int
    pending: int
    nbytes: int = 0
    phase: int = 0

    def settle(self) -> None:
        """Ends the phase if everything has come."""
        if self.pending == 0 and self.nbytes == 0:
            self.phase += 1
            self.pending = self.count

    def __str__(self) -> str:
        return f"phase {self.phase}: {self.pending} of {self.count} arrivals and {self.nbytes} bytes to come"


@dataclass
class Reading:
    """The shared memory bytes that a wgmma reads until its group is waited for."""

    group: int
    thread: int
    buffer: Buffer
    cells: np.ndarray
    result: np.ndarray


@dataclass
class Engine:
    """The asynchronous side of a batch of blocks."""

    machine: Machine
    counts: bool = False  # whether an mbarrier has been used
    barriers: dict[tuple[int, int], Barrier] = field(default_factory=dict)  # (block in the batch, byte)
    transfers: deque[Callable[[], None]] = field(default_factory=deque)
    readings: list[Reading] = field(default_factory=list)
    groups: dict[int, int] = field(default_factory=dict)  # first thread of a warpgroup -> groups committed
    fenced: set[int] = field(default_factory=set)  # warpgroups whose registers wgmma.fence has ordered
    results: weakref.WeakValueDictionary = field(default_factory=weakref.WeakValueDictionary)  # of wgmmas, by identity
    unfinished: dict[int, np.ndarray] = field(default_factory=dict)  # accumulators by identity

    # -- mbarriers

    def each(self, s: State, pointer: MemRef):
        """Yields (block, thread, byte) for every active thread."""
        m = self.machine
        active = np.ones((m.nb, m.nt), bool) if s.mask is None else np.broadcast_to(s.mask, (m.nb, m.nt))
        where = np.broadcast_to(np.asarray(pointer.base).reshape(np.shape(pointer.base) or (1, 1)), (m.nb, m.nt))
        for b, t in np.argwhere(active):
            yield int(b), int(t), int(where[b, t])

    def init(self, s: State, pointer: MemRef, count: np.ndarray, op) -> None:
        m, self.counts = self.machine, True
        counts = np.broadcast_to(count, (m.nb, m.nt))
        for b, t, byte in self.each(s, pointer):
            if byte % 8 or byte + 8 > pointer.buffer.nbytes:
                m.complain("misaligned", _one(m, b, t), f"puts an mbarrier at byte {byte} of shared memory", op)
            self.barriers[b, byte] = Barrier(int(counts[b, t]), int(counts[b, t]))

    def find(self, b: int, t: int, byte: int, op) -> Barrier:
        found = self.barriers.get((b, byte))
        if found is None:
            self.machine.complain("bad mbarrier", _one(self.machine, b, t), f"uses byte {byte}, where none is", op)
            found = self.barriers[b, byte] = Barrier(1, 1)
        return found

    def arrive(self, s: State, pointer: MemRef, nbytes: np.ndarray | None, op) -> None:
        """Arrivals of all active threads, each of which first adds to the bytes expected."""
        m = self.machine
        extra = None if nbytes is None else np.broadcast_to(nbytes, (m.nb, m.nt))
        for b, t, byte in self.each(s, pointer):
            barrier = self.find(b, t, byte, op)
            if extra is not None:
                barrier.nbytes += int(extra[b, t])
            if barrier.pending == 0:
                m.complain("bad mbarrier", _one(m, b, t), f"arrives too often at the mbarrier at byte {byte}", op)
                continue
            barrier.pending -= 1
            barrier.settle()

    def passed(self, s: State, pointer: MemRef, parity: np.ndarray, op) -> bool:
        """Whether the phase of the given parity has ended, for all active threads."""
        m = self.machine
        want = np.broadcast_to(parity, (m.nb, m.nt))
        seen = {(b, byte, int(want[b, t]) & 1): t for b, t, byte in self.each(s, pointer)}
        return all(self.find(b, t, byte, op).phase & 1 != p for (b, byte, p), t in seen.items())

    def describe(self, s: State, pointer: MemRef) -> str:
        """The state of the mbarrier that the first active thread waits for."""
        b, _, byte = next(self.each(s, pointer))
        return f"the mbarrier at byte {byte} ({self.barriers.get((b, byte), 'never initialized')})"

    # -- copies

    def start(self, transfer: Callable[[], None]) -> None:
        self.transfers.append(transfer)

    def advance(self) -> bool:
        """Ends the oldest copy; False if there is none."""
        if not self.transfers:
            return False
        self.transfers.popleft()()
        return True

    # -- wgmma

    def check_fence(self, b: int, t: int, accumulator: np.ndarray, op) -> None:
        """An accumulator that no wgmma made needs a wgmma.fence after it was made (PTX ISA, "wgmma.fence")."""
        if t not in self.fenced and id(accumulator) not in self.results:
            message = "uses an accumulator that no wgmma made, with no wgmma.fence"
            self.machine.complain("missing wgmma fence", _one(self.machine, b, t), message, op)

    def reads(self, b: int, t: int, buffer: Buffer, cells: np.ndarray, result: np.ndarray) -> None:
        """Notes that a warpgroup's wgmma reads these bytes of the storage until it is waited for."""
        buffer.mark("reading").reading[cells] += 1  # type: ignore[index]
        self.readings.append(Reading(self.groups.get(t, 0), t, buffer, cells, result))
        self.unfinished[id(result)] = result

    def commit(self, t: int) -> None:
        self.groups[t] = self.groups.get(t, 0) + 1

    def wait(self, t: int, pending: int) -> None:
        """Ends all but the latest `pending` groups of a warpgroup."""
        done = self.groups.get(t, 0) - pending
        self.fenced.discard(t)  # registers may change now
        kept = [r for r in self.readings if r.thread != t or r.group >= done]
        left = {id(r.result) for r in kept}
        for r in self.readings:
            if r.thread == t and r.group < done:
                r.buffer.reading[r.cells] -= 1  # type: ignore[index]
                if id(r.result) not in left:
                    self.unfinished.pop(id(r.result), None)
        self.readings = kept

    def check_overwrite(self, b: int, t: int, buffer: Buffer, address: np.ndarray, op) -> None:
        """Complains if a wgmma still reads what is about to be written: bytes of the storage."""
        if buffer.reading is not None and buffer.reading[address].any():
            message = f"overwrites {buffer.name} that a wgmma still reads"
            self.machine.complain("race", _one(self.machine, b, t), message, op)

    def check_accumulator(self, s: State, value: np.ndarray, op) -> None:
        if id(value) in self.unfinished:
            everyone = np.ones((1, 1), bool) if s.mask is None else s.mask
            self.machine.complain(
                "unfinished wgmma", everyone, "reads an accumulator before the wait for its group", op
            )


def _one(m: Machine, b: int, t: int) -> np.ndarray:
    mask = np.zeros((m.nb, m.nt), bool)
    mask[b, t] = True
    return mask
