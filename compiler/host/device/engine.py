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
    maker: tuple[int, int] = (-1, -1)  # (block, thread) that initialized it
    made: tuple[int, int] | None = None  # the row and epoch of its initialization
    fence: tuple[int, int] | None = None  # the row and epoch of the fence that made this visible outside of the block
    column: int = -1  # of the clocks, where there are any
    left: np.ndarray | None = None  # the clocks of all who have arrived
    done: np.ndarray | None = None  # those that had when the last phase ended
    waited: bool = False  # whether one who has arrived is behind griddepcontrol.wait

    def settle(self) -> None:
        """Ends the phase if everything has come."""
        if self.pending == 0 and self.nbytes == 0:
            self.phase += 1
            self.pending = self.count
            if self.left is not None:
                self.left[self.column] = self.phase
                self.done = self.left.copy()

    def __str__(self) -> str:
        return f"phase {self.phase}: {self.pending} of {self.count} arrivals and {self.nbytes} bytes to come"


@dataclass
class Reading:
    """The shared memory bytes that a wgmma reads until its group is waited for."""

    group: int
    thread: int  # first of the warpgroup
    buffer: Buffer
    cells: np.ndarray
    result: np.ndarray
    block: int = 0


@dataclass
class Engine:
    """The asynchronous side of a batch of blocks."""

    machine: Machine
    barriers: dict[tuple[int, int], Barrier] = field(default_factory=dict)  # (block in the batch, byte)
    transfers: deque[Callable[[], None]] = field(default_factory=deque)
    readings: list[Reading] = field(default_factory=list)
    groups: dict[tuple[int, int], int] = field(default_factory=dict)  # (block, first thread) -> groups committed
    fenced: set[tuple[int, int]] = field(default_factory=set)  # warpgroups whose registers wgmma.fence has ordered
    stores: list = field(default_factory=list)  # (block, thread, group, buffer, cells, op): bulk stores under way
    bulk: dict[tuple[int, int], int] = field(default_factory=dict)  # (block, thread) -> bulk groups committed
    results: weakref.WeakValueDictionary = field(default_factory=weakref.WeakValueDictionary)  # of wgmmas, by identity
    fragments: dict[tuple[int, int], list] = field(default_factory=dict)  # (block, first thread) -> registers of A that
    # wgmmas under way read: (group, {register: value})
    unfinished: dict[int, np.ndarray] = field(default_factory=dict)  # accumulators by identity

    # -- mbarriers

    def each(self, s: State, pointer: MemRef):
        """Yields (block, thread, byte) for every active thread."""
        m = self.machine
        active = m.everyone(s.mask)
        where = np.broadcast_to(np.asarray(pointer.base).reshape(np.shape(pointer.base) or (1, 1)), (m.nb, m.nt))
        for b, t in np.argwhere(active):
            yield int(b), int(t), int(where[b, t])

    def init(self, s: State, pointer: MemRef, count: np.ndarray, op) -> None:
        m = self.machine
        counts = np.broadcast_to(count, (m.nb, m.nt))
        for b, t, byte in self.each(s, pointer):
            if byte % 8 or byte + 8 > pointer.buffer.nbytes:
                m.complain("misaligned", m.one(b, t), f"puts an mbarrier at byte {byte} of shared memory", op)
            m.placed(pointer.buffer, 8, m.one(b, t), op)
            barrier = self.barriers[b, byte] = self._new(int(counts[b, t]))
            barrier.maker = b, t
            if m.clocks is not None:
                barrier.made = self._now(b, t)

    def _now(self, b: int, t: int) -> tuple[int, int]:
        """A thread's row and its epoch."""
        row = self.machine.clocks.row(b, t)
        return row, int(self.machine.clocks.seen(b, row)[row])

    def _has_seen(self, b: int, t: int, when: tuple[int, int]) -> bool:
        return self.machine.clocks.sees(b, t, *when)

    def fence_initializations(self, s: State, own: bool) -> None:
        """A fence by the active threads makes initializations visible to tensor copies and to other blocks: their own
        ones (`own`: fence.mbarrier.init), or all that they have seen (a proxy fence)."""
        m = self.machine
        fresh = [x for x in self.barriers.values() if x.fence is None and x.made is not None]
        if not fresh:
            return
        active = m.everyone(s.mask)
        for barrier in fresh:
            assert barrier.made is not None
            if active[barrier.maker]:
                barrier.fence = self._now(*barrier.maker)
            elif not own:
                who = [
                    (b, 32 * w) for b, w in self._warps(active) if m.clocks.unit(b) == m.clocks.unit(barrier.maker[0])
                ]
                seen = [x for x in who if self._has_seen(*x, barrier.made)]
                barrier.fence = self._now(*seen[0]) if seen else None

    def _warps(self, active: np.ndarray) -> list[tuple[int, int]]:
        """(block, warp) of the warps with an active thread."""
        return sorted({(int(b), int(t) // 32) for b, t in np.argwhere(active)})

    def _new(self, count: int) -> Barrier:
        barrier, clocks = Barrier(count, count), self.machine.clocks
        if clocks is not None:
            barrier.column = clocks.column(len(self.barriers))
            barrier.left, barrier.done = (np.zeros(clocks.columns, np.int32) for _ in range(2))
        return barrier

    def find(self, b: int, t: int, byte: int, op, rank: int | None = None, copy: bool = False) -> Barrier:
        """The mbarrier that thread t of block b means by a byte of its own shared memory, or of another block's of the
        cluster; `copy`: for a copy to tell."""
        size = self.machine.cluster_size
        owner = b if rank is None else b // size * size + rank
        found = self.barriers.get((owner, byte))
        if found is None:
            self.machine.complain("bad mbarrier", self.machine.one(b, t), f"uses byte {byte}, where none is", op)
            found = self.barriers[owner, byte] = self._new(1)
        if found.made is not None and not self._has_seen(b, t, found.made):
            message = f"uses the mbarrier at byte {byte} with no barrier behind its initialization"
            self.machine.complain("race", self.machine.one(b, t), message, op)
        if (copy or owner != b) and found.made is not None:
            if found.fence is None or not self._has_seen(b, t, found.fence):
                message = f"uses the mbarrier at byte {byte}, with no fence.mbarrier.init behind its initialization"
                self.machine.complain("missing mbarrier fence", self.machine.one(b, t), message, op)
        return found

    def rank(self, pointer: MemRef, b: int, t: int) -> int | None:
        """The block of the cluster that a thread's pointer leads to; None for its own."""
        if pointer.rank is None:
            return None
        m = self.machine
        return int(np.broadcast_to(pointer.rank, (m.nb, m.nt))[b, t])

    def arrive(
        self, s: State, pointer: MemRef, nbytes: np.ndarray | None, op, count: np.ndarray | int = 1
    ) -> np.ndarray:
        """Arrivals of all active threads (`count` each), each of which first adds to the bytes expected. Returns the
        phases that they arrived in, as tokens to wait by. A relaxed arrival orders nothing; one with `nocomplete` must
        not be the last of its phase."""
        m = self.machine
        extra = None if nbytes is None else np.broadcast_to(nbytes, (m.nb, m.nt))
        counts = np.broadcast_to(np.asarray(count).reshape(np.shape(count) or (1, 1)), (m.nb, m.nt))
        tokens = np.zeros((m.nb, m.nt), np.int64)
        released: set[tuple[int, int, int]] = set()
        for b, t, byte in self.each(s, pointer):
            barrier = self.find(b, t, byte, op, self.rank(pointer, b, t))
            tokens[b, t] = barrier.phase
            if extra is not None:
                barrier.nbytes += int(extra[b, t])
            if barrier.pending < counts[b, t]:
                m.complain("bad mbarrier", m.one(b, t), f"arrives too often at the mbarrier at byte {byte}", op)
                continue
            if m.clocks is not None and not is_relaxed(op) and (b, t // 32, id(barrier)) not in released:
                released.add((b, t // 32, id(barrier)))
                m.clocks.release(b, m.clocks.row(b, t), barrier.left, m.clocks.lanes.lanes_of(s.mask, b, t // 32))
            if m.waited is not None:
                barrier.waited |= bool(m.waited[b, t])
            barrier.pending -= int(counts[b, t])
            if barrier.pending == 0 and op.name.endswith("nocomplete"):
                message = f"completes the phase of the mbarrier at byte {byte}, which nocomplete must not"
                m.complain("bad mbarrier", m.one(b, t), message, op)
            barrier.settle()
        return tokens

    def expect(self, s: State, pointer: MemRef, nbytes: np.ndarray, op, sign: int = 1) -> None:
        """Adds to the bytes that are to come (`sign` -1: some have come), without arriving."""
        m = self.machine
        extra = np.broadcast_to(nbytes, (m.nb, m.nt))
        for b, t, byte in self.each(s, pointer):
            barrier = self.find(b, t, byte, op, self.rank(pointer, b, t))
            barrier.nbytes += sign * int(extra[b, t])
            barrier.settle()

    def reached(self, s: State, pointer: MemRef, op) -> None:
        """The active threads have waited for an mbarrier: they see what was done before its phase ended."""
        m = self.machine
        if m.waited is not None:
            for b, t, byte in self.each(s, pointer):
                m.waited[b, t] |= self.find(b, t, byte, op).waited
        if m.clocks is None or is_relaxed(op):
            return
        for b, w, byte in {(b, t // 32, byte) for b, t, byte in self.each(s, pointer)}:
            done = self.barriers[b, byte].done
            m.clocks.acquire(b, m.clocks.row(b, 32 * w), done, m.clocks.lanes.lanes_of(s.mask, b, w))
        if m.races is not None:
            m.races.met(s.mask)

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
        if (b, t) not in self.fenced and id(accumulator) not in self.results:
            message = "uses an accumulator that no wgmma made, with no wgmma.fence"
            self.machine.complain("missing wgmma fence", self.machine.one(b, t), message, op)

    def reads(self, b: int, t: int, buffer: Buffer, cells: np.ndarray, result: np.ndarray) -> None:
        """Notes that a warpgroup's wgmma reads these bytes of the storage until it is waited for."""
        buffer.mark("reading").reading[cells] += 1  # type: ignore[index]
        self.readings.append(Reading(self.groups.get((b, t), 0), t, buffer, cells, result, b))
        self.unfinished[id(result)] = result

    def commit(self, b: int, t: int) -> None:
        self.groups[b, t] = self.groups.get((b, t), 0) + 1

    def wait(self, b: int, t: int, pending: int) -> None:
        """Ends all but the latest `pending` groups of a warpgroup."""
        done = self.groups.get((b, t), 0) - pending
        self.fenced.discard((b, t))  # registers may change now
        clocks = self.machine.clocks
        if clocks is not None:  # the warpgroup has seen its own reads
            column, row = clocks.group(b, t), clocks.row(b, t)
            mine = clocks.now[clocks.unit(b), row : row + 4, column]
            np.maximum(mine, done, out=mine)
        if (b, t) in self.fragments:
            self.fragments[b, t] = [x for x in self.fragments[b, t] if x[0] >= done]
        ended = {id(r): r for r in self.readings if (r.block, r.thread) == (b, t) and r.group < done}
        self.readings = [r for r in self.readings if id(r) not in ended]
        left = {id(r.result) for r in self.readings}
        for r in ended.values():
            r.buffer.reading[r.cells] -= 1  # type: ignore[index]
            if id(r.result) not in left:
                self.unfinished.pop(id(r.result), None)

    # -- bulk stores: they read shared memory until their group is waited for

    def store(self, b: int, t: int, buffer: Buffer, cells: np.ndarray, op) -> None:
        buffer.mark("reading").reading[cells] += 1  # type: ignore[index]
        self.stores.append((b, t, self.bulk.get((b, t), 0), buffer, cells, op))

    def commit_bulk(self, s: State) -> None:
        m = self.machine
        active = m.everyone(s.mask)
        for b, t in np.argwhere(active):
            self.bulk[int(b), int(t)] = self.bulk.get((int(b), int(t)), 0) + 1

    def wait_bulk(self, s: State, pending: int) -> None:
        """Ends all but the latest `pending` bulk groups of every active thread."""
        m, kept = self.machine, []
        active = m.everyone(s.mask)
        for b, t, group, buffer, cells, op in self.stores:
            if not active[b, t] or group >= self.bulk.get((b, t), 0) - pending:
                kept.append((b, t, group, buffer, cells, op))
                continue
            buffer.reading[cells] -= 1
            if m.clocks is not None and m.races is not None:  # the reads end here
                m.clocks.access(buffer, np.unique(cells // m.races.granule), 1, np.array([b * m.nt + t]), False, op)
        self.stores = kept

    def check_overwrite(self, b: int, t: int, buffer: Buffer, address: np.ndarray, op) -> None:
        """Complains if a wgmma still reads what is about to be written: bytes of the storage."""
        if buffer.reading is not None and buffer.reading[address].any():
            message = f"overwrites {buffer.name} that a wgmma or a bulk store still reads"
            self.machine.complain("race", self.machine.one(b, t), message, op)

    def check_accumulator(self, s: State, value: np.ndarray, op) -> None:
        if id(value) in self.unfinished:
            everyone = np.ones((1, 1), bool) if s.mask is None else s.mask
            self.machine.complain(
                "unfinished wgmma", everyone, "reads an accumulator before the wait for its group", op
            )


def is_relaxed(op) -> bool:
    """Whether an arrival or a wait only counts, and orders no accesses."""
    return "relaxed" in op.attributes and str(op.attributes["relaxed"]) == "true"
