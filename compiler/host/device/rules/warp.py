"""What the lanes of a warp do together, beside shuffles and votes: reductions, matches, elections."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.attributes import flag, word
from mlirc.host.device.declare import stateful
from mlirc.host.device.machine import WARP, State
from mlirc.host.device.membermask import FULL, active_lanes, members, rows, threads
from mlirc.host.device.numbers import dtype_of
from mlirc.host.device.rules.shuffle import bits
from mlirc.host.device.translate import Translator

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
