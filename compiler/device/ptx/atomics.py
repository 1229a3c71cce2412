"""Atomics of the PTX interpreter (PTX ISA, "Parallel Synchronization and Communication Instructions": atom, red). Those
of one instruction take turns in the order of their threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlirc.device.ptx.machine import Machine
from mlirc.device.ptx.operations import ALIKE, DTYPES
from mlirc.device.ptx.parse import Instruction
from mlirc.device.ptx.step import ORDERS, SCOPES, SPACES, Active, all_of, unknown

_CHANGES: dict[str, Callable[..., Any]] = {
    **{name: ALIKE[name] for name in ("add", "and", "or", "xor", "min", "max")},
    "exch": lambda old, new: new,
    "cas": lambda old, wanted, new: np.where(old == wanted, new, old),
    "inc": lambda old, top: np.where(old >= top, 0, old + 1).astype(old.dtype),
    "dec": lambda old, top: np.where((old == 0) | (old > top), top, old - 1).astype(old.dtype),
}


def atomic(m: Machine, at: Instruction, active: Active) -> None:
    """atom and red. The operands are [result,] place, one or two numbers."""
    parts = [x for x in at.op[1:] if x not in (*ORDERS, *SCOPES, "noftz")]
    if len(parts) != 3 or parts[0] not in SPACES or parts[1] not in _CHANGES or parts[2].endswith("x2"):
        raise unknown(at)
    space, how, kind = parts
    out, (place, *operands) = (at.operands[0].name, at.operands[1:]) if at.op[0] == "atom" else ("_", at.operands)
    dtype, chosen = np.dtype(DTYPES[kind]), all_of(m, active)
    places = m.places(place, SPACES[space], dtype.itemsize, chosen, at)
    given = [m.read(x, kind)[chosen] for x in operands]
    before = np.zeros(m.count, dtype)
    found = np.zeros(len(places), dtype)
    for turn in turns(places):
        found[turn] = m.load(SPACES[space], places[turn], dtype.itemsize).view(dtype)[:, 0]
        new = _CHANGES[how](found[turn], *(x[turn] for x in given))
        m.store(SPACES[space], places[turn], np.ascontiguousarray(new.astype(dtype))[:, None].view(np.uint8))
    before[chosen] = found
    if out != "_":
        m.write(out, before, chosen)


def turns(places: np.ndarray) -> list[np.ndarray]:
    """Indices of places, so that each list has every place at most once; in the order that they have."""
    order = np.argsort(places, kind="stable")
    same = places[order]
    fresh = np.concatenate([[True], same[1:] != same[:-1]])
    begins = np.maximum.accumulate(np.where(fresh, np.arange(len(same)), 0))
    turn = np.empty(len(places), np.int64)
    turn[order] = np.arange(len(same)) - begins
    return [np.flatnonzero(turn == k) for k in range(int(turn.max(initial=-1)) + 1)]
