"""mbarriers: objects in shared memory (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"): a
count of arrivals still to come, a count of bytes still to come, and a phase.

One lives from mbarrier.init to mbarrier.inval. In between its eight bytes are nothing else: any other access to them, a
copy over them, and another initialization are undefined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirc.device.machine import Machine, State
from mlirc.device.memory import Buffer, MemRef

SIZE = 8  # bytes of an mbarrier
MOST = (1 << 20) - 1  # arrivals, and bytes to come, of a phase


@dataclass
class Barrier:
    """One mbarrier of one block."""

    count: int
    pending: int
    nbytes: int = 0
    phase: int = 0
    real: bool = True  # False: made up for an operation on bytes that hold none
    maker: tuple[int, int] = (-1, -1)  # (block, thread) that initialized it
    made: tuple[int, int] | None = None  # the row and epoch of its initialization
    made_at: int = 0  # when, among the accesses that order/lanes.py counts
    fence: tuple[int, int] | None = None  # the row and epoch of the fence that made this visible outside of the block
    fence_number: int = 0  # among its block's fence.mbarrier.init; 0: none
    column: int = -1  # of the clocks, where there are any
    left: np.ndarray | None = None  # the clocks of all who have arrived
    done: np.ndarray | None = None  # those that had when the last phase ended
    waited: bool = False  # whether one who has arrived is behind griddepcontrol.wait
    users: dict[int, int] = field(default_factory=dict)  # row -> epoch of its last operation on it
    asked: dict[tuple[int, int, int], int] = field(default_factory=dict)  # (operation, block, thread) -> phase, see ask
    trusted: set[int] = field(default_factory=set)  # rows that know of its initialization, and of the fence behind it
    witnessed: int = 0  # the latest phase that a thread of the block has waited for

    def settle(self) -> None:
        """Ends the phase if everything has come."""
        if self.pending == 0 and self.nbytes == 0:
            self.phase += 1
            self.pending = self.count
            if self.left is not None:
                self.left[self.column] = self.phase
                self.done = self.left.copy()

    def __str__(self) -> str:
        missing = f"{self.nbytes} bytes to come"
        if self.nbytes < 0:
            missing = f"{-self.nbytes} bytes more than it was told to expect"
        return f"phase {self.phase}: {self.pending} of {self.count} arrivals and {missing}"


@dataclass
class Mbarriers:
    """The mbarriers of a batch of blocks."""

    machine: Machine
    found: dict[tuple[int, int, int], Barrier] = field(default_factory=dict)  # (buffer's id, block of the batch, byte)
    made: dict[int, int] = field(default_factory=dict)  # unit of the clocks -> how many there have been
    fences: dict[int, int] = field(
        default_factory=dict
    )  # block of the batch -> how many fence.mbarrier.init it has made
    starts: dict[int, np.ndarray] = field(default_factory=dict)  # buffer's id -> first bytes in its storage, sorted

    def each(self, s: State, pointer: MemRef):
        """Yields (block, thread, byte) for every active thread."""
        m = self.machine
        active = m.everyone(s.mask)
        where = m.full(pointer.base)
        for b, t in np.argwhere(active):
            yield int(b), int(t), int(where[b, t])

    def one_of_each(self, s: State, pointer: MemRef, parity: np.ndarray):
        """Yields (block, thread, byte, parity) for one active thread of each warp whose threads ask for the same, and
        for every thread of the other warps."""
        m = self.machine
        warps, spare = -(-m.nt // 32), -m.nt % 32
        active = m.everyone(s.mask)
        where, parity = np.atleast_2d(pointer.base), np.atleast_2d(parity) & 1
        if where.shape[-1] == parity.shape[-1] == 1:  # the same in a block
            firsts = np.arange(0, m.nt, 32)
            some = np.logical_or.reduceat(active, firsts, axis=1)
            lanes = np.maximum.reduceat(active * np.arange(m.nt, 0, -1), firsts, axis=1)  # nt - the first one's number
            where, parity = (np.broadcast_to(x.astype(np.int64), (m.nb, 1))[:, 0].tolist() for x in (where, parity))
            for b, w in np.argwhere(some).tolist():
                yield b, m.nt - int(lanes[b, w]), where[b], parity[b]
            return
        asked = m.full(where.astype(np.int64) * 2 + parity)
        if spare:
            active, asked = (np.pad(x, ((0, 0), (0, spare))) for x in (active, asked))
        active, asked = (x.reshape(m.nb, warps, 32) for x in (active, asked))
        first = active.argmax(axis=2)
        same = ((asked == np.take_along_axis(asked, first[:, :, None], axis=2)) | ~active).all(axis=2)
        alone = active & ~same[:, :, None]
        whole = np.nonzero(active.any(axis=2) & same)
        alone[(*whole, first[whole])] = True
        for b, w, lane in np.argwhere(alone).tolist():
            value = int(asked[b, w, lane])
            yield b, w * 32 + lane, value >> 1, value & 1

    def rank(self, pointer: MemRef, b: int, t: int) -> int | None:
        """The block of the cluster that a thread's pointer leads to; None for its own."""
        if pointer.rank is None:
            return None
        m = self.machine
        return m.number(pointer.rank, b, t)

    def owner(self, b: int, rank: int | None) -> int:
        """The block of the batch whose shared memory is meant."""
        size = self.machine.cluster_size
        return b if rank is None else b // size * size + rank

    def bad(self, b: int, t: int, message: str, op, kind: str = "bad mbarrier") -> None:
        self.machine.complain(kind, self.machine.one(b, t), message, op)

    # -- their lives

    def init(self, s: State, pointer: MemRef, count: np.ndarray, op) -> None:
        m, buffer = self.machine, pointer.buffer
        counts = m.full(count)
        fresh: dict[tuple[int, int], int] = {}  # (block, byte) -> thread
        writes: list[tuple[int, int, int]] = []
        for b, t, byte in self.each(s, pointer):
            self.own(pointer, b, t, "initializes", op)
            outside = byte < 0 or byte + SIZE > buffer.nbytes
            if outside or byte % SIZE:
                why = f"has {buffer.nbytes} bytes" if outside else f"is no multiple of {SIZE}"
                kind = "out of bounds" if outside else "misaligned"
                self.bad(b, t, f"puts an mbarrier at byte {byte} of {buffer.name}, which {why}", op, kind)
                continue
            m.placed(buffer, SIZE, m.one(b, t), op)
            if not 1 <= counts[b, t] <= MOST:
                self.bad(b, t, f"initializes an mbarrier for {counts[b, t]} arrivals, not 1 to {MOST}", op)
            before = self.found.pop((id(buffer), b, byte), None)
            self.starts.pop(id(buffer), None)
            if (before is not None and before.real) or (b, byte) in fresh:
                self.bad(b, t, f"initializes the mbarrier at byte {byte} again, with no mbarrier.inval in between", op)
            fresh[b, byte] = t
            writes.append((b, t, byte))
        self._write(buffer, writes, op)
        self.starts.pop(id(buffer), None)
        for (b, byte), t in fresh.items():
            barrier = self.found[id(buffer), b, byte] = self._new(int(counts[b, t]), b)
            barrier.maker = b, t
            if m.clocks is not None:
                barrier.made, barrier.made_at = self._now(b, t), m.clocks.lanes.time

    def inval(self, s: State, pointer: MemRef, op) -> None:
        m, buffer = self.machine, pointer.buffer
        ended: list[tuple[int, int, int]] = []
        for b, t, byte in self.each(s, pointer):
            self.own(pointer, b, t, "invalidates", op)
            barrier = self.find(b, t, pointer, byte, op)
            if barrier.real and barrier.nbytes:
                self.bad(b, t, f"invalidates the mbarrier at byte {byte}, with {barrier.nbytes} bytes to come", op)
            unseen = [row for row, epoch in barrier.users.items() if not self._sees(b, t, (row, epoch))]
            if barrier.real and unseen:
                message = f"invalidates the mbarrier at byte {byte}, which warp {unseen[0] % m.clocks.warps} uses"
                self.bad(b, t, message + " with nothing in between", op, "race")
            del self.found[id(buffer), b, byte]
            self.starts.pop(id(buffer), None)
            if barrier.real:
                ended.append((b, t, byte))
        self._write(buffer, ended, op)
        for b, _, byte in ended if buffer.written is not None else ():
            first = b * buffer.stride + byte
            buffer.written[first : first + SIZE] = 0  # type: ignore[index]

    def _write(self, buffer: Buffer, where: list[tuple[int, int, int]], op) -> None:
        """mbarriers (block, thread, byte) are made, or end, where other accesses come before or after: all that an
        operation makes at once, so that what is the same in every block is seen to be."""
        m = self.machine
        if not m.check or not where:
            return
        first = np.array([b * buffer.stride + byte for b, _, byte in where])
        for (b, t, byte), start in zip(where, first.tolist(), strict=True):
            if buffer.pending is not None and buffer.pending[start : start + SIZE].any():
                message = f"writes {buffer.name} at byte {byte} while an asynchronous copy writes there"
                self.bad(b, t, message, op, "unfinished copy")
        if m.races is not None:
            threads = np.array([b * m.nt + t for b, t, _ in where], np.int32)
            m.races.note_bytes(buffer, first, SIZE, threads, True, op)

    def _new(self, count: int, owner: int) -> Barrier:
        barrier, clocks = Barrier(count, count), self.machine.clocks
        if clocks is not None:
            unit = clocks.unit(owner)
            barrier.column = clocks.column(self.made.get(unit, 0))
            self.made[unit] = self.made.get(unit, 0) + 1
            barrier.left, barrier.done = (np.zeros(clocks.columns, np.int32) for _ in range(2))
        return barrier

    def check_access(self, buffer: Buffer, first: np.ndarray, nbytes: int, thread: np.ndarray, what: str, op) -> None:
        """Complains about accesses, of so many bytes of the storage from `first` [n] on, by threads counted through the
        batch [n], to bytes that are an mbarrier's."""
        starts = self.starts.get(id(buffer))
        if starts is None:
            mine = [b * buffer.stride + byte for (i, b, byte), x in self.found.items() if i == id(buffer) and x.real]
            starts = self.starts[id(buffer)] = np.array(sorted(mine), np.int64)
        if not len(starts) or first.size == 0:
            return
        at = np.searchsorted(starts, first - (SIZE - 1))
        hit = (at < len(starts)) & (starts[np.minimum(at, len(starts) - 1)] < first + nbytes)
        if not hit.any():
            return
        i = int(np.argmax(hit))
        m, byte = self.machine, int(starts[at[i]]) % buffer.stride
        number = int(np.broadcast_to(thread, len(first))[i])
        where = f"where the mbarrier at byte {byte} is"
        why = "which nothing but operations on mbarriers may touch before mbarrier.inval"
        m.complain_of("bad mbarrier", number, f"{what} {buffer.name} {where}, {why}", op, int(hit.sum()))

    # -- who knows of them

    def _now(self, b: int, t: int) -> tuple[int, int]:
        """A thread's row and its epoch."""
        row = self.machine.clocks.row(b, t)
        return row, int(self.machine.clocks.seen(b, row)[row])

    def _sees(self, b: int, t: int, when: tuple[int, int]) -> bool:
        return when[0] == self.machine.clocks.row(b, t) or self.machine.clocks.sees(b, t, *when)

    def fence_initializations(self, s: State, own: bool) -> None:
        """A fence by the active threads makes initializations visible to tensor copies and to other blocks: their own
        ones (`own`: fence.mbarrier.init), or all that they have seen (a proxy fence)."""
        m = self.machine
        fresh = [x for x in self.found.values() if x.fence is None and x.made is not None]
        if not fresh:
            return
        active = m.everyone(s.mask)
        numbers: dict[int, int] = {}  # of this fence, per block
        for barrier in fresh:
            assert barrier.made is not None
            if active[barrier.maker]:
                barrier.fence = self._now(*barrier.maker)
                if own:  # which a relaxed arrival at the barrier of the cluster tells (PTX ISA, "fence.mbarrier_init")
                    b = barrier.maker[0]
                    if b not in numbers:
                        self.fences[b] = numbers[b] = self.fences.get(b, 0) + 1
                    row = m.clocks.now[m.clocks.unit(b), barrier.fence[0]]
                    row[m.clocks.fenced_inits + b % m.cluster_size] = barrier.fence_number = numbers[b]
            elif not own:
                warps = sorted({(int(b), int(t) // 32 * 32) for b, t in np.argwhere(active)})
                who = [(b, t) for b, t in warps if m.clocks.unit(b) == m.clocks.unit(barrier.maker[0])]
                seen = [x for x in who if m.clocks.sees(*x, *barrier.made)]
                barrier.fence = self._now(*seen[0]) if seen else None

    def own(self, pointer: MemRef, b: int, t: int, what: str, op) -> None:
        """Complains about an operation on an mbarrier of another block, where only one's own will do."""
        rank = self.rank(pointer, b, t)
        if rank is not None and self.owner(b, rank) != b:
            self.bad(b, t, f"{what} an mbarrier of another block of its cluster", op)

    def find(self, b: int, t: int, pointer: MemRef, byte: int, op, rank: int | None = None, copy: bool = False
             ) -> Barrier:  # fmt: skip
        """The mbarrier that thread t of block b means by a byte of its own shared memory, or of another block's of the
        cluster (`rank`); `copy`: for a copy to tell."""
        m, owner = self.machine, self.owner(b, rank)
        key = (id(pointer.buffer), owner, byte)
        found = self.found.get(key)
        if found is None:
            self.bad(b, t, f"uses byte {byte} of {pointer.buffer.name} as an mbarrier, where none is", op)
            found = self.found[key] = self._new(1, owner)
            found.real = False
        if m.clocks is None:
            return found
        row, epoch = self._now(b, t)
        found.users[row] = epoch
        if owner != b and not copy:
            m.clocks.lives.use(b, t, owner, op)
        if found.made is None or row in found.trusted:
            return found
        known = found.fence_number > 0 and m.clocks.sees(b, t, m.clocks.fenced_inits + owner % m.cluster_size,
                                                         found.fence_number)  # fmt: skip
        if not known and not (m.clocks.sees(b, t, *found.made) and self._made_before(found, b, t)):
            message = f"uses the mbarrier at byte {byte} with no barrier behind its initialization"
            self.bad(b, t, message, op, "race")
        if (copy or owner != b) and not known:
            if found.fence is None or not m.clocks.sees(b, t, *found.fence):
                message = f"uses the mbarrier at byte {byte}, with no fence.mbarrier.init behind its initialization"
                self.bad(b, t, message, op, "missing mbarrier fence")
        seen = m.clocks.seen(b, row)  # by all lanes, for good
        if found.fence is not None and all(seen[who] >= when for who, when in (found.made, found.fence)):
            if found.made[0] != row or m.clocks.lanes.met[b, t // 32] >= found.made_at:
                found.trusted.add(row)
        return found

    def _made_before(self, barrier: Barrier, b: int, t: int) -> bool:
        """Whether an mbarrier that another lane of a thread's warp has initialized (or one of another warp) was so
        before what the thread does now."""
        other, m = barrier.maker, self.machine
        mine = other[0] == b and other[1] // 32 == t // 32
        return not mine or m.clocks.lanes.ordered(b, (other[1], barrier.made_at), t)

    # -- arrivals and waits

    def arrive(
        self, s: State, pointer: MemRef, nbytes: np.ndarray | None, op, count: np.ndarray | int = 1
    ) -> np.ndarray:
        """Arrivals of all active threads (`count` each), each of which first adds to the bytes expected. Returns the
        phases that they arrived in, as tokens to wait by. A relaxed arrival orders nothing; one with `nocomplete` must
        not be the last of its phase."""
        m = self.machine
        extra = None if nbytes is None else m.full(nbytes)
        counts = m.full(count)
        tokens = np.zeros((m.nb, m.nt), np.int64)
        released: set[tuple[int, int, int, int]] = set()
        parts = self._parts(s, pointer, op, counts) if m.clocks is not None and not is_relaxed(op) else {}
        for b, t, byte in self.each(s, pointer):
            barrier = self.find(b, t, pointer, byte, op, self.rank(pointer, b, t))
            tokens[b, t] = barrier.phase
            if extra is not None:
                self._add_bytes(barrier, int(extra[b, t]), (b, t, byte), op)
            if barrier.pending < counts[b, t]:
                self.bad(b, t, f"arrives too often at the mbarrier at byte {byte}", op)
                continue
            part = b, t // 32, id(barrier), barrier.phase
            if part in parts and part not in released:
                released.add(part)
                m.clocks.release(b, m.clocks.row(b, t), barrier.left, parts[part])
            if m.waited is not None:
                barrier.waited |= bool(m.waited[b, t])
            barrier.pending -= int(counts[b, t])
            if barrier.pending == 0 and op.name.endswith("nocomplete"):
                message = f"completes the phase of the mbarrier at byte {byte}, which nocomplete must not"
                self.bad(b, t, message, op)
            barrier.settle()
        return tokens

    def _parts(self, s: State, pointer: MemRef, op, counts: np.ndarray) -> dict[tuple, np.ndarray | None]:
        """The lanes (bool [32]; None: a whole warp) that arrive together at one mbarrier (block, warp, mbarrier's id,
        phase). Where a phase ends within a warp, those behind that are of the next one: nobody who waits has heard of
        what they did."""
        lanes: dict[tuple, np.ndarray] = {}
        come: dict[int, int] = {}
        for b, t, byte in self.each(s, pointer):
            barrier = self.find(b, t, pointer, byte, op, self.rank(pointer, b, t))
            before = come.get(id(barrier), 0)
            come[id(barrier)] = before + int(counts[b, t])
            first = barrier.pending
            phase = barrier.phase + (before >= first) + (max(before - first, 0) // max(barrier.count, 1))
            lanes.setdefault((b, t // 32, id(barrier), phase), np.zeros(32, bool))[t % 32] = True
        whole = {w: np.arange(32) < self.machine.nt - 32 * w for w in {key[1] for key in lanes}}
        return {key: None if (here == whole[key[1]]).all() else here for key, here in lanes.items()}

    def expect(self, s: State, pointer: MemRef, nbytes: np.ndarray, op, sign: int = 1) -> None:
        """Adds to the bytes that are to come (`sign` -1: some have come), without arriving."""
        m = self.machine
        extra = m.full(nbytes)
        for b, t, byte in self.each(s, pointer):
            barrier = self.find(b, t, pointer, byte, op, self.rank(pointer, b, t))
            self._add_bytes(barrier, sign * int(extra[b, t]), (b, t, byte), op)
            barrier.settle()

    def _add_bytes(self, barrier: Barrier, nbytes: int, where: tuple[int, int, int], op) -> None:
        barrier.nbytes += nbytes
        if abs(barrier.nbytes) > MOST:
            b, t, byte = where
            message = f"lets the mbarrier at byte {byte} wait for {barrier.nbytes} bytes, more than {MOST}"
            self.bad(b, t, message, op)

    def reached(self, s: State, pointer: MemRef, op) -> None:
        """The active threads have waited for an mbarrier: they see what was done before its phase ended."""
        m = self.machine
        alike = np.zeros((1, 1), np.int64)
        waited = {(b, t // 32, byte): t for b, t, byte, _ in self.one_of_each(s, pointer, alike)}
        for (b, _, byte), t in waited.items():
            barrier = self.find(b, t, pointer, byte, op)
            barrier.witnessed = barrier.phase
        if m.waited is not None:
            for b, t, byte in self.each(s, pointer):
                m.waited[b, t] |= self.find(b, t, pointer, byte, op).waited
        if m.clocks is None or is_relaxed(op):
            return
        for b, w, byte in waited:
            done = self.found[id(pointer.buffer), b, byte].done
            m.clocks.acquire(b, m.clocks.row(b, 32 * w), done, m.clocks.lanes.lanes_of(s.mask, b, w))
        if m.races is not None:
            m.races.forget_known()

    def passed(self, s: State, pointer: MemRef, parity: np.ndarray, op) -> Callable[[], bool]:
        """What tells whether the phase of the given parity has ended, for all active threads: to be asked again and
        again."""
        asked = list(self.one_of_each(s, pointer, parity))
        meant = {(id(pointer.buffer), b, byte, p): self.find(b, t, pointer, byte, op) for b, t, byte, p in asked}

        def ready() -> bool:
            for (buffer, b, byte, p), barrier in meant.items():
                now = self.found.get((buffer, b, byte))
                if now is not barrier:  # it has ended, or another one is there
                    who = next(t for x, t, y, _ in asked if (x, y) == (b, byte))
                    now = meant[buffer, b, byte, p] = self.find(b, who, pointer, byte, op)
                if now.phase & 1 == p:
                    return False
            return True

        return ready

    def ask(self, s: State, pointer: MemRef, parity: np.ndarray, op) -> np.ndarray:
        """The active threads ask once whether the phase of the given parity has ended. Returns those who hear that it
        has not, for all that they know: everyone whose clock does not tell, the first time."""
        m = self.machine
        want, no = m.full(parity), np.zeros((m.nb, m.nt), bool)
        for b, t, byte in self.each(s, pointer):
            barrier = self.find(b, t, pointer, byte, op)
            phase = barrier.phase + (int(want[b, t]) & 1 == barrier.phase & 1)  # that it ends with
            if m.clocks is not None and m.clocks.sees(b, t, barrier.column, phase):
                continue
            key = hash(op), b, t
            no[b, t] = barrier.asked.get(key) != phase
            barrier.asked[key] = phase
        return no

    def waiting(self, s: State, pointer: MemRef, parity: np.ndarray, op) -> np.ndarray:
        """The active threads for which the phase of the given parity has not ended, bool [blocks, threads]."""
        m = self.machine
        want, out = m.full(parity), np.zeros((m.nb, m.nt), bool)
        for b, t, byte in self.each(s, pointer):
            out[b, t] = self.find(b, t, pointer, byte, op).phase & 1 == int(want[b, t]) & 1
        return out

    def describe(self, s: State, pointer: MemRef, parity: np.ndarray, op, block: int) -> str:
        """The state of the mbarrier that the first waiting thread of a block of the batch waits for."""
        waiting = self.waiting(s, pointer, parity, op)
        byte = next(byte for b, t, byte in self.each(s, pointer) if b == block and waiting[b, t])
        found = self.found.get((id(pointer.buffer), block, byte))
        return f"the mbarrier at byte {byte} ({found if found and found.real else 'never initialized'})"


def is_relaxed(op: Any) -> bool:
    """Whether an arrival or a wait only counts, and orders no accesses."""
    return "relaxed" in op.attributes and str(op.attributes["relaxed"]) == "true"
