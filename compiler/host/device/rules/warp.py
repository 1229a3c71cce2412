"""What the lanes of a warp do together, beside shuffles and votes: reductions, matches, elections."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.attributes import word
from mlirc.host.device.declare import rule
from mlirc.host.device.machine import WARP, State
from mlirc.host.device.membermask import FULL, active_lanes, members, rows, threads
from mlirc.host.device.numbers import dtype_of
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir

_REDUCE = {
    "add": (np.add, 0), "umax": (np.maximum, 0), "umin": (np.minimum, -1), "max": (np.maximum, None),
    "min": (np.minimum, None), "and": (np.bitwise_and, -1), "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0),
    "fmin": (np.fmin, np.inf), "fmax": (np.fmax, -np.inf),
}  # fmt: skip


@rule("nvvm.redux.sync")
def _redux(tr: Translator, op):
    value, mask = (tr.reg(v) for v in op.operands)
    out, kind, dtype = tr.reg(op.results[0]), word(op, "kind"), dtype_of(op.results[0].type)
    magnitude, spread = (ir.BoolAttr(op.attributes[n]).value for n in ("abs", "nan"))
    if kind not in _REDUCE:
        raise tr.refused(op, f"{kind} is not supported")
    combine, neutral = _REDUCE[kind]
    if spread:
        combine = {"fmin": np.minimum, "fmax": np.maximum}[kind]
    if neutral is None:
        neutral = np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max

    def step(s: State) -> None:
        group = members(s, s.r[mask], op)
        x = rows(s.m, np.abs(s.r[value]) if magnitude else s.r[value])[:, None, :]
        x = np.where(group, x, np.array(neutral, dtype=dtype))
        if kind[0] == "u":
            x = x.view(np.uint32)
        s.r[out] = threads(s.m, combine.reduce(x, axis=2).astype(x.dtype).view(dtype))

    return step


@rule("nvvm.match.sync")
def _match(tr: Translator, op):
    mask, value = (tr.reg(v) for v in op.operands)
    out, kind = tr.reg(op.results[0]), word(op, "kind")

    def step(s: State) -> None:
        m, group = s.m, members(s, s.r[mask], op)
        x = rows(m, s.r[value])
        same = (x[:, :, None] == x[:, None, :]) & group
        bits = np.uint64(1) << np.arange(WARP, dtype=np.uint64)
        if kind == "any":
            s.r[out] = threads(m, _int32((same * bits).sum(axis=2)))
            return
        everyone = (same | ~group).all(axis=2)
        found = np.where(everyone, (group * bits).sum(axis=2), 0)
        s.r[out] = (threads(m, _int32(found)), threads(m, everyone))

    return step


def _int32(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.int32)


@rule("nvvm.elect.sync")
def _elect(tr: Translator, op):
    out = tr.reg(op.results[0])
    mask = tr.reg(op.operands[0]) if len(op.operands) else None

    def step(s: State) -> None:
        group = members(s, FULL if mask is None else s.r[mask], op)  # without a mask the whole warp is meant
        lead = group & (group.cumsum(axis=2) == 1)  # of each lane's group
        s.r[out] = threads(s.m, lead[:, 0] if lead.shape[1] == 1 else lead[:, np.arange(WARP), np.arange(WARP)])

    return step


@rule("gpu.subgroup_broadcast")
def _broadcast(tr: Translator, op):
    value, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    lane = tr.reg(op.operands[1]) if len(op.operands) > 1 else None

    def step(s: State) -> None:
        m, x, here = s.m, rows(s.m, s.r[value]), active_lanes(s)
        if lane is None:
            source = here.argmax(axis=1)[:, None]
        else:
            source = rows(m, s.r[lane]).astype(np.int64)
            bad = here & ~((source >= 0) & (source < WARP) & np.take_along_axis(here, source % WARP, axis=1))
            if m.check and bad.any():
                m.complain("divergent warp", threads(m, bad), "reads a register of a lane that is not active", op)
        s.r[out] = threads(m, np.take_along_axis(x, source % WARP, axis=1))

    return step


@rule("gpu.subgroup_size", "gpu.num_subgroups")
def _sizes(tr: Translator, op):
    out, size = tr.reg(op.results[0]), op.name == "gpu.subgroup_size"

    def step(s: State) -> None:
        s.r[out] = np.full((1, 1), WARP if size else -(-s.m.nt // WARP), dtype=np.int64)

    return step


@rule(*(f"nvvm.read.ptx.sreg.lanemask.{x}" for x in ("lt", "le", "eq", "ge", "gt")))
def _lane_mask(tr: Translator, op):
    out, kind = tr.reg(op.results[0]), op.name[-2:]
    lane, bit = np.arange(WARP)[:, None], np.arange(WARP)[None, :]
    chosen = {"lt": bit < lane, "le": bit <= lane, "eq": bit == lane, "ge": bit >= lane, "gt": bit > lane}[kind]
    table = _int32((chosen * (np.uint64(1) << bit.astype(np.uint64))).sum(axis=1))

    def step(s: State) -> None:
        s.r[out] = table[s.m.lane]

    return step
