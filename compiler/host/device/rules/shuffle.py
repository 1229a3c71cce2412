"""Shuffles and votes: lanes of a warp read each other's registers (PTX ISA, "shfl.sync", "vote.sync")."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.attributes import word
from mlirc.host.device.declare import stateful
from mlirc.host.device.machine import WARP, State
from mlirc.host.device.membermask import FULL, active_lanes, members, rows, threads, whole
from mlirc.host.device.numbers import dtype_of
from mlirc.host.device.translate import Translator

_MODES = {"xor": "bfly", "idx": "idx", "up": "up", "down": "down"}


def _sources(m, kind: str, offset: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lane that each thread reads (its own where that is out of the bounds), and whether it is in them. `bounds`:
    the instruction's c, the clamp in bits 0 to 4, the mask of segments in bits 8 to 12."""
    lane, off = m.lane, offset.astype(np.int64) & 31
    clamp, segment = bounds.astype(np.int64) & 31, bounds.astype(np.int64) >> 8 & 31
    low = lane & segment
    high = low | (clamp & ~segment)
    source = {"idx": low | (off & ~segment), "bfly": lane ^ off, "up": lane - off, "down": lane + off}[kind]
    good = source >= high if kind == "up" else source <= high  # `up` is bounded from below
    return np.where(good, source, lane), good


def shuffle(s: State, kind: str, value: np.ndarray, mask: np.ndarray, offset: np.ndarray, bounds: np.ndarray, op):
    """shfl.sync: each thread's value of another lane, and whether that lane was in bounds."""
    m = s.m
    source, good = _sources(m, kind, offset, bounds)
    first = np.arange(m.nt, dtype=np.int64)[None, :] // WARP * WARP
    thread = first + source
    if m.check and not whole(s, mask):
        group = members(s, mask, op)
        lanes = rows(m, source)[:, :, None]
        taken = np.take_along_axis(np.broadcast_to(group, (len(lanes), WARP, WARP)), lanes, axis=2)[:, :, 0]
        named = np.take_along_axis(group.any(axis=1), lanes[:, :, 0], axis=1)
        bad = active_lanes(s) & ~taken
        if bad.any():
            what = "is in another mask" if (bad & named).any() else "is not active, or not in the mask"
            m.complain("divergent shuffle", threads(m, bad), f"reads a register of a lane that {what}", op)
    thread = np.minimum(thread, m.nt - 1)
    if value.shape[1] == 1:
        return value, good
    if thread.shape[0] == 1:
        return value.take(np.broadcast_to(thread, (1, m.nt))[0], axis=1), good
    return np.take_along_axis(m.full(value), m.full(thread), axis=1), good


@stateful("gpu.shuffle")
def _shuffle(tr: Translator, op):
    """As it is lowered: the mask names the first `width` lanes of the warp, so that no other lane may execute it."""
    mode = word(op, "mode")
    if mode not in _MODES:
        raise tr.refused(op, f"mode {mode} is not supported")

    def read(s: State, value: np.ndarray, offset: np.ndarray, width: np.ndarray):
        w = width.astype(np.int64)
        bad = s.m.active(s.mask, (w < 1) | (w > WARP))
        if bad is not None:
            s.m.complain("divergent shuffle", bad, f"shuffles with a width that is not 1 to {WARP}", op)
            w = np.clip(w, 1, WARP)
        mask, bounds = 0xFFFFFFFF >> (WARP - w), (WARP - w if mode == "up" else w - 1)
        return shuffle(s, _MODES[mode], value, mask, offset, bounds, op)

    return read


@stateful("nvvm.shfl.sync")
def _shfl(tr: Translator, op):
    kind, pair = word(op, "kind"), "struct" in str(op.results[0].type)

    def read(s: State, mask: np.ndarray, value: np.ndarray, offset: np.ndarray, bounds: np.ndarray):
        moved, good = shuffle(s, kind, value, mask, offset, bounds, op)
        return (moved, s.m.full(good)) if pair else moved

    return read


def bits(flags: np.ndarray) -> np.ndarray:
    """Flags [..., 32] as 32-bit masks [...]."""
    return (flags * (np.uint64(1) << np.arange(WARP, dtype=np.uint64))).sum(axis=-1).astype(np.uint32).view(np.int32)


@stateful("nvvm.vote.sync")
def _vote(tr: Translator, op):
    kind = word(op, "kind")
    return lambda s, mask, predicate: vote(s, kind, predicate, mask, op)


def vote(s: State, kind: str, predicate: np.ndarray, mask: np.ndarray, op) -> np.ndarray:
    """vote.sync over the lanes that the mask names: bool, or for `ballot` a mask."""
    group, p = members(s, mask, op), rows(s.m, predicate.astype(bool))[:, None, :]
    every, some = (p | ~group).all(axis=2), (p & group).any(axis=2)
    if kind == "ballot":
        got = bits(p & group)
    else:
        got = {"all": every, "any": some, "uni": every | ~some}[kind]
    return threads(s.m, got)


@stateful("gpu.ballot")
def _ballot(tr: Translator, op):
    """As it is lowered: a vote whose mask names all lanes."""
    dtype = dtype_of(op.results[0].type)

    def ballot(s: State, predicate: np.ndarray) -> np.ndarray:
        got = vote(s, "ballot", predicate, FULL, op)
        return got if dtype.itemsize == 4 else got.view(np.uint32).astype(dtype)

    return ballot
