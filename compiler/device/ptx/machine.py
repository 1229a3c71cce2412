"""Threads of a launch, with a program counter each: those that are furthest behind go first, together.

A barrier holds its threads until all of their block (or warp) that have not left are there; an instruction of the whole
warp or warpgroup waits for the lanes that it names; a wait for an mbarrier or a cluster holds its threads until a phase
ends, and whoever asks for what another thread does gives way to it. Copies arrive and products are done at once, which
a GPU may do, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlirc.device.ptx.mbarriers import MBarrier
from mlirc.device.ptx.operations import DTYPES
from mlirc.device.ptx.parse import Entry, Instruction, Operand, Unknown
from mlirc.device.tensor_maps import AnyMap
from mlirc.errors import MlircError

WARP = 32
BASE = 1 << 32  # the address of the first byte of global memory
GAP = 256  # bytes that nobody has between two buffers, and their alignment
WORDS = {1: np.dtype(np.bool_), 16: np.dtype(np.uint16), 32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
WARPGROUP = 128
PARAMETERS, PITCH = 1 << 41, 1 << 16  # where tables of pointers lie, which are parameters, and how far apart
CLUSTER_SHIFT = 24  # of an address in shared memory: above it 1 + the rank in the cluster, or 0 for the own block
# What a thread does: runs, waits for its block, lanes, a barrier by number, or a phase, or has asked.
RUNS, BLOCK, LANES, NAMED, PHASE, ASKED = range(6)
_LANE_MASKS = {"%lanemask_lt": np.less, "%lanemask_le": np.less_equal, "%lanemask_eq": np.equal,
               "%lanemask_ge": np.greater_equal, "%lanemask_gt": np.greater}  # fmt: skip
# What moves so many bytes as they are.
_WHOLE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
PATIENCE = 1 << 10  # so often threads may ask before it is said that nobody answers


class Memory:
    """Global memory: buffers one behind the other with gaps, which are out of bounds; behind those that have numbers,
    zeros of the `module`'s own, by name."""

    def __init__(self, numbered: Sequence[int], module: Mapping[str, int] | None = None):
        self.starts, end = [], GAP
        sizes = [*numbered, *(module or {}).values()]
        self.named = {name: len(numbered) + i for i, name in enumerate(module or {})}
        for size in sizes:
            self.starts.append(end)
            end = -(-(end + size) // GAP) * GAP + GAP
        self.data, self.there = np.zeros(end, np.uint8), np.zeros(end, np.bool_)
        for start, size in zip(self.starts, sizes, strict=True):
            self.there[start : start + size] = True

    def address(self, number: int) -> int:
        """The address of a buffer."""
        return BASE + self.starts[number]


@dataclass
class Machine:
    """The threads of some blocks of one launch. Arrays have an element per thread, warps filled up with threads that
    have left."""

    entry: Entry
    memory: Memory
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic: int
    numbers: np.ndarray  # of the blocks; whole clusters, rank by rank
    parameters: dict[str, int | np.ndarray]  # addresses and numbers, and tables of addresses
    cluster: tuple[int, int, int] = (1, 1, 1)
    maps: dict[int, AnyMap] = field(default_factory=dict)  # tensor maps by their addresses
    registers: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        threads = int(np.prod(self.block))
        self.width = -(-threads // WARP) * WARP
        self.count = len(self.numbers) * self.width
        self.thread = np.tile(np.arange(self.width), len(self.numbers))
        self.of_block = np.repeat(np.arange(len(self.numbers)), self.width)
        self.lane = self.thread % WARP
        self.end = len(self.entry.blocks)
        self.pc = np.where(self.thread < threads, 0, self.end)
        self.state = np.full(self.count, RUNS)
        self.at_barrier = np.zeros(self.count, np.int64)  # the number of the one that a thread waits at
        self.arrived: dict[tuple[int, int], int] = {}  # threads, by block and barrier
        self.blocks_of_cluster = math.prod(self.cluster)
        self.met = np.zeros((2, self.count), np.int64)  # barriers of the cluster arrived at, and waited for
        self.mbarriers: dict[int, MBarrier] = {}
        self.changes = self.seen = self.asked = 0  # of memory; at the last time that all had asked; how often they did
        self.symbols: dict[str, int] = {}
        place = 0
        for name, (size, align) in self.entry.shared.items():
            place = -(-place // align) * align
            self.symbols[name], place = place, place + size
        for name, align in self.entry.dynamic.items():
            self.symbols[name] = -(-place // align) * align
        top = max([place, *(self.symbols[n] + self.dynamic for n in self.entry.dynamic)])
        self.shared = np.zeros((len(self.numbers), -(-top // 16) * 16 + 16), np.uint8)
        self.top = top
        for name, width in self.entry.registers.items():
            self.registers[name] = np.zeros(self.count, WORDS[width])

    # Values

    def special(self, name: str) -> np.ndarray:
        """%tid.x and its like."""
        kind, _, axis = name.partition(".")
        if kind == "%laneid":
            return self.lane.astype(np.uint32)
        if kind in _LANE_MASKS:
            lanes = np.arange(WARP)
            return (_LANE_MASKS[kind](lanes, self.lane[:, None]) << lanes).sum(axis=1).astype(np.uint32)
        i = "xyz".index(axis) if axis in ("x", "y", "z") else 3
        if "cluster" in kind:
            return self._of_cluster(kind, i)
        if kind == "%ntid" or kind == "%nctaid":
            sizes = self.block if kind == "%ntid" else self.grid
            return np.full(self.count, sizes[i], np.uint32)
        if i == 3 or kind not in ("%tid", "%ctaid"):
            raise Unknown(f"{self.entry.name}: {name} is not known here")
        sizes, at = (self.block, self.thread) if kind == "%tid" else (self.grid, self.numbers[self.of_block])
        return (at // int(np.prod(sizes[:i])) % sizes[i]).astype(np.uint32)

    def _of_cluster(self, kind: str, i: int) -> np.ndarray:
        rank = self.of_block % self.blocks_of_cluster
        if kind in ("%cluster_ctarank", "%cluster_nctarank"):
            return (rank if kind == "%cluster_ctarank" else np.full(self.count, self.blocks_of_cluster)).astype(
                np.uint32
            )
        size = self.cluster[i]
        if kind in ("%cluster_nctaid", "%nclusterid"):
            return np.full(self.count, size if kind == "%cluster_nctaid" else self.grid[i] // size, np.uint32)
        block = self.numbers[self.of_block] // int(np.prod(self.grid[:i])) % self.grid[i]
        return (block // size if kind == "%clusterid" else block % size).astype(np.uint32)

    def read(self, operand: Operand, kind: str) -> np.ndarray:
        """An operand as an array of a type; of packed types two elements per thread."""
        dtype = np.dtype(DTYPES[kind])
        if operand.kind == "reg":
            words = self.registers[operand.name]
        elif operand.kind == "special":
            words = self.special(operand.name)
        elif operand.kind == "symbol":
            words = self._symbol(operand.name)
        else:
            size = 4 if kind.endswith("x2") else dtype.itemsize
            words = np.full(self.count, operand.value & ((1 << 8 * size) - 1), f"u{size}")
        if kind.endswith("x2") or words.dtype.itemsize == dtype.itemsize:
            return words.view(dtype)
        return words.astype(f"u{dtype.itemsize}").view(dtype)  # the low bits, or zeros above

    def _symbol(self, name: str) -> np.ndarray:
        if name in self.registers:
            return self.registers[name]
        if name in self.parameters:
            value = self.parameters[name]
            place = PARAMETERS + PITCH * list(self.parameters).index(name) if isinstance(value, np.ndarray) else value
            return np.full(self.count, place, np.uint64)
        if name in self.memory.named:
            return np.full(self.count, self.memory.address(self.memory.named[name]), np.uint64)
        if name not in self.symbols:
            raise Unknown(f"{self.entry.name}: {name} is not known here")
        return np.full(self.count, self.symbols[name], np.uint32)

    def parameter(self, address: Operand, at: Instruction, active: np.ndarray) -> np.ndarray:
        """What `ld.param` reads: a parameter, or, of a table, one of its pointers."""
        base = address.parts[0]
        value = self.parameters.get(base.name)
        if value is not None and not isinstance(value, np.ndarray):
            if address.value:
                raise Unknown(f"{self.entry.name}: a part of parameter {base.name} is not known here")
            return np.full(self.count, value, np.uint64)
        places = (self.read(base, "u64").astype(np.int64) + address.value - PARAMETERS)[active]
        number = int(places[0]) // PITCH
        table = list(self.parameters.values())[number] if 0 <= number < len(self.parameters) else None
        if not isinstance(table, np.ndarray) or at.op[-1] not in ("u64", "b64") or (places // PITCH != number).any():
            raise Unknown(f"{self.entry.name}: {'.'.join(at.op)} reads no pointer of a table")
        index = places % PITCH // 8
        if (index >= len(table)).any() or (places % 8).any():
            raise MlircError(f"{self.entry.name}: reads a pointer behind the {len(table)} of a table")
        found = np.zeros(self.count, np.uint64)
        found[active] = table[index]
        return found

    def write(self, name: str, value: np.ndarray, active: np.ndarray | None) -> None:
        """Sets a register for the active threads; None: for all."""
        register = self.registers[name]
        if value.dtype.itemsize != register.dtype.itemsize and value.size == register.size:
            value = value.astype(f"{'i' if value.dtype.kind == 'i' else 'u'}{register.dtype.itemsize}")
        words = np.ascontiguousarray(value).view(register.dtype)
        if active is None:
            self.registers[name] = words if words is not register else words.copy()
        else:
            self.registers[name] = np.where(active, words, register)

    # Memory

    def places(self, operand: Operand, space: str, size: int, active: np.ndarray, at: Instruction) -> np.ndarray:
        """Where the active threads' addresses are in the space's bytes; raises MlircError for one that is out of bounds
        or no multiple of `size`."""
        base = operand.parts[0]
        wide = self.registers[base.name].dtype.itemsize == 8 if base.kind == "reg" else space != "shared"
        addresses = self.read(base, "u64" if wide else "u32").astype(np.int64)[active] + operand.value
        if space == "shared":
            addresses &= (1 << 32) - 1
            block, rank = self.of_block[active], (addresses >> CLUSTER_SHIFT) - 1
            own = addresses & ((1 << CLUSTER_SHIFT) - 1)
            bad = (rank >= self.blocks_of_cluster) | (own + size > self.top)
            peer = block // self.blocks_of_cluster * self.blocks_of_cluster + rank
            found = np.where(rank < 0, block, peer) * self.shared.shape[1] + own
        else:
            found = addresses - BASE
            bad = (found < 0) | (found + size > len(self.memory.data))
            inside = np.where(bad, 0, found)
            bad |= ~(self.memory.there[inside] & self.memory.there[inside + size - 1])
        for what, wrong in ((f"no multiple of {size}", addresses % size != 0), ("out of bounds", bad)):
            if wrong.any():
                thread = int(np.flatnonzero(active)[np.flatnonzero(wrong)[0]])
                raise MlircError(
                    f"{self.entry.name}: line {at.line}: {at.name}: block {int(self.numbers[self.of_block[thread]])} "
                    f"thread {int(self.thread[thread])}: address {int(addresses[wrong][0]):#x} is {what}"
                )
        return found

    def bytes_of(self, space: str) -> np.ndarray:
        return self.shared.reshape(-1) if space == "shared" else self.memory.data

    def load(self, space: str, places: np.ndarray, size: int) -> np.ndarray:
        """`size` bytes from each place: [places, size]."""
        if not self._whole(places, size):
            return self.bytes_of(space)[places[:, None] + np.arange(size)]
        words: np.ndarray = self.bytes_of(space).view(_WHOLE[size])
        return words[places // size].view(np.uint8).reshape(-1, size)

    def store(self, space: str, places: np.ndarray, values: np.ndarray) -> None:
        """Bytes [places, size] to each place."""
        self.changes += 1
        size = values.shape[1]
        if not self._whole(places, size):
            self.bytes_of(space)[places[:, None] + np.arange(size)] = values
            return
        words: np.ndarray = self.bytes_of(space).view(_WHOLE[size])
        words[places // size] = np.ascontiguousarray(values).view(_WHOLE[size])[:, 0]

    @staticmethod
    def _whole(places: np.ndarray, size: int) -> bool:
        """Whether accesses can be made by words, which is faster than by bytes."""
        return size in _WHOLE and not (places & (size - 1)).any()

    # Threads

    def wait_for_block(self, active: np.ndarray) -> None:
        """Holds threads at the barrier of their block; those whose last one came go on."""
        self.state[active] = BLOCK
        alive = (self.pc < self.end).reshape(-1, self.width)
        done = ((self.state.reshape(-1, self.width) == BLOCK) | ~alive).all(axis=1)
        self.state[np.repeat(done, self.width) & (self.state == BLOCK)] = RUNS

    def leave(self) -> None:
        """Some threads have left: who waits for them waits no longer."""
        self.wait_for_block(np.zeros(self.count, bool))
        self.state[self.state == LANES] = RUNS
        self.wake()

    def arrive(self, active: np.ndarray, number: np.ndarray, count: np.ndarray, waits: bool) -> None:
        """Threads arrive at barriers of their blocks by number, each for so many threads; and wait there, or not."""
        self.at_barrier[active] = number[active]
        self.state[active & waits] = NAMED
        for block, which in np.unique(np.stack([self.of_block[active], number[active]]), axis=1).T:
            mine = active & (self.of_block == block) & (number == which)
            key, needed = (int(block), int(which)), int(count[mine][0])
            total = self.arrived.get(key, 0) + int(mine.sum())
            self.arrived[key] = total % needed
            if total >= needed:
                here = (self.state == NAMED) & (self.of_block == block) & (self.at_barrier == which)
                self.state[here] = RUNS

    def meet(self, active: np.ndarray) -> None:
        """Threads arrive at the barrier of their cluster."""
        self.met[0, active] += 1
        self.wake()

    def has_met(self) -> np.ndarray:
        """The threads in whose clusters all that have not left have arrived as often as they have."""
        size = self.width * self.blocks_of_cluster
        arrivals = np.where(self.pc < self.end, self.met[0], np.iinfo(np.int64).max).reshape(-1, size)
        return np.repeat(arrivals.min(axis=1), size) >= self.met[0]

    def hold(self, active: np.ndarray, ready: np.ndarray) -> np.ndarray:
        """The active threads for which a wait has ended; the others wait for the end of a phase."""
        self.state[active & ~ready] = PHASE
        self.state[active & ready] = RUNS
        return active & ready

    def wake(self) -> None:
        """A phase has ended: who waits for one looks again."""
        self.changes += 1
        self.state[self.state == PHASE] = RUNS

    def gather_lanes(self, active: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The active threads whose warp has all lanes of their mask active that have not left; the others wait."""
        bit = np.int64(1) << np.arange(WARP)
        there, alive = ((x.reshape(-1, WARP) * bit).sum(axis=1) for x in (active, self.pc < self.end))
        missing = np.repeat(alive & ~there, WARP) & mask
        return self._gathered(active, missing == 0)

    def gather_warpgroups(self, active: np.ndarray) -> np.ndarray:
        """The active threads whose warpgroups are there as a whole; the others wait."""
        group = self.thread // WARPGROUP + self.of_block * (self.width // WARPGROUP + 1)
        missing = np.bincount(group, weights=(self.pc < self.end) & ~active, minlength=group[-1] + 1)
        return self._gathered(active, missing[group] == 0)

    def _gathered(self, active: np.ndarray, complete: np.ndarray) -> np.ndarray:
        ready = active & complete
        self.state[active & ~ready] = LANES
        self.state[ready] = RUNS
        return ready

    def next(self) -> tuple[int, np.ndarray] | None:
        """The basic block that is next, and the threads that execute it; None when all have left. Raises MlircError
        when nobody can go on."""
        alive = self.pc < self.end
        runnable = alive & (self.state == RUNS)
        if not runnable.any() and (self.state[alive] == ASKED).any():
            self.asked = self.asked + 1 if self.seen == self.changes else 0
            self.seen = self.changes
            if self.asked < PATIENCE:
                self.state[self.state == ASKED] = RUNS
                runnable = alive & (self.state == RUNS)
        if not runnable.any():
            if not alive.any():
                return None
            raise MlircError(
                f"{self.entry.name}: a deadlock: {int(alive.sum())} threads wait for others that never come"
            )
        at = int(self.pc[runnable].min())
        return at, (self.pc == at) & ((self.state == RUNS) | (self.state == LANES))
