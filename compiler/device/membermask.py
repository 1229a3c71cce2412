"""Which lanes an instruction of a warp is of: those that its mask names (PTX ISA, "shfl.sync", "vote.sync",
"match.sync", "redux.sync", "bar.warp.sync", "elect.sync": `membermask`).

A lane must be in its own mask, and every lane that it names must execute the same instruction with the same mask.
Lanes that a block does not have are as those that have ended: nobody waits for them."""

from __future__ import annotations

import numpy as np

from mlirc.device.machine import WARP, Machine, State

FULL = np.array([[-1]], dtype=np.int64)


def rows(m: Machine, value) -> np.ndarray:
    """A value of every thread as [warps of the batch, 32]; zeros for lanes that a block does not have."""
    full = m.full(value)
    if m.nt % WARP:
        full = np.pad(full, ((0, 0), (0, -m.nt % WARP)))
    return full.reshape(-1, WARP)


def threads(m: Machine, value: np.ndarray) -> np.ndarray:
    """A value of every lane [warps, 32] (or [warps, 1]) as [blocks, threads]."""
    return np.broadcast_to(value, (value.shape[0], WARP)).reshape(m.nb, -1)[:, : m.nt]


def active_lanes(s: State) -> np.ndarray:
    """Which lanes are active, [warps of the batch, 32]."""
    return rows(s.m, True if s.mask is None else s.mask)


def whole(s: State, mask: np.ndarray) -> bool:
    """Whether all threads are active, in whole warps, and name all lanes."""
    return s.mask is None and s.m.nt % WARP == 0 and mask.size == 1 and int(mask.flat[0]) & 0xFFFFFFFF == 0xFFFFFFFF


def members(s: State, mask: np.ndarray, op) -> np.ndarray:
    """For each lane those that it works with: bool [warps, 32, 32], or [warps, 1, 32] where all lanes of a warp name
    the same. Complains about lanes that are missing, that are not in their own mask, and whose masks differ."""
    m = s.m
    here = active_lanes(s)
    if whole(s, mask):
        return here[:, None, :]
    there = rows(m, True)
    words = rows(m, np.asarray(mask).astype(np.int64) & 0xFFFFFFFF)
    lane = np.arange(WARP)
    own = (words >> lane) & 1 != 0
    _complain(s, here & ~own, f"executes {op.name} and is not in its own mask", op)
    lead = words[np.arange(len(words)), here.argmax(axis=1)][:, None]
    if ((words == lead) | ~here).all():
        named = (lead >> lane) & 1 != 0
        asleep = named & there & ~here & here.any(axis=1, keepdims=True)
        _complain(s, asleep, f"is named by the mask of {op.name} and does not take part", op)
        return (named & here)[:, None, :]
    named = ((words[:, :, None] >> lane) & 1 != 0) & here[:, :, None]
    asleep = (named & (there & ~here)[:, None, :]).any(axis=1)
    _complain(s, asleep, f"is named by the mask of {op.name} and does not take part", op)
    met = named & here[:, None, :]
    same = words[:, :, None] == words[:, None, :]
    _complain(s, (met & ~same).any(axis=2), f"names lanes in the mask of {op.name} whose own mask is another", op)
    return met & same


def check_aligned(m: Machine, mine: np.ndarray, op) -> None:
    """Complains about lanes that do not execute a barrier (`.aligned`) which others of their warp do (bool [blocks,
    threads])."""
    if not m.check or mine.all():
        return
    warps = rows(m, mine)
    missing = warps.any(axis=1, keepdims=True) & ~warps & rows(m, True)
    if missing.any():
        m.complain("divergent barrier", threads(m, missing), "does not execute a barrier of its warp's others", op)


_KINDS = {"gpu.shuffle": "divergent shuffle", "nvvm.shfl.sync": "divergent shuffle",
          "nvvm.bar.warp.sync": "divergent barrier"}  # fmt: skip


def _complain(s: State, bad: np.ndarray, message: str, op) -> None:
    if s.m.check and bad.any():
        s.m.complain(_KINDS.get(op.name, "divergent warp"), threads(s.m, bad), message, op)
