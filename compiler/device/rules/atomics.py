"""Atomics (PTX ISA, "Parallel Synchronization and Communication Instructions": atom, red)."""

from __future__ import annotations

import math

import numpy as np

from mlirc.device.addresses import address_of, element_of, fetch, indices_of
from mlirc.device.atomic_access import RELAXED, atomically, between, find_place, strength_of
from mlirc.device.attributes import number
from mlirc.device.declare import rule
from mlirc.device.machine import State
from mlirc.device.numbers import dtype_of, vector_shape
from mlirc.device.translate import Translator


def _unsigned(f):
    return lambda a, b: f(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")).view(a.dtype)


# In the order of LLVM's AtomicBinOp, and of MLIR's AtomicRMWKind.
_NAMES = ("xchg", "add", "sub", "and", "nand", "or", "xor", "max", "min", "umax", "umin", "fadd", "fsub", "fmax",
          "fmin", "uinc_wrap", "udec_wrap", "usub_cond", "usub_sat", "fmaximum", "fminimum")  # fmt: skip
_KINDS = ("fadd", "add", "and", "xchg", "fmaximum", "fmax", "max", "umax", "fminimum", "fmin", "min", "umin", "mul",
          "mul", "or", "xor")  # fmt: skip
_OPERATIONS = {
    "xchg": lambda a, b: b, "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "nand": lambda a, b: ~(a & b), "max": np.maximum, "min": np.minimum, "mul": np.multiply,
    "umax": _unsigned(np.maximum), "umin": _unsigned(np.minimum), "fadd": np.add, "fsub": np.subtract,
    "fmax": np.fmax, "fmin": np.fmin, "fmaximum": np.maximum, "fminimum": np.minimum,
    "uinc_wrap": _unsigned(lambda a, b: np.where(a >= b, 0, a + 1).astype(a.dtype)),
    "udec_wrap": _unsigned(lambda a, b: np.where((a == 0) | (a > b), b, a - 1).astype(a.dtype)),
}  # fmt: skip


def _combine(combine, rows: np.ndarray, dtype):
    """A change of words to what `combine` makes of them and each thread's operands [threads, count]."""

    def change(words: np.ndarray, thread: int) -> bool:
        words[...] = np.asarray(combine(words.view(dtype), rows[thread])).astype(dtype).view(words.dtype)
        return True

    return change


@rule("llvm.atomicrmw", "memref.atomic_rmw")
def _rmw(tr: Translator, op):
    """What memref has is relaxed: the dialect promises no order."""
    by_pointer, t, out = op.name == "llvm.atomicrmw", op.results[0].type, tr.reg(op.results[0])
    first, second, *indices = op.operands
    pointer, given = (first, tr.reg(second)) if by_pointer else (second, tr.reg(first))
    dtype, shape = dtype_of(t), vector_shape(t)
    at, count = address_of(tr, op, pointer, indices, dtype.itemsize), math.prod(shape)
    strength = strength_of(tr, op) if by_pointer else RELAXED
    name = _NAMES[number(op, "bin_op")] if by_pointer else _KINDS[number(op, "kind")]
    if name not in _OPERATIONS:
        raise tr.refused(op, f"{name} is not supported")
    tr.accesses.append(dtype.itemsize)
    tr.signals.append(op)

    def step(s: State) -> None:
        rows = s.m.full(s.r[given]).reshape(-1, count)
        change = _combine(_OPERATIONS[name], rows, dtype)
        before = atomically(s, *at(s), count, change, op, strength).view(dtype)
        s.r[out] = before if shape else before[:, :, 0]

    return between(tr, op, step)


@rule("llvm.cmpxchg")
def _cmpxchg(tr: Translator, op):
    pointer, expected, fresh = (tr.reg(v) for v in op.operands)
    out, dtype = tr.reg(op.results[0]), dtype_of(op.operands[1].type)
    strength, failing = strength_of(tr, op, "success_ordering"), strength_of(tr, op, "failure_ordering")
    tr.accesses.append(dtype.itemsize)
    tr.signals.append(op)

    def step(s: State) -> None:
        m = s.m
        want, new = (np.ascontiguousarray(m.full(s.r[x])).ravel().view(f"u{dtype.itemsize}")
                     for x in (expected, fresh))  # fmt: skip
        done = np.zeros(m.nb * m.nt, bool)

        def change(words: np.ndarray, thread: int) -> bool:
            if words[0] != want[thread]:
                return False
            words[0], done[thread] = new[thread], True
            return True

        ref, index = element_of(s, s.r[pointer], dtype.itemsize, op)
        before = atomically(s, ref, index, 1, change, op, strength, failing).view(dtype)[:, :, 0]
        s.r[out] = (before, done.reshape(m.nb, m.nt))

    return between(tr, op, step)


@rule("memref.generic_atomic_rmw")
def _generic_rmw(tr: Translator, op):
    """Its region runs for one thread of each element at a time. Relaxed, as `memref.atomic_rmw`."""
    ref, indices, out = tr.reg(op.operands[0]), indices_of(tr, list(op.operands)[1:]), tr.reg(op.results[0])
    block = op.regions[0].blocks[0]
    old, (body, (result,)), dtype = tr.reg(block.arguments[0]), tr.block(block), dtype_of(op.results[0].type)
    tr.accesses.append(dtype.itemsize)
    tr.signals.append(op)
    if body.waits:
        raise tr.refused(op, "waits for other threads inside")

    def step(s: State) -> None:
        m, outer, where = s.m, s.mask, fetch(s.r, indices)
        place = find_place(s, s.r[ref], where, 1, op)
        _, first = np.unique(place.cells, return_inverse=True)
        turn = np.zeros(len(first), np.int64)
        for cell in range(first.max() + 1 if len(first) else 0):
            turn[first == cell] = np.arange((first == cell).sum())
        before = np.zeros((m.nb, m.nt), dtype)
        for k in range(turn.max() + 1 if len(turn) else 0):
            mask = np.zeros(m.nb * m.nt, bool)
            mask[place.threads[turn == k]] = True
            s.mask = mask.reshape(m.nb, m.nt)
            s.r[old] = m.load(s.r[ref], where, 1, dtype.itemsize, s.mask, op, log=False).view(dtype)[:, :, 0]
            before = np.where(s.mask, s.r[old], before)
            body.run(s)
            rows = m.full(s.r[result]).reshape(-1, 1)
            atomically(s, s.r[ref], where, 1, _combine(_OPERATIONS["xchg"], rows, dtype), op)
        s.mask = outer
        s.r[out] = before

    return between(tr, op, step)
