"""What the lanes of a warp do together (PTX ISA, "Data Movement and Conversion Instructions": shfl.sync; "Parallel
Synchronization and Communication Instructions": vote, match, redux, elect)."""

from __future__ import annotations

import numpy as np

from mlirc.device.attributes import flag, word
from mlirc.device.declare import stateful
from mlirc.device.machine import WARP, State
from mlirc.device.membermask import FULL, active_lanes, members, rows, threads, whole
from mlirc.device.numbers import dtype_of
from mlirc.device.translate import Translator

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


_REDUCE = {
    "add": (np.add, 0), "umax": (np.maximum, 0), "umin": (np.minimum, -1), "max": (np.maximum, None),
    "min": (np.minimum, None), "and": (np.bitwise_and, -1), "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0),
    "fmin": (np.fmin, np.inf), "fmax": (np.fmax, -np.inf),
}  # fmt: skip


@stateful("nvvm.redux.sync")
def _redux(tr: Translator, op):
    kind, dtype = word(op, "kind"), dtype_of(op.results[0].type)
    magnitude, spread = flag(op, "abs"), flag(op, "nan")
    if kind not in _REDUCE:
        raise tr.refused(op, f"{kind} is not supported")
    combine, neutral = _REDUCE[kind]
    if spread:
        combine = {"fmin": np.minimum, "fmax": np.maximum}[kind]
    if neutral is None:
        neutral = np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max

    def reduce(s: State, value: np.ndarray, mask: np.ndarray) -> np.ndarray:
        group = members(s, mask, op)
        x = rows(s.m, np.abs(value) if magnitude else value)[:, None, :]
        x = np.where(group, x, np.array(neutral, dtype=dtype))
        if kind[0] == "u":
            x = x.view(np.uint32)
        return threads(s.m, combine.reduce(x, axis=2).astype(x.dtype).view(dtype))

    return reduce


@stateful("nvvm.match.sync")
def _match(tr: Translator, op):
    kind = word(op, "kind")

    def match(s: State, mask: np.ndarray, value: np.ndarray):
        m, group = s.m, members(s, mask, op)
        x = rows(m, value)
        same = (x[:, :, None] == x[:, None, :]) & group
        if kind == "any":
            return threads(m, bits(same))
        everyone = (same | ~group).all(axis=2)
        return threads(m, np.where(everyone, bits(group), 0)), threads(m, everyone)

    return match


@stateful("nvvm.elect.sync")
def _elect(tr: Translator, op):
    def elect(s: State, mask: np.ndarray = FULL) -> np.ndarray:  # without a mask the whole warp is meant
        group = members(s, mask, op)
        lead = group & (group.cumsum(axis=2) == 1)  # of each lane's group
        return threads(s.m, lead[:, 0] if lead.shape[1] == 1 else lead[:, np.arange(WARP), np.arange(WARP)])

    return elect


@stateful("gpu.subgroup_broadcast")
def _broadcast(tr: Translator, op):
    def broadcast(s: State, value: np.ndarray, lane: np.ndarray | None = None) -> np.ndarray:
        m, x, here = s.m, rows(s.m, value), active_lanes(s)
        if lane is None:
            source = here.argmax(axis=1)[:, None]
        else:
            source = rows(m, lane).astype(np.int64)
            bad = here & ~((source >= 0) & (source < WARP) & np.take_along_axis(here, source % WARP, axis=1))
            if m.check and bad.any():
                m.complain("divergent warp", threads(m, bad), "reads a register of a lane that is not active", op)
        return threads(m, np.take_along_axis(x, source % WARP, axis=1))

    return broadcast
