"""Accesses with a memory order, and atomic ones: one thread after the other, in the order of their numbers, or as the
seed has it. What they order is the business of order/global_order.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlirc.device.arguments import check_given
from mlirc.device.attributes import number
from mlirc.device.declare import waiting
from mlirc.device.events import Wait
from mlirc.device.machine import State
from mlirc.device.memory import MemRef
from mlirc.device.order.launch_order import BLOCK, CLUSTER, DEVICE
from mlirc.device.spins import Watch
from mlirc.device.translate import Translator
from mlirc.mlir import ir

SCOPES = {"block": BLOCK, "cta": BLOCK, "cluster": CLUSTER, "device": DEVICE, "gpu": DEVICE, "sys": DEVICE, "": DEVICE}
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
    if scope not in SCOPES:
        raise tr.refused(op, f"syncscope {scope!r} is not supported")
    found = Strength(order in _ACQUIRES, order in _RELEASES, SCOPES[scope])
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


def find_place(s: State, ref: MemRef, indices: list, count: int, op) -> Place:
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
    threads = m.lanes(True if mask is None else mask)  # in the order of their numbers, or as the seed has it
    if m.draw is not None:
        threads = m.draw.permutation(threads)
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
    place = find_place(s, ref, indices, count, op)
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


def ordered_load(s: State, ref: MemRef, indices: list, count: int, strength: Strength, op) -> np.ndarray:
    """Reads `count` elements per thread with a memory order: unsigned words, as `Machine.load`."""
    words = s.m.load(ref, indices, count, ref.item * count, s.mask, op, log=False)
    place = find_place(s, ref, indices, count, op)
    _note(s, place, False, strength, op)
    if s.watch is not None:
        s.watch.append(Watch(place, place.words(), op))
    for i in range(len(place.cells)):
        _order(s, place, i, strength, True, False)
    return words


def ordered_store(s: State, ref: MemRef, indices: list, value: np.ndarray, strength: Strength, op) -> None:
    """Writes elements [blocks or 1, threads or 1, count] with a memory order."""
    place = find_place(s, ref, indices, value.shape[-1], op)
    s.m.store(ref, indices, value, ref.item * value.shape[-1], s.mask, op, log=False)
    _note(s, place, True, strength, op)
    for i in range(len(place.cells)):
        _order(s, place, i, strength, False, True)


def between(tr: Translator, op, step: Callable) -> Callable:
    """The step, in front of which other threads may run where some wait for others."""
    if not tr.spins:
        return step

    def run(s: State):
        yield Wait(lambda: True, "", s.m.everyone(s.mask), op, free=True)
        step(s)

    return waiting(run)
