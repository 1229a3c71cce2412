"""Races: two accesses to the same bytes by different threads, one of them a write, with no barrier between them.

Accesses are logged and examined at each barrier: a barrier cuts the log, so within one cut nothing orders two threads.
The writer of every byte is noted, and every access of another thread to that byte is a race. Barriers of a block cut
the log for the threads of that block only, barriers of a warp for those of that warp: blocks of a batch need not be at
the same barrier. For global memory, which no barrier orders between blocks, the writing block is kept for the whole
launch. In kernels whose warps or blocks are ordered by more than barriers of the whole block both are left to vector
clocks (clocks.py, global_order.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mlirc.device.memory import Buffer
from mlirc.device.order.lane_order import unordered
from mlirc.device.order.parts import Parts
from mlirc.errors import MlircError
from mlirc.mlir import ir

LOG_BYTES = 64 << 20  # of accesses that are logged before they are condensed
MAX_LOG_BYTES = 2 << 30  # of condensed ones
MANY = 64  # accesses within warps that are kept before those that are known to all lanes are looked for


@dataclass
class Access:
    """One operation's accesses: first granule [n], granules per access, threads [n] (counted through the batch)."""

    buffer: Buffer
    first: np.ndarray
    span: int
    thread: np.ndarray
    write: bool
    op: ir.Operation
    atomic: bool = False
    time: int = 0  # with clocks: when, among the batch's accesses to shared memory


