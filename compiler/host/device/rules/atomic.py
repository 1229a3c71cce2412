"""Atomics, accesses with a memory order, and fences, of the llvm, memref and nvvm dialects. One thread after the other,
in the order of their numbers, or as the seed has it. What they order is the business of global_order.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlirc.host.device.arguments import check_given
from mlirc.host.device.attributes import number, word
from mlirc.host.device.declare import rule, stateful, waiting
from mlirc.host.device.events import Wait
from mlirc.host.device.machine import State
from mlirc.host.device.memory import MemRef
from mlirc.host.device.numbers import dtype_of, vector_shape
from mlirc.host.device.order.clocks import is_atomic
from mlirc.host.device.order.launch_order import BLOCK, CLUSTER, DEVICE
from mlirc.host.device.rules import pointer as pointers
from mlirc.host.device.rules.memref import fetch, indices_of
from mlirc.host.device.rules.pointer import element_of
from mlirc.host.device.spins import Watch
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir

_SCOPES = {"block": BLOCK, "cta": BLOCK, "cluster": CLUSTER, "device": DEVICE, "gpu": DEVICE, "sys": DEVICE, "": DEVICE}
_ACQUIRES, _RELEASES = (4, 6, 7), (5, 6, 7)  # of LLVM's AtomicOrdering


@dataclass(frozen=True)
class Strength:
    """The memory order of an operation: what it does besides being atomic, and for whom it is."""

    acquire: bool = False
    release: bool = False
    scope: int = DEVICE


RELAXED = Strength()


def strength_of(tr: Translator, op, name: str = "ordering") -> Strength:
    """The order and scope that an llvm operation names."""
    order = number(op, name)
    scope = ir.StringAttr(op.attributes["syncscope"]).value if "syncscope" in op.attributes else ""
    if scope not in _SCOPES:
        raise tr.refused(op, f"syncscope {scope!r} is not supported")
    found = Strength(order in _ACQUIRES, order in _RELEASES, _SCOPES[scope])
    tr.ordered = tr.ordered or found.acquire or found.release
    return found


@dataclass
class Place:
    """Where the active threads of a step access memory: words of `item` bytes of the storage, `count` from each of
    `cells` [n], and the threads [n], counted through the batch."""

    ref: MemRef
    item: int
    count: int
    cells: np.ndarray
    threads: np.ndarray

    def words(self) -> np.ndarray:
        """What is there, as unsigned words [n, count]."""
        return self.ref.buffer.words("data", self.item)[self.cells[:, None] + np.arange(self.count)]


def _place(s: State, ref: MemRef, indices: list, count: int, op) -> Place:
    """Checks bounds; what is out of them is left out."""
    m = s.m
    mask = s.mask
    if m.check:
        indices, mask = m.in_bounds(ref, indices, count, mask, op)
    offset = ref.offset(indices)
    if m.check:
        mask = m.inside(ref, offset, count, mask, op)
    if not isinstance(offset, np.ndarray):
        offset = np.full((1, 1), offset, dtype=np.int64)
    threads = m.in_turn(mask)
    return Place(ref, ref.item, count, m.compress(m.absolute(ref.buffer, offset, ref.item, ref.rank), threads), threads)


def _note(s: State, place: Place, write: bool, strength: Strength, op) -> None:
    """Logs atomic accesses for the race detector, before they order anything: what they order comes after them."""
    m, buffer = s.m, place.ref.buffer
    if m.races is not None and buffer.tracked:
        m.races.note_atomic(
            buffer, place.cells, place.item * place.count, place.item, place.threads, write, strength.scope, op
        )


def _order(s: State, place: Place, i: int, strength: Strength, reads: bool, writes: bool) -> None:
    """What the i-th thread's atomic access orders."""
    if s.m.order is not None:
        cell = int(place.cells[i]) * place.item // s.m.order.order.granule
        s.m.order.atomic(
            place.ref.buffer, cell, int(place.threads[i]), strength.scope,
            reads=reads, writes=writes, acquire=strength.acquire, release=strength.release and writes,
        )  # fmt: skip


def atomically(s: State, ref: MemRef, indices: list, count: int, change: Callable, op, strength: Strength = RELAXED,
               failing: Strength | None = None) -> np.ndarray:  # fmt: skip
    """Runs `change(words, thread)` for every active thread in order, where words are the unsigned words [count] at its
    place, to be changed there; it tells whether it has written. `failing`: the order where it has not. Returns what was
    there before, as words [blocks, threads, count]."""
    m, item = s.m, ref.item
    m.load(ref, indices, count, item * count, s.mask, op, log=False)  # checks initialization, and counts
    place = _place(s, ref, indices, count, op)
    if m.waited is not None:
        m.check_wait(ref.buffer, s.mask, True, op)
    memory = ref.buffer.words("data", item)
    before = np.zeros((m.nb * m.nt, count), memory.dtype)
    seen = np.zeros((len(place.cells), count), memory.dtype)
    _note(s, place, True, strength, op)
    if ref.buffer.given is not None:
        active = np.zeros(m.nb * m.nt, bool)
        active[place.threads] = True
        address = np.zeros(m.nb * m.nt, np.int64)
        address[place.threads] = place.cells
        check_given(m, ref.buffer, address.reshape(m.nb, m.nt), item, active.reshape(m.nb, m.nt), op)
    for i, (cell, thread) in enumerate(zip(place.cells.tolist(), place.threads.tolist(), strict=True)):
        words = memory[cell : cell + count]
        before[thread] = seen[i] = words
        wrote = change(words, thread)
        _order(s, place, i, strength if wrote or failing is None else failing, True, wrote)
    if s.watch is not None:
        s.watch.append(Watch(place, seen, op))
    return before.reshape(m.nb, m.nt, count)


