"""The state of one launch, for a batch of blocks that run at the same time, and its memory accesses.

All threads of a batch execute an operation together: a legal schedule of the kernel. What other schedules could do is
found by the race detector (order/races.py), not by trying them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirc.device.arguments import check_given
from mlirc.device.counters import Counters
from mlirc.device.limits import Deadline
from mlirc.device.memory import Buffer, MemRef, gather, scatter
from mlirc.device.numbers import UNSIGNED
from mlirc.device.order.races import RaceLog
from mlirc.device.report import Report
from mlirc.errors import MlircError

WARP = 32


class State:
    """A group of threads that executes together: registers by number (shared with the groups that it split from), and
    which threads are active (bool [blocks or 1, threads or 1], None: all). `watch`: within a loop that waits for other
    threads, what its turn has seen of what they write (spins.Watch); else None."""

    __slots__ = ("r", "mask", "m", "watch")

    def __init__(self, registers: list, mask, machine: Machine, watch: list | None = None):
        self.r, self.mask, self.m, self.watch = registers, mask, machine, watch

    def only(self, flags: np.ndarray | None = None) -> State:
        """The state with only those threads active for which a flag is set; None: no flag is asked for."""
        if flags is None:
            return self
        flags = flags.astype(bool)
        return State(self.r, flags if self.mask is None else flags & self.mask, self.m)


class Machine:
    """A batch of blocks of one launch."""

    def __init__(self, kernel: str, blocks: np.ndarray, grid, block, report: Report, check: bool, poison: int,
                 cluster: tuple[int, int, int] = (1, 1, 1)):  # fmt: skip
        self.cluster, self.cluster_size = cluster, cluster[0] * cluster[1] * cluster[2]
        self.undefined: np.ndarray | None = None  # where the last operation that had no meaning had none
        self.kernel, self.report, self.check, self.poison = kernel, report, check, poison
        self.blocks = blocks  # linear numbers of the batch's blocks
        self.grid, self.block = grid, block
        self.nb, self.nt = len(blocks), block[0] * block[1] * block[2]
        self.all = np.broadcast_to(True, (self.nb, self.nt))
        self.shared: list[Buffer] = []
        self.dynamic_shared: Any = None  # a Buffer, from the start
        self.races = RaceLog(self) if check else None
        self.deadline = Deadline(report)  # of the launch
        self.clocks: Any = None  # Clocks, for kernels that order warps by more than barriers of the block
        self.order: Any = None  # likewise Knowledge, of global memory
        self.counters: Counters | None = None
        self.engine: Any = None  # an Engine, once an asynchronous instruction of Hopper's is used
        self.draw: np.random.Generator | None = None  # draws the order of atomics; None: by thread number
        self.registers: Any = None  # a RegisterPool, once setmaxregister is used
        self.waited: np.ndarray | None = None  # which threads are behind griddepcontrol.wait; None: nothing to wait for
        self.tensor_stores = False  # whether tensor copies write global memory
        self.bulk_sources = False  # whether copies use global memory that threads may have written
        self.arrays: dict[str | int, Buffer] = {}  # of the kernel's own, by what declares them
        self.module: dict[str, Buffer] = {}  # global memory of the module's own, by name
        self.own: dict[int, MemRef] = {}  # the attributions of a gpu.func, by register
        self.copies: Any = None  # Copies: cp.asyncs under way, from the start
        self.arrived: dict = {}
        t = np.arange(self.nt, dtype=np.int64)[None, :]
        x, y = block[0], block[1]
        self.thread_id = {"x": t % x, "y": t // x % y, "z": t // (x * y)}
        b = blocks.astype(np.int64)[:, None]
        self.rank = np.arange(self.nb, dtype=np.int64)[:, None] % self.cluster_size  # within the cluster
        self.block_id = {"x": b % grid[0], "y": b // grid[0] % grid[1], "z": b // (grid[0] * grid[1])}
        self.lane = t % WARP

    # -- shared and local memory

    def allocate(self, name: str, space: str, nbytes: int, align: int | None = None) -> Buffer:
        """Memory of every block (or thread) of the batch; `align`: bytes, as the kernel declares."""
        instances = self.nb if space == "shared" else self.nb * self.nt
        buffer = Buffer(
            name, space, nbytes, max(instances, 2), poison=self.poison, align=align
        )  # two at least: the stride keeps instances apart
        if space == "shared":
            if self.shared:
                last = self.shared[-1]
                buffer.place = last.place + -(-last.nbytes // 1024) * 1024
            self.shared.append(buffer)
        return buffer

    def own_array(self, key: str | int, name: str, space: str, nbytes: int, align: int | None = None) -> Buffer:
        """The memory that a kernel declares, by what declares it: allocated when it is first asked for."""
        if key not in self.arrays:
            self.arrays[key] = self.allocate(name, space, nbytes, align)
        return self.arrays[key]

    def shared_at(self, address: np.ndarray, mask) -> tuple[Buffer, np.ndarray]:
        """The buffer in shared memory that the addresses of the active threads lie in, and their bytes within it."""
        known = address if mask is None else self.full(address)[self.everyone(mask)]
        first = int(known.min()) if known.size else 0
        found = max((b for b in self.shared if b.place <= first), key=lambda b: b.place, default=self.shared[0])
        later = [b.place for b in self.shared if b.place > found.place]
        if known.size and later and int(known.max()) >= min(later):
            raise MlircError("host device: an address in shared memory that lies in another array in each thread")
        return found, address - found.place

    def absolute(self, buffer: Buffer, offset, item: int, rank=None):
        """Element numbers in a buffer's storage from those within an instance; `rank`: that of the block of the cluster
        whose shared memory is meant, None for the thread's own."""
        if buffer.space == "global":
            return offset
        if buffer.space == "shared" and rank is not None:
            block = np.arange(self.nb, dtype=np.int64)[:, None] // self.cluster_size * self.cluster_size + rank
            return offset + block * (buffer.stride // item)
        if buffer.space == "shared":
            return offset + (np.arange(self.nb, dtype=np.int64) * (buffer.stride // item))[:, None]
        number = np.arange(self.nb * self.nt, dtype=np.int64).reshape(self.nb, self.nt)
        return offset + number * (buffer.stride // item)

    # -- checks

    def full(self, value: Any) -> np.ndarray:
        """A value of every thread, [blocks, threads, ...], from one that is kept once for those that share it, or a
        number; not to be written to."""
        value = np.asarray(value)
        if value.shape[:2] == (self.nb, self.nt):
            return value
        return np.broadcast_to(value, (self.nb, self.nt, *value.shape[2:]))

    def number(self, value: Any, b: int, t: int) -> int:
        """An integer value of one thread (of block b of the batch)."""
        return int(self.full(value)[b, t])

    def everyone(self, mask) -> np.ndarray:
        """The active threads, bool [blocks, threads]."""
        return self.all if mask is None else self.full(mask)

    def one(self, b: int, t: int) -> np.ndarray:
        """A mask with one thread, bool [blocks, threads]."""
        mask = np.zeros((self.nb, self.nt), bool)
        mask[b, t] = True
        return mask

    def where(self, bad: np.ndarray) -> str:
        """The first thread of a mask, in words."""
        b, t = np.argwhere(self.full(bad))[0]
        return f"block {int(self.blocks[b])} thread {int(t)}"

    def first(self, bad: np.ndarray, numbers: Any) -> int:
        """The number, of one per thread, of the first thread of a mask."""
        full = self.full(numbers)
        return int(full[self.full(bad)][0])

    def active(self, mask, flags: Any) -> np.ndarray | None:
        """The threads for which a flag is set and that are active; None if there is none."""
        if mask is not None:
            flags = flags & mask
        return flags if flags.any() else None

    def complain(self, kind: str, bad: np.ndarray, message: str, op) -> None:
        full = self.full(bad)
        self.report.add(kind, f"{self.where(bad)} {message}", op, self.kernel, int(full.sum()))

    def complain_of(self, kind: str, thread: int, message: str, op, count: int) -> None:
        """Reports a case of a thread, counted through the batch; `count`: how many cases there are."""
        name = f"block {int(self.blocks[thread // self.nt])} thread {thread % self.nt}"
        self.report.add(kind, f"{name} {message}", op, self.kernel, count)

    def in_bounds(self, ref: MemRef, indices: list, width: int, mask, op) -> tuple[list, object]:
        """Checks indices against a memref's shape; returns them, and the threads that may go on (mask semantics)."""
        last = len(indices) - 1
        for d, (i, n) in enumerate(zip(indices, ref.shape, strict=True)):
            top = n - (width - 1 if d == last else 0)
            if isinstance(i, int):
                if 0 <= i < top:
                    continue
                i = np.full((1, 1), i)
            if top > 0 and i.view(np.uint64).max() < top:
                continue
            bad = self.active(mask, (i < 0) | (i >= top))
            if bad is None:
                continue
            value = self.first(bad, i)
            many = f" ({width} elements)" if width > 1 and d == last else ""
            self.complain(
                "out of bounds",
                bad,
                f"uses index {value}{many} in dimension {d} of extent {n} of {ref.buffer.name}",
                op,
            )
            good = ~bad if mask is None else mask & ~bad
            mask = good
        return indices, mask

    def inside(self, ref: MemRef, offset, width: int, mask, op):
        """Checks element numbers against the memory itself, which a window may have left though an index fits the
        window; returns the threads that may go on (mask semantics)."""
        last = ref.buffer.nbytes // ref.item - width
        at = offset if isinstance(offset, np.ndarray) else np.full((1, 1), offset, dtype=np.int64)
        if at.size == 0 or (at.min() >= 0 and at.max() <= last):
            return mask
        outside = (at < 0) | (at > last)
        bad = self.active(mask, outside)
        if bad is not None:
            byte, size = self.first(bad, at) * ref.item, ref.buffer.nbytes
            what = f"accesses byte {byte}, outside of {ref.buffer.name}, which has {size} bytes"
            self.complain("out of bounds", bad, what, op)
        return ~outside if mask is None else mask & ~outside

    def placed(self, buffer: Buffer, align: int, mask, op) -> bool:
        """Whether memory is declared with so many bytes of alignment that its start is a multiple of `align`: where it
        lies otherwise is luck."""
        if buffer.align >= align:
            return True
        if self.check:
            message = (
                f"needs {buffer.name}, declared with an alignment of {buffer.align} bytes, at a multiple of {align}"
            )
            self.complain("misaligned", self.everyone(mask), message, op)
        return False

    def aligned(self, ref: MemRef, offset, width: int, align: int, mask, op) -> bool:
        """Whether every access lies at a multiple of `align` bytes; reports those that do not."""
        if align > ref.buffer.align:
            self.placed(ref.buffer, align, mask, op)
        per = align // ref.item
        if per <= 1:
            return width == 1
        at = offset if isinstance(offset, np.ndarray) else np.full((1, 1), offset)
        off = at % per != 0 if per & (per - 1) else (at & (per - 1)) != 0
        if off.any():
            bad = self.active(mask, off)
            if bad is not None:
                byte = self.first(bad, at) * ref.item
                self.complain(
                    "misaligned", bad, f"accesses byte {byte} of {ref.buffer.name}, which is no multiple of {align}", op
                )
            return False
        return per >= width

    # -- what a machine with shadows follows (shadows/machine.py)

    def taken(self, buffer: Buffer, shape: tuple, places: list[tuple[np.ndarray, np.ndarray]], op) -> None:
        """Products of n warpgroups read an operand of a `shape` [n, rows, k] from shared memory: some of them (their
        numbers) bytes [..., rows, k, bytes of an element] of its storage."""

    def sent(self, buffer: Buffer, byte: np.ndarray, lone: np.ndarray, op) -> None:
        """A thread's bulk copy takes bytes of the storage of shared memory elsewhere."""

    def fetched(self, buffer: Buffer, byte: np.ndarray, op) -> np.ndarray | None:
        """A copy takes bytes of global memory to shared memory; returns, for each of them, what a machine with shadows
        keeps in `written` there. None: all are defined, or nobody asks."""
        return None

    def combined(self, buffer: Buffer, byte: np.ndarray, lone: np.ndarray, op) -> None:
        """A thread's copy combines bytes of global memory with others, which makes them written."""
        if buffer.written is not None:
            buffer.written[byte] = 0xFF

    def computed(self, p: Any, result: np.ndarray, blocks: np.ndarray, lanes: np.ndarray) -> None:
        """Products of n warpgroups have their results, in registers of blocks [n, 1] and threads [n, 128]."""

    # -- accesses

    def _address(self, ref: MemRef, indices: list, width: int, align: int, mask, write: bool, op) -> tuple:
        """Checks and counts an access; returns its byte addresses, which threads still make it, and whether all of
        them are aligned to its width."""
        if self.check:
            indices, mask = self.in_bounds(ref, indices, width, mask, op)
        offset = ref.offset(indices)
        if self.waited is not None:
            self.check_wait(ref.buffer, mask, write, op)
        if self.check:
            mask = self.inside(ref, offset, width, mask, op)
        fits = self.aligned(ref, offset, width, align, mask, op) if width > 1 else True
        if not isinstance(offset, np.ndarray):
            offset = np.full((1, 1), offset, dtype=np.int64)
        if self.counters is not None:
            self.count_access(ref, offset, width, mask, write, op)
        return self.absolute(ref.buffer, offset, ref.item, ref.rank), mask, fits

    def load(self, ref: MemRef, indices: list, width: int, align: int, mask, op, log: bool = True) -> np.ndarray:
        """Reads `width` elements per thread: unsigned words [blocks or 1, threads or 1, width]. Inactive threads get
        anything."""
        address, mask, fits = self._address(ref, indices, width, align, mask, False, op)
        buffer = ref.buffer
        out = gather(buffer, "data", address, ref.item, width, fits)
        if self.check:
            self._check_read(ref, address, width, fits, mask, op)
            if buffer.tracked and log and self.races is not None:
                self.races.note(buffer, address, width, ref.item, False, mask, op)
        return out

    def _check_read(self, ref: MemRef, address, width: int, fits: bool, mask, op) -> None:
        buffer = ref.buffer
        busy = self._check_pending(buffer, address, ref.item, width, fits, mask, "reads", op)
        if buffer.written is not None:
            known = gather(buffer, "written", address, ref.item, width, fits)
            full = np.iinfo(known.dtype).max
            if known.min() != full:
                missing = known != full if busy is None else (known | busy) != full  # what is on its way was reported
                bad = self.active(mask, missing.any(axis=-1))
                if bad is not None:
                    byte = buffer.within(self.first(bad, address) * ref.item)
                    what = f"reads byte {byte} of {buffer.name}, where nobody wrote"
                    self.complain("uninitialized read", bad, what, op)

    def _check_pending(self, buffer: Buffer, address, item: int, width: int, fits: bool, mask, what: str, op):
        """Complains about accesses to what an asynchronous copy under way writes; returns the bytes that one does, as
        words of 0xFF (None: there are none)."""
        if buffer.pending is None:
            return None
        busy = gather(buffer, "pending", address, item, width, fits)
        bad = self.active(mask, busy.any(axis=-1)) if busy.any() else None
        if bad is not None:
            first = self.compress(np.asarray(address)[..., None], self.lanes(bad))[0, 0] * item
            copy = self.copies.writing(buffer, int(first), width * item) if self.copies else None
            which = "an asynchronous copy" if copy is None else f"the copy at {self.report.place(copy)}"
            self.complain("unfinished copy", bad, f"{what} {buffer.name} while {which} writes there", op)
        return busy

    def check_wait(self, buffer: Buffer, mask, write: bool, op) -> None:
        """Complains about threads that touch what an earlier launch may still use, in front of griddepcontrol.wait."""
        if not buffer.earlier or not (write or buffer.earlier == "writes"):
            return
        bad = self.active(mask, ~self.waited)  # type: ignore[operator]
        if bad is not None:
            does = "write" if write else "read"
            message = f"{does}s {buffer.name}, which an earlier launch {buffer.earlier}, before the wait for it"
            self.complain(f"{does} before griddepcontrol.wait", bad, message, op)

    def share_wait(self, who: np.ndarray) -> None:
        """The given threads of each block have met: what one has waited for by griddepcontrol, all have."""
        assert self.waited is not None
        self.waited |= who & (self.waited & who).any(axis=1, keepdims=True)

    def lanes(self, mask):
        """The numbers of the active threads, counted through the batch; None if all are active."""
        if mask is None:
            return None
        return np.flatnonzero(self.full(mask))

    def compress(self, a: np.ndarray, chosen) -> np.ndarray:
        """A per-thread array [blocks or 1, threads or 1, ...] as [number of chosen threads, ...]."""
        full = self.full(a).reshape(self.nb * self.nt, *a.shape[2:])
        return full if chosen is None else full[chosen]

    def store(self, ref: MemRef, indices: list, value: np.ndarray, align: int, mask, op, log: bool = True) -> None:
        """Writes elements [blocks or 1, threads or 1, width] (any dtype of the right size)."""
        width = value.shape[-1]
        address, mask, fits = self._address(ref, indices, width, align, mask, True, op)
        if self.check and ref.buffer.reading is not None:
            self.check_reading(ref.buffer, address, ref.item, width, fits, mask, op)
        if self.check:
            self._check_pending(ref.buffer, address, ref.item, width, fits, mask, "writes", op)
        check_given(self, ref.buffer, address, ref.item, mask, op)
        chosen = self.lanes(mask)
        words = np.ascontiguousarray(self.compress(value, chosen)).view(UNSIGNED[ref.item])
        self.write(ref.buffer, self.compress(address, chosen), words, ref.item, fits)
        if ref.buffer.watch is not None:
            self.watched(ref.buffer, address, ref.item, width, mask, op)
        if self.check and ref.buffer.tracked and log and self.races is not None:
            self.races.note(ref.buffer, address, width, ref.item, True, mask, op)

    def watched(self, buffer: Buffer, address: np.ndarray, item: int, width: int, mask, op) -> None:
        """Notes who writes the byte that is watched."""
        byte, writers = buffer.watch  # type: ignore[misc]
        here = (address * item <= byte) & (byte < (address + width) * item)
        active = self.active(mask, here)
        if active is not None:
            b, t = np.argwhere(self.full(active))[-1]
            writers.append((int(self.blocks[b]), int(t), op))

    def check_reading(self, buffer: Buffer, address, item: int, width: int, fits: bool, mask, op) -> None:
        """Complains about writes to what a wgmma under way reads."""
        busy = gather(buffer, "reading", address, item, width, fits)
        bad = self.active(mask, busy.any(axis=-1)) if busy.any() else None
        if bad is not None:
            start = self.first(bad, address) * item
            byte = start + int(np.argmax(buffer.reading[start : start + width * item] != 0))  # type: ignore[index]
            self.complain("race", bad, f"overwrites {self.engine.reader(buffer, byte)}", op)

    def count_access(self, ref: MemRef, offset: np.ndarray, width: int, mask, write: bool, op) -> None:
        """Counts an access at element numbers `offset` within an instance."""
        assert self.counters is not None
        byte = self.full(offset * ref.item)
        self.counters.access(ref.buffer, byte, width * ref.item, mask, write, op)

    def count_instructions(self, kind: str, each: int, mask) -> None:
        """Counts the warps that execute an operation, `each` instructions per warp."""
        assert self.counters is not None
        lanes = min(WARP, self.nt)
        if mask is None:
            warps = self.nb * self.nt // lanes
        else:
            full = np.ascontiguousarray(self.full(mask))
            warps = int(full.reshape(-1, lanes).any(axis=1).sum())
        self.counters.add(f"instructions: {kind}", warps * each)

    def write(self, buffer: Buffer, address: np.ndarray, words: np.ndarray, item: int, fits: bool) -> None:
        """Writes rows of words at addresses (in elements), and marks them as written."""
        scatter(buffer, "data", address, words, item, fits)
        if not self.check:
            return
        ones = np.full(words.shape, np.iinfo(UNSIGNED[item]).max, dtype=UNSIGNED[item])
        if self.bulk_sources and buffer.space == "global" and self.order is not None:
            self.order.order.generic[id(buffer)] = buffer.mark("generic")
            scatter(buffer, "generic", address, ones, item, fits)
        if buffer.written is not None:
            scatter(buffer, "written", address, ones, item, fits)