class RaceLog:
    """The accesses of a batch since its last barrier."""

    def __init__(self, machine) -> None:
        self.machine = machine
        self.granule = 1  # bytes; a divisor of every access's size and alignment
        self.recent: list[Access] = []  # since the last barrier of the block or of the warps
        self.older: list[Access] = []  # since the last barrier of the block, in front of `recent`
        self.within: list[Access] = []  # with clocks: since the last barrier of each thread's warp
        self._parts, self._parts_within = (Parts(_cut, lambda a: self._examine(a, 1), self._warps) for _ in range(2))
        self._logged, self._limit = 0, LOG_BYTES  # bytes of accesses since the logs were condensed, and when to do it
        self._owner: dict[int, np.ndarray] = {}
        self._many = MANY

    def note(self, buffer: Buffer, address, width: int, item: int, write: bool, mask, op) -> None:
        """Logs an access of every active thread; address in elements of the buffer's storage."""
        m = self.machine
        chosen = m.lanes(mask)
        first, span = self._granules(m.compress(address, chosen), width, item)
        thread = np.arange(m.nb * m.nt, dtype=np.int32) if chosen is None else chosen.astype(np.int32)
        self._log(Access(buffer, first, span, thread, write, op))

    def note_atomic(self, buffer: Buffer, cells: np.ndarray, nbytes: int, item: int, thread: np.ndarray, write: bool,
                    scope: int, op) -> None:  # fmt: skip
        """Logs atomic accesses of `nbytes` bytes to elements of `item` bytes, by threads counted through the batch."""
        first, span = self._granules(cells, max(nbytes // item, 1), item)
        self._log(Access(buffer, first, span, thread.astype(np.int32), write, op, True), scope)

    def note_bytes(self, buffer: Buffer, first: np.ndarray, nbytes: int, thread: np.ndarray, write: bool, op) -> None:
        """Logs what bulk copies access for their threads (counted through the batch): bytes of the storage."""
        self._log(Access(buffer, first // self.granule, nbytes // self.granule, thread, write, op))

    def _log(self, access: Access, scope: int = 0) -> None:
        m, a = self.machine, access
        if m.engine is not None:
            self._beside_threads(a)
        if m.order is not None and a.buffer.space == "global":
            kind = ("atomic write" if a.write else "atomic load") if a.atomic else "write" if a.write else "read"
            m.order.access(a.buffer, a.first, a.span, a.thread, kind, a.op, scope)
            return
        if m.clocks is not None and a.buffer.space == "shared":
            m.clocks.access(a.buffer, a.first, a.span, a.thread, a.write, a.op, a.atomic)
            m.clocks.lanes.note(a)
            self._keep(self.within, a)
            return
        self._keep(self.recent, a)
        if a.buffer.space == "global":
            self._between_blocks(a)

    def _beside_threads(self, a: Access) -> None:
        """Checks an access against what is not of threads: mbarriers, and copies that read."""
        m, first, nbytes = self.machine, a.first * self.granule, a.span * self.granule
        if a.buffer.space == "shared":
            what = "writes" if a.write else "reads"
            m.engine.barriers.check_access(a.buffer, first, nbytes, a.thread, what, a.op)
        if a.write and m.clocks is not None:
            m.clocks.async_reads.check(a.buffer, first, nbytes, a.thread, a.op)

    def _granules(self, address: np.ndarray, width: int, item: int) -> tuple[np.ndarray, int]:
        """First granules and their number, from element numbers, elements per access and bytes per element. A granule
        may be several elements, where no access is of less."""
        if item == self.granule:
            return address, width
        return address * item // self.granule, width * item // self.granule

    def _between_blocks(self, a: Access) -> None:
        """Checks an access to global memory against those of other blocks in this launch."""
        m, buffer, cells = self.machine, a.buffer, _cells(a)
        block = m.blocks[a.thread // m.nt].astype(np.int32)[:, None]
        if buffer.writer_block is None:
            buffer.writer_block = np.full(len(buffer.data) // self.granule, -1, dtype=np.int32)
        writer = buffer.writer_block
        last = writer[cells]
        clash = (last >= 0) & (last != block)
        if a.atomic:
            clash |= self._other_blocks(buffer, ("reader_block",) if a.write else (), cells, block, clash, last)
            _add_block(buffer, "atomic_block", cells, block)
        elif a.write:
            clash |= self._other_blocks(buffer, ("reader_block", "atomic_block"), cells, block, clash, last)
            writer[cells] = np.broadcast_to(block, cells.shape)
            again = writer[cells]  # of several blocks that write at once, the last one is left
            last[...] = np.where(clash, last, again)
            clash |= again != block
        else:
            clash |= self._other_blocks(buffer, ("atomic_block",), cells, block, clash, last)
            _add_block(buffer, "reader_block", cells, block)
        if clash.any():
            row, column = np.argwhere(clash)[0]
            byte, other = int(cells[row, column]) * self.granule, int(last[row, column])
            whom = "other blocks use" if other < 0 else f"block {other} {'uses' if a.write else 'writes'}"
            what = f"{'writes' if a.write else 'reads'} byte {byte} of {buffer.name}, which {whom} in the same launch"
            m.complain_of("race between blocks", int(a.thread[row]), what, a.op, int(clash.any(axis=1).sum()))

    @staticmethod
    def _other_blocks(buffer: Buffer, planes: tuple, cells, block, clash, last) -> np.ndarray:
        """Which granules other blocks have accessed in the ways of the given planes; tells in `last` who."""
        found = np.zeros(cells.shape, bool)
        for plane in planes:
            users = getattr(buffer, plane)
            if users is None:
                continue
            who = users[cells]
            here = (who != -1) & (who != block)
            last[...] = np.where(clash | found, last, who)
            found |= here
        return found

    def arrived(self, buffer: Buffer, first: np.ndarray, width: int, item: int, threads, op) -> None:
        """Logs the end of an asynchronous copy: a write by the thread that waited for it."""
        m = self.machine
        cells, span = self._granules(first, width, item)
        thread = np.arange(m.nb * m.nt, dtype=np.int32) if threads is None else threads.astype(np.int32)
        access = Access(buffer, cells, span, thread, True, op)
        if m.clocks is not None and buffer.space == "shared":
            m.clocks.access(buffer, cells, span, thread, True, op)
            m.clocks.lanes.note(access)
            self._keep(self.within, access)
            return
        self._keep(self.recent, access)

    def _keep(self, log: list[Access], access: Access) -> None:
        """Logs an access. Logs that have grown long are condensed: a loop without a barrier makes the same ones
        again and again."""
        log.append(access)
        self._logged += access.first.nbytes + access.thread.nbytes
        if self._logged <= self._limit:
            return
        threads, left = self.machine.nb * self.machine.nt, 0
        for one in (self.recent, self.older, self.within):
            one[:] = _distinct(one, threads)
            left += sum(a.first.nbytes + a.thread.nbytes for a in one)
        if left > MAX_LOG_BYTES:
            raise MlircError(
                f"host device: kernel {self.machine.kernel}: between two barriers its threads touch more memory than "
                "can be watched: run fewer blocks (--blocks), or run it with check=False"
            )
        self._logged, self._limit = 0, max(LOG_BYTES, left)

    def met(self, mask) -> None:
        """With clocks: the active threads of each warp have met; what they did before is examined."""
        whole, part = self._whole_warps(mask)
        if part is not None:
            self.within, _ = self._parts_within.meet(self.within, part)
        done, self.within = _cut(self.within, whole)
        self._examine(done, 1)
        self._parts_within.settle(whole, done)

    def _whole_warps(self, mask) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The active threads, counted through the batch (bool): those of warps that are active as a whole (None: all),
        and those of other warps (None: there are none)."""
        if mask is None:
            return None, None
        m = self.machine
        active = m.full(mask).ravel()
        torn = active & self._warps(self._warps(active) & ~active)
        return active & ~torn, torn if torn.any() else None

    def _warps(self, threads: np.ndarray) -> np.ndarray:
        """All threads of the warps of some (bool, counted through the batch)."""
        m = self.machine
        warps = np.logical_or.reduceat(threads.reshape(m.nb, m.nt), np.arange(0, m.nt, 32), axis=1)
        return np.repeat(warps, 32, axis=1)[:, : m.nt].ravel()

    def barrier(self, mask=None, blocks: np.ndarray | None = None) -> None:
        """All threads of some blocks (bool [blocks of the batch], None: of all) have met: nothing that they did before
        can race with anything after. With clocks `mask` tells which threads, and what is said here is of global
        memory."""
        m = self.machine
        if m.clocks is not None:
            self.met(mask)
        threads = None if blocks is None or blocks.all() else np.repeat(blocks, m.nt)
        done, self.recent = _cut(self.recent, threads)
        before, self.older = _cut(self.older, threads)
        self._examine(done, 1)
        done = done + self._parts.settle(threads, done)
        if before:
            self._examine(before + done, 32)

    def warp_barrier(self, mask=None) -> None:
        """The active threads of each warp have met."""
        m = self.machine
        if m.order is not None:
            m.order.meet_lanes(mask)
        if m.clocks is not None:
            self.met(mask)
            for b, row in m.clocks.active(mask):
                m.clocks.lanes.meet(b, row % m.clocks.warps)
        whole, part = self._whole_warps(mask)
        if part is not None:
            self.recent, old = self._parts.meet(self.recent, part)
            self.older += old
        if whole is not None and not whole.any():
            return
        if m.nt <= 32:
            self.barrier(mask, None if whole is None else np.asarray(whole.reshape(m.nb, m.nt).any(axis=1)))
            return
        done, self.recent = _cut(self.recent, whole)
        self._examine(done, 1)
        self.older += done + self._parts.settle(whole, done)

    def _examine(self, accesses: list[Access], group: int) -> None:
        """Finds accesses of different groups (threads, or warps) to a byte that one of them writes."""
        written = {id(a.buffer): a.buffer for a in accesses if a.write}
        for buffer in written.values():
            mine = [a for a in accesses if a.buffer is buffer]
            self._examine_buffer(buffer, mine, group)

    def _examine_buffer(self, buffer: Buffer, accesses: list[Access], group: int) -> None:
        owner = self._owner.get(id(buffer))
        if owner is None:
            owner = self._owner[id(buffer)] = np.full(len(buffer.data) // self.granule, -1, dtype=np.int32)
        self._compare(buffer, owner, [a for a in accesses if a.write and not a.atomic], accesses, group)
        if atomics := [a for a in accesses if a.write and a.atomic]:
            self._compare(buffer, owner, atomics, [a for a in accesses if not a.atomic], group)

    def _compare(self, buffer: Buffer, owner: np.ndarray, writes: list[Access], accesses: list[Access], group: int):
        """Compares accesses with the last write to their granules."""
        touched, lanes = [], []
        for a in writes:
            cells = _cells(a)
            owner[cells] = (a.thread // group)[:, None]
            touched.append(cells)
        for a in accesses:
            self.machine.deadline.check(self.machine, None, a.op)
            cells = _cells(a)
            last = owner[cells]
            clash = (last != (a.thread // group)[:, None]) & (last >= 0)
            if clash.any() and self.machine.clocks is not None and buffer.space == "shared":
                clash &= last // 32 == (a.thread // 32)[:, None]  # of other warps the clocks know
                lanes.append(cells[clash])
                continue
            if clash.any() and buffer.space == "global":  # other blocks are the business of `_between_blocks`
                clash &= last * group // self.machine.nt == (a.thread // self.machine.nt)[:, None]
            if clash.any():
                self._report(a, clash, last, writes, group)
        for cells in touched:
            owner[cells] = -1
        if sum(map(len, lanes)):
            self._compare_lanes(buffer, accesses, np.concatenate(lanes))

    def _compare_lanes(self, buffer: Buffer, accesses: list[Access], cells: np.ndarray) -> None:
        """Looks for races of lanes of one warp to granules of shared memory, as exactly as the clocks allow."""
        m = self.machine
        for a, b, pairs in unordered(m.clocks.lanes.syncs, m.nt, accesses, cells):
            here, there = (a, b) if b.write else (b, a)
            cell, thread, number = pairs[0].tolist() if b.write else pairs[0, [0, 2, 1]].tolist()
            times = len(np.unique(pairs[:, 1 if b.write else 2]))
            self._complain(here, there, cell, thread, f"thread {number % m.nt}", times)

    def _complain(self, a: Access, other: Access, cell: int, thread: int, whom: str, times: int) -> None:
        """Reports an access by a thread to a granule that another one writes."""
        m = self.machine
        byte = cell * self.granule - (thread // m.nt) * (a.buffer.stride if a.buffer.space == "shared" else 0)
        message = f"{'writes' if a.write else 'reads'} byte {byte} of {a.buffer.name}, which {whom} writes "
        message += f"({other.op.name} at {m.report.place(other.op)}) without a barrier in between"
        m.complain_of("race", thread, message, a.op, times)

    def check_lanes(self, buffer: Buffer, cells: np.ndarray, thread: int, op) -> None:
        """Complains about granules that a copy, begun by a thread, is about to write, and that other lanes of its warp
        have accessed with nothing in between."""
        m = self.machine
        b, t = thread // m.nt, thread % m.nt
        for a, chosen in m.clocks.lanes.others(b, t // 32, np.arange(32) == t % 32):
            if a.buffer is not buffer or (not a.write and a.op is op):
                continue
            hit = np.isin(_cells(a)[chosen], cells)
            rows = np.flatnonzero(hit.any(axis=1))
            for row in rows.tolist():
                other = int(a.thread[chosen][row])
                if not m.clocks.lanes.ordered(b, (other % m.nt, a.time), t):
                    byte = int(_cells(a)[chosen][row][hit[row]][0]) * self.granule % buffer.stride
                    does = "writes" if a.write else "reads"
                    whom = f"thread {other % m.nt} {does} ({a.op.name} at {m.report.place(a.op)})"
                    message = f"begins to write byte {byte} of {buffer.name}, which {whom} with no barrier in between"
                    m.complain_of("race", thread, message, op, len(rows))
                    break

    def forget_known(self) -> None:
        """With clocks, where lanes may have learned of each other: drops accesses that all lanes of their warps have
        heard of, if many are kept."""
        if len(self.within) <= self._many:
            return
        m, syncs = self.machine, self.machine.clocks.lanes.syncs
        self._examine(self.within, 1)
        until = np.zeros((m.nb, m.nt), np.int64)
        for b, w in syncs.acquires:
            lanes = slice(32 * w, min(32 * w + 32, m.nt))
            until[b, lanes] = syncs.known(b, w, lanes.stop - lanes.start)
        until, kept = until.ravel(), []
        for a in self.within:
            kept += _cut([a], a.time <= until)[1]
        self.within = kept
        oldest = min((a.time for a in kept), default=m.clocks.lanes.time + 1)
        for b, w in list(syncs.acquires):
            syncs.forget(b, w, oldest - 1)
        self._many = max(MANY, 2 * len(kept))

    def _report(self, a: Access, clash: np.ndarray, last: np.ndarray, writes: list[Access], group: int) -> None:
        m = self.machine
        row, column = np.argwhere(clash)[0]
        cell = int(a.first[row]) + int(column)
        other = next(
            (b for b in writes if ((b.first <= cell) & (cell < b.first + b.span)
                                                 & (b.thread // group == last[row, column])).any()), a
        )  # fmt: skip
        number = int(last[row, column])
        what = "warp" if group > 1 else "thread"
        whom = f"{what} {number % (m.nt // group if m.nt >= group else 1)}"
        self._complain(a, other, cell, int(a.thread[row]), whom, int(clash.any(axis=1).sum()))


def _cut(accesses: list[Access], threads: np.ndarray | None) -> tuple[list[Access], list[Access]]:
    """The accesses of some threads (bool, counted through the batch; None: of all), and those of the others."""
    if threads is None:
        return accesses, []
    done: list[Access] = []
    kept: list[Access] = []
    for a in accesses:
        here = threads[a.thread]
        if here.all():
            done.append(a)
        elif not here.any():
            kept.append(a)
        else:
            for chosen, into in ((here, done), (~here, kept)):
                into.append(replace(a, first=a.first[chosen], thread=a.thread[chosen]))
    return done, kept


def _distinct(accesses: list[Access], threads: int) -> list[Access]:
    """The same accesses, each operation's once for every granule and thread (counted through `threads`)."""
    groups: dict[tuple, list[Access]] = {}
    for a in accesses:
        groups.setdefault((id(a.buffer), a.span, a.write, a.atomic, hash(a.op)), []).append(a)
    found = []
    for same in groups.values():
        if len(same) > 1:
            keys = np.unique(np.concatenate([a.first.astype(np.int64) * threads + a.thread for a in same]))
            last = max(a.time for a in same)
            found.append(replace(same[0], first=keys // threads, thread=(keys % threads).astype(np.int32), time=last))
        else:
            found.append(same[0])
    return found


def _cells(a: Access) -> np.ndarray:
    """All granules of an access, [n, span]."""
    return a.first[:, None] + np.arange(a.span)


def _add_block(buffer: Buffer, plane: str, cells: np.ndarray, block: np.ndarray) -> None:
    """Notes which block accesses granules in some way; -2 where several do."""
    users = getattr(buffer, plane)
    if users is None:
        assert buffer.writer_block is not None
        users = np.full(len(buffer.writer_block), -1, dtype=np.int32)
        setattr(buffer, plane, users)
    before = users[cells]
    users[cells] = np.where((before == -1) | (before == block), block, -2)
    users[cells[users[cells] != block]] = -2  # several blocks, in this very operation perhaps
