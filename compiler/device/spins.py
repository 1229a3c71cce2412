"""Loops that wait for what other threads write: they give way, and go on when a value that they have seen changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirc.device.events import Wait
from mlirc.device.machine import State
from mlirc.device.order.clocks import is_atomic
from mlirc.mlir import ir
from mlirc.timing import counted

_PLACES = 3  # named in a report


@dataclass
class Watch:
    """What an atomic access of some threads saw: words [n, count] at a place (rules.atomic.Place)."""

    place: Any
    seen: np.ndarray
    op: Any

    def among(self, active: np.ndarray) -> np.ndarray:
        """Which of the accesses are by active threads."""
        return active.reshape(-1)[self.place.threads]

    def changed(self, active: np.ndarray) -> bool:
        return bool((self.place.words() != self.seen)[self.among(active)].any())


def has_spins(function) -> bool:
    """Whether a kernel has loops that wait for what other threads write."""
    found = False

    def visit(op) -> ir.WalkResult:
        nonlocal found
        found = found or (op.name == "scf.while" and is_spin(op))
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return found


def is_spin(op) -> bool:
    """Whether a loop's end may depend on memory that others write: there are atomic or volatile accesses in it."""
    found = False

    def visit(inner) -> ir.WalkResult:
        nonlocal found
        found = found or (inner.name != "llvm.store" and is_atomic(inner))
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    return found


def give_way(s: State, outer, still: bool, signals: list, op):
    """After a turn of a waiting loop: others run, until something changes that this turn has seen. `outer`: the threads
    that entered the loop (mask semantics); `still`: whether the turn has left all values as they were, so that the next
    one could only do the same. A generator of events."""
    m, watched = s.m, s.watch or []
    active = m.everyone(s.mask)
    watched = [w for w in watched if w.among(active).any()]
    if not still or not watched:
        yield Wait(lambda: True, "", active, op)
        return

    def what(_block: int) -> str:
        return _describe(s, outer, watched, active, signals, op)

    yield Wait(lambda: any(w.changed(active) for w in watched), what, active, op, spins=True)


def _describe(s: State, outer, watched: list[Watch], active: np.ndarray, signals: list, op) -> str:
    """What a loop waits for: the address, the value seen, and the operations that could change it."""
    m, w = s.m, watched[0]
    i = int(np.argmax(w.among(active)))
    buffer, item = w.place.ref.buffer, w.place.item
    byte = int(w.place.cells[i]) * item
    if buffer.space == "shared":
        byte -= int(w.place.threads[i]) // m.nt * buffer.stride
    value = int(w.seen[i][0].view(f"i{item}"))
    inside: set[int] = set()

    def visit(inner) -> ir.WalkResult:
        inside.add(hash(inner))
        return ir.WalkResult.ADVANCE

    op.walk(visit)
    others = [f"{x.name} at {m.report.place(x)}" for x in signals if hash(x) not in inside]
    writers = ", ".join(others[:_PLACES]) + (f" and {len(others) - _PLACES} more" if len(others) > _PLACES else "")
    text = f"byte {byte} of {buffer.name} to change, where {w.op.name} at {m.report.place(w.op)} sees {value}"
    text += f" (others write atomically: {writers})" if others else " (nothing else writes atomically)"
    entered = m.everyone(outer)
    warps = np.zeros((m.nb, -(-m.nt // 32) * 32), bool)
    warps[:, : m.nt] = active
    mates = np.repeat(warps.reshape(m.nb, -1, 32).any(axis=2), 32, axis=1)[:, : m.nt]
    gone = int((entered & ~active & mates).sum())
    if gone:
        text += f"; {counted(gone, 'lane')} of the same warp left the loop before, and can go on only when all have"
    return text
