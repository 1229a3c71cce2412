"""Threads of a launch, with a program counter each: those that are furthest behind go first, together.

A barrier holds its threads until all of their block (or warp) that have not left are there; an instruction of the whole
warp waits for the lanes that it names. Copies of `cp.async` arrive at once, which a GPU may do, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mlirc.device.ptx.operations import DTYPES
from mlirc.device.ptx.parse import Entry, Instruction, Operand, Unknown
from mlirc.errors import MlircError

WARP = 32
BASE = 1 << 32  # the address of the first byte of global memory
GAP = 256  # bytes that nobody has between two buffers, and their alignment
WORDS = {1: np.dtype(np.bool_), 16: np.dtype(np.uint16), 32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}
RUNS, BLOCK, WARPS, LANES = range(4)  # what a thread does: runs, or waits for its block, its warp, or lanes


class Memory:
    """Global memory: buffers one behind the other with gaps, which are out of bounds."""

    def __init__(self, sizes: Sequence[int]):
        self.starts, end = [], GAP
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
    numbers: np.ndarray  # of the blocks
    parameters: dict[str, int]
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
        self.symbols: dict[str, int] = {}
        place = 0
        for name, (size, align) in self.entry.shared.items():
            place = -(-place // align) * align
            self.symbols[name], place = place, place + size
        for name, align in self.entry.dynamic.items():
            self.symbols[name] = -(-place // align) * align
        top = max([place, *(self.symbols[n] + self.dynamic for n in self.entry.dynamic)])
        self.shared = np.zeros((len(self.numbers), top + 16), np.uint8)
        self.top = top
        for name, width in self.entry.registers.items():
            self.registers[name] = np.zeros(self.count, WORDS[width])

    # Values

    def special(self, name: str) -> np.ndarray:
        """%tid.x and its like."""
        kind, _, axis = name.partition(".")
        if kind == "%laneid":
            return self.lane.astype(np.uint32)
        i = "xyz".index(axis) if axis in ("x", "y", "z") else 3
        if kind == "%ntid" or kind == "%nctaid":
            sizes = self.block if kind == "%ntid" else self.grid
            return np.full(self.count, sizes[i], np.uint32)
        if i == 3 or kind not in ("%tid", "%ctaid"):
            raise Unknown(f"{self.entry.name}: {name} is not known here")
        sizes, at = (self.block, self.thread) if kind == "%tid" else (self.grid, self.numbers[self.of_block])
        return (at // int(np.prod(sizes[:i])) % sizes[i]).astype(np.uint32)

    def read(self, operand: Operand, kind: str) -> np.ndarray:
        """An operand as an array of a type; of packed types two elements per thread."""
        dtype = np.dtype(DTYPES[kind])
        if operand.kind == "reg":
            words = self.registers[operand.name]
        elif operand.kind == "special":
            words = self.special(operand.name)
        elif operand.kind == "symbol":
            if operand.name not in self.symbols:
                raise Unknown(f"{self.entry.name}: {operand.name} is not known here")
            words = np.full(self.count, self.symbols[operand.name], np.uint32)
        else:
            size = 4 if kind.endswith("x2") else dtype.itemsize
            words = np.full(self.count, operand.value & ((1 << 8 * size) - 1), f"u{size}")
        if kind.endswith("x2") or words.dtype.itemsize == dtype.itemsize:
            return words.view(dtype)
        return words.astype(f"u{dtype.itemsize}").view(dtype)  # the low bits, or zeros above

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
        wide = base.kind == "reg" and self.registers[base.name].dtype.itemsize == 8
        addresses = self.read(base, "u64" if wide else "u32").astype(np.int64)[active] + operand.value
        if space == "shared":
            bad = (addresses < 0) | (addresses + size > self.top)
            found = self.of_block[active] * self.shared.shape[1] + addresses
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
        return self.bytes_of(space)[places[:, None] + np.arange(size)]

    def store(self, space: str, places: np.ndarray, values: np.ndarray) -> None:
        """Bytes [places, size] to each place."""
        self.bytes_of(space)[places[:, None] + np.arange(values.shape[1])] = values

    # Threads

    def wait(self, active: np.ndarray, kind: int) -> None:
        """Holds threads at a barrier; those whose last one came go on."""
        self.state[active] = kind
        size = self.width if kind == BLOCK else WARP
        alive = (self.pc < self.end).reshape(-1, size)
        done = ((self.state.reshape(-1, size) == kind) | ~alive).all(axis=1)
        self.state[np.repeat(done, size) & (self.state == kind)] = RUNS

    def gather_lanes(self, active: np.ndarray, mask: int) -> np.ndarray:
        """The active threads of warps in which all lanes of the mask that have not left are active; the others wait."""
        named = (mask >> self.lane & 1).astype(bool)
        needed = (named & (self.pc < self.end)).reshape(-1, WARP)
        there = active.reshape(-1, WARP)
        ready = np.repeat((there | ~needed).all(axis=1), WARP) & active
        self.state[active & ~ready] = LANES
        self.state[ready] = RUNS
        return ready

    def next(self) -> tuple[int, np.ndarray] | None:
        """The basic block that is next, and the threads that execute it; None when all have left. Raises MlircError
        when nobody can go on."""
        alive = self.pc < self.end
        runnable = alive & (self.state == RUNS)
        if not runnable.any():
            if not alive.any():
                return None
            raise MlircError(
                f"{self.entry.name}: a deadlock: {int(alive.sum())} threads wait for others that never come"
            )
        at = int(self.pc[runnable].min())
        return at, (self.pc == at) & ((self.state == RUNS) | (self.state == LANES))
