"""Instructions that whole warps or warpgroups execute: who takes part, and their registers by warp."""

from __future__ import annotations

import numpy as np

from mlirc.device.machine import WARP, Machine, State
from mlirc.errors import MlircError

WARPGROUP = 128


def whole_warps(s: State, op) -> np.ndarray | None:
    """Reports a warp-wide instruction that only part of a warp executes. Returns the numbers of the warps of the batch
    that execute it, None for all. Raises MlircError if the last warp of a block is a part of one."""
    m = s.m
    if m.nt > WARP and m.nt % WARP:
        raise MlircError(f"it is executed by whole warps, and a block has {m.nt} threads: take a multiple of 32")
    if s.mask is None:
        return None
    warps = m.full(s.mask).reshape(-1, min(WARP, m.nt))
    here = np.logical_or.reduce(warps, axis=1)
    missing = here[:, None] & ~warps
    if missing.any():
        m.complain("divergent warp", missing.reshape(m.nb, m.nt), f"does not take part in {op.name} of its warp", op)
    return None if here.all() else np.flatnonzero(here)


def of_warps(m: Machine, value: np.ndarray, warps: np.ndarray | None) -> np.ndarray:
    """The registers of some warps, [warps, lanes, ...]."""
    full = m.full(value)
    rows = full.reshape(-1, WARP, *value.shape[2:])
    return rows if warps is None else rows[warps]


def to_threads(m: Machine, rows: np.ndarray, warps: np.ndarray | None) -> np.ndarray:
    """Registers of some warps [warps, lanes, ...] as those of all threads; the other warps have zeros."""
    if warps is not None:
        full = np.zeros((m.nb * m.nt // WARP, *rows.shape[1:]), rows.dtype)
        full[warps] = rows
        rows = full
    return rows.reshape(m.nb, m.nt, *rows.shape[2:])


def warpgroups(s: State, op):
    """Yields (block, first thread) of every warpgroup that is active; complains about one that is so in part."""
    m = s.m
    active = np.zeros((m.nb, -(-m.nt // WARPGROUP) * WARPGROUP), bool)  # the last one may have less than four warps
    active[:, : m.nt] = True if s.mask is None else s.mask
    groups = active.reshape(m.nb, -1, WARPGROUP)
    missing = groups.any(axis=2, keepdims=True) & ~groups
    if missing.any():
        there = missing.reshape(m.nb, -1)[:, : m.nt]
        bad = there if there.any() else active[:, : m.nt]
        m.complain("divergent warp", bad, f"does not take part in {op.name}, which is of whole warpgroups", op)
    for b, g in np.argwhere(groups.all(axis=2) if m.nt % WARPGROUP else groups.any(axis=2)):
        yield int(b), int(g) * WARPGROUP