def _between(tr: Translator, op, step: Callable) -> Callable:
    """The step, in front of which other threads may run where some wait for others."""
    if not tr.spins:
        return step

    def run(s: State):
        m = s.m
        everyone = m.everyone(s.mask)
        yield Wait(lambda: True, "", everyone, op, free=True)
        step(s)

    return waiting(run)


# -- loads, stores and fences


@rule("llvm.load")
def _load(tr: Translator, op):
    plain = pointers.load(tr, op)
    if not is_atomic(op):
        return plain
    ref, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    shape, dtype = vector_shape(op.results[0].type), dtype_of(op.results[0].type)
    count, item = int(np.prod(shape)), dtype.itemsize
    strength = strength_of(tr, op)

    def step(s: State) -> None:
        target, index = element_of(s, s.r[ref], item, op)
        words = s.m.load(target, index, count, item * count, s.mask, op, log=False)
        place = _place(s, target, index, count, op)
        _note(s, place, False, strength, op)
        if s.watch is not None:
            s.watch.append(Watch(place, place.words(), op))
        for i in range(len(place.cells)):
            _order(s, place, i, strength, True, False)
        value = words != 0 if dtype == np.bool_ else words.view(dtype)
        s.r[out] = value if shape else value[:, :, 0]

    return _between(tr, op, step)


@rule("llvm.store")
def _store(tr: Translator, op):
    if not is_atomic(op):
        return pointers.store(tr, op)
    value, ref = tr.reg(op.operands[0]), tr.reg(op.operands[1])
    shape, item = vector_shape(op.operands[0].type), dtype_of(op.operands[0].type).itemsize
    count, strength = int(np.prod(shape)), strength_of(tr, op)
    tr.accesses.append(item)
    tr.signals.append(op)

    def step(s: State) -> None:
        target, index = element_of(s, s.r[ref], item, op)
        v = s.r[value]
        place = _place(s, target, index, count, op)
        s.m.store(target, index, v if shape else v[..., None], item * count, s.mask, op, log=False)
        _note(s, place, True, strength, op)
        for i in range(len(place.cells)):
            _order(s, place, i, strength, False, True)

    return _between(tr, op, step)


@stateful("llvm.fence", "nvvm.memory.barrier", "nvvm.fence.sc.cluster")
def _fence(tr: Translator, op):
    if op.name == "llvm.fence":
        strength = strength_of(tr, op)
    else:
        strength = Strength(True, True, _SCOPES[word(op, "scope") or "cluster"])
    tr.ordered = True

    def fence(s: State) -> None:
        m = s.m
        if m.order is not None:
            threads = np.arange(m.nb * m.nt) if s.mask is None else m.lanes(s.mask)
            m.order.fence(threads, strength.scope, strength.release, strength.acquire)

    return fence


# -- read-modify-writes


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


def _combine(m, combine, rows: np.ndarray, dtype):
    """A change of words to what `combine` makes of them and each thread's operands [threads, count]."""

    def change(words: np.ndarray, thread: int) -> bool:
        words[...] = np.asarray(combine(words.view(dtype), rows[thread])).astype(dtype).view(words.dtype)
        return True

    return change


@rule("llvm.atomicrmw")
def _rmw(tr: Translator, op):
    pointer, value = (tr.reg(v) for v in op.operands)
    out, t = tr.reg(op.results[0]), op.results[0].type
    dtype, shape = dtype_of(t), vector_shape(t)
    count, strength = int(np.prod(shape)), strength_of(tr, op)
    name = _NAMES[number(op, "bin_op")]
    if name not in _OPERATIONS:
        raise tr.refused(op, f"{name} is not supported")
    combine = _OPERATIONS[name]
    tr.accesses.append(dtype.itemsize)
    tr.signals.append(op)

    def step(s: State) -> None:
        m = s.m
        rows = m.full(s.r[value]).reshape(m.nb * m.nt, count)
        ref, index = element_of(s, s.r[pointer], dtype.itemsize, op)
        before = atomically(s, ref, index, count, _combine(m, combine, rows, dtype), op, strength).view(dtype)
        s.r[out] = before if shape else before[:, :, 0]

    return _between(tr, op, step)


@rule("memref.atomic_rmw")
def _memref_rmw(tr: Translator, op):
    """Relaxed: the dialect promises no order."""
    value, ref = tr.reg(op.operands[0]), tr.reg(op.operands[1])
    indices, out = indices_of(tr, list(op.operands)[2:]), tr.reg(op.results[0])
    dtype, combine = dtype_of(op.results[0].type), _OPERATIONS[_KINDS[number(op, "kind")]]
    tr.accesses.append(dtype.itemsize)
    tr.signals.append(op)

    def step(s: State) -> None:
        m = s.m
        rows = m.full(s.r[value]).reshape(m.nb * m.nt, 1)
        before = atomically(s, s.r[ref], fetch(s.r, indices), 1, _combine(m, combine, rows, dtype), op)
        s.r[out] = before.view(dtype)[:, :, 0]

    return _between(tr, op, step)


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

    return _between(tr, op, step)


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
        place = _place(s, s.r[ref], where, 1, op)
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
            rows = m.full(s.r[result]).reshape(m.nb * m.nt, 1)
            atomically(s, s.r[ref], where, 1, _combine(m, _OPERATIONS["xchg"], rows, dtype), op)
        s.mask = outer
        s.r[out] = before

    return _between(tr, op, step)
