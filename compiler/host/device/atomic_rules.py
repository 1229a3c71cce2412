"""Atomics of the llvm dialect. One thread after the other, in the order of their numbers, or as the seed has it.
Memory orders and scopes are not told apart: an atomic orders nothing but itself."""

from __future__ import annotations

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.device.machine import State
from mlirc.host.device.memory import MemRef
from mlirc.host.device.numbers import dtype_of, vector_shape
from mlirc.host.device.pointer_rules import element_of
from mlirc.host.device.translate import Translator, rule
from mlirc.mlir import ir


def _unsigned(f):
    return lambda a, b: f(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")).view(a.dtype)


# In the order of LLVM's AtomicBinOp.
_NAMES = ("xchg", "add", "sub", "and", "nand", "or", "xor", "max", "min", "umax", "umin", "fadd", "fsub", "fmax",
          "fmin", "uinc_wrap", "udec_wrap", "usub_cond", "usub_sat", "fmaximum", "fminimum")  # fmt: skip
_OPERATIONS = {
    "xchg": lambda a, b: b, "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "nand": lambda a, b: ~(a & b), "max": np.maximum, "min": np.minimum,
    "umax": _unsigned(np.maximum), "umin": _unsigned(np.minimum), "fadd": np.add, "fsub": np.subtract,
    "fmax": np.fmax, "fmin": np.fmin, "fmaximum": np.maximum, "fminimum": np.minimum,
    "uinc_wrap": _unsigned(lambda a, b: np.where(a >= b, 0, a + 1).astype(a.dtype)),
    "udec_wrap": _unsigned(lambda a, b: np.where((a == 0) | (a > b), b, a - 1).astype(a.dtype)),
}  # fmt: skip


def atomically(s: State, pointer: MemRef, item: int, count: int, change, op) -> np.ndarray:
    """Runs `change(memory, cell, thread)` for every active thread in order, where memory is the storage as unsigned
    words and cell the word's number, or the first of `count`. Returns what was there before, as words [blocks, threads,
    count]."""
    m = s.m
    ref, index = element_of(s, pointer, item, op)
    m.load(ref, index, count, item * count, s.mask, op, log=False)  # checks bounds and initialization, and counts
    _, mask = m.in_bounds(ref, index, count, s.mask, op)
    if m.waited is not None:
        m.check_wait(ref.buffer, mask, True, op)
    address = m.absolute(ref.buffer, index[0], item, ref.rank)
    threads = m.in_turn(mask)
    cells = m.compress(address, threads)
    memory = ref.buffer.words("data", item)
    before = np.zeros((m.nb * m.nt, count), memory.dtype)
    for cell, thread in zip(cells.tolist(), threads.tolist(), strict=True):
        before[thread] = memory[cell : cell + count]
        change(memory, cell, thread)
    if m.clocks is not None and m.races is not None and ref.buffer.space == "shared":
        per = item * count // m.races.granule
        m.clocks.access(ref.buffer, cells * item // m.races.granule, max(per, 1), threads, True, op, atomic=True)
    return before.reshape(m.nb, m.nt, count)


@rule("llvm.atomicrmw")
def _rmw(tr: Translator, op):
    pointer, value = (tr.reg(v) for v in op.operands)
    out, t = tr.reg(op.results[0]), op.results[0].type
    dtype, shape = dtype_of(t), vector_shape(t)
    count = int(np.prod(shape))
    name = _NAMES[ir.IntegerAttr(op.attributes["bin_op"]).value]
    if name not in _OPERATIONS:
        raise MlircError(f"host device: {tr.where}: llvm.atomicrmw {name} at {op.location} is not supported")
    combine = _OPERATIONS[name]
    tr.accesses.append(dtype.itemsize)

    def step(s: State) -> None:
        m = s.m
        rows = np.broadcast_to(s.r[value], (m.nb, m.nt, *shape)).reshape(m.nb * m.nt, count)

        def change(memory: np.ndarray, cell: int, thread: int) -> None:
            words = memory[cell : cell + count]
            words[...] = np.asarray(combine(words.view(dtype), rows[thread])).astype(dtype).view(words.dtype)

        before = atomically(s, s.r[pointer], dtype.itemsize, count, change, op).view(dtype)
        s.r[out] = before if shape else before[:, :, 0]

    return step


@rule("llvm.cmpxchg")
def _cmpxchg(tr: Translator, op):
    pointer, expected, fresh = (tr.reg(v) for v in op.operands)
    out, dtype = tr.reg(op.results[0]), dtype_of(op.operands[1].type)
    tr.accesses.append(dtype.itemsize)

    def step(s: State) -> None:
        m = s.m
        want, new = (np.ascontiguousarray(np.broadcast_to(s.r[x], (m.nb, m.nt))).ravel().view(f"u{dtype.itemsize}")
                     for x in (expected, fresh))  # fmt: skip
        done = np.zeros(m.nb * m.nt, bool)

        def change(memory: np.ndarray, cell: int, thread: int) -> None:
            if memory[cell] == want[thread]:
                memory[cell], done[thread] = new[thread], True

        before = atomically(s, s.r[pointer], dtype.itemsize, 1, change, op).view(dtype)[:, :, 0]
        s.r[out] = (before, done.reshape(m.nb, m.nt))

    return step
