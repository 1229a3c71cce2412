"""What the lanes of a warp do together, beside shuffles and votes: reductions, matches, elections."""

from __future__ import annotations

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.device.machine import WARP, State
from mlirc.host.device.numbers import dtype_of
from mlirc.host.device.rules.attributes import word
from mlirc.host.device.translate import Translator, rule
from mlirc.mlir import ir


def by_warp(s: State, value: np.ndarray) -> np.ndarray:
    """A value of every thread as [warps of the batch, lanes]."""
    return s.m.by_warp(value)


def active_lanes(s: State) -> np.ndarray:
    """Which lanes are active, [warps of the batch, lanes]."""
    return by_warp(s, np.ones((1, 1), bool) if s.mask is None else s.mask)


def members(s: State, mask: np.ndarray, op) -> np.ndarray:
    """The lanes that an instruction's mask names and that are active; complains about those that are not."""
    m = s.m
    here = active_lanes(s)
    named = (by_warp(s, mask).astype(np.int64) >> np.arange(here.shape[1])) & 1 != 0
    asleep = named & ~here & here.any(axis=1, keepdims=True)
    outside = here & ~named
    if asleep.any():
        m.complain("divergent warp", asleep.reshape(m.nb, m.nt), f"is named by {op.name} and does not take part", op)
    if outside.any():
        m.complain("divergent warp", outside.reshape(m.nb, m.nt), f"executes {op.name} but is not in its mask", op)
    return named & here


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
        raise MlircError(f"host device: {tr.where}: nvvm.redux.sync {kind} at {op.location} is not supported")
    combine, neutral = _REDUCE[kind]
    if spread:
        combine = {"fmin": np.minimum, "fmax": np.maximum}[kind]
    if neutral is None:
        neutral = np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max

    def step(s: State) -> None:
        m, chosen = s.m, members(s, s.r[mask], op)
        x = by_warp(s, np.abs(s.r[value]) if magnitude else s.r[value])
        x = np.where(chosen, x, np.array(neutral, dtype=dtype))
        if kind[0] == "u":
            x = x.view(np.uint32)
        total = combine.reduce(x, axis=1, keepdims=True).astype(x.dtype).view(dtype)
        s.r[out] = np.broadcast_to(total, x.shape).reshape(m.nb, m.nt)

    return step


@rule("nvvm.match.sync")
def _match(tr: Translator, op):
    mask, value = (tr.reg(v) for v in op.operands)
    out, kind = tr.reg(op.results[0]), word(op, "kind")

    def step(s: State) -> None:
        m, chosen = s.m, members(s, s.r[mask], op)
        x = by_warp(s, s.r[value])
        same = (x[:, :, None] == x[:, None, :]) & chosen[:, None, :]
        bits = np.uint64(1) << np.arange(x.shape[1], dtype=np.uint64)
        named = (chosen * bits).sum(axis=1, keepdims=True)
        if kind == "any":
            s.r[out] = _int32((same * bits).sum(axis=2)).reshape(m.nb, m.nt)
            return
        everyone = (same | ~chosen[:, None, :]).all(axis=2)
        found = np.where(everyone, np.broadcast_to(named, x.shape), 0)
        s.r[out] = (_int32(found).reshape(m.nb, m.nt), everyone.reshape(m.nb, m.nt))

    return step


def _int32(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.int32)


@rule("nvvm.elect.sync")
def _elect(tr: Translator, op):
    out = tr.reg(op.results[0])
    mask = tr.reg(op.operands[0]) if len(op.operands) else None

    def step(s: State) -> None:
        m = s.m
        chosen = active_lanes(s) if mask is None else members(s, s.r[mask], op)
        if mask is None and m.check:
            members(s, np.full((1, 1), -1), op)  # without a mask the whole warp is meant
        first = chosen & (chosen.cumsum(axis=1) == 1)
        s.r[out] = first.reshape(m.nb, m.nt)

    return step


@rule("gpu.ballot")
def _ballot(tr: Translator, op):
    predicate, out, dtype = tr.reg(op.operands[0]), tr.reg(op.results[0]), dtype_of(op.results[0].type)

    def step(s: State) -> None:
        p = by_warp(s, s.r[predicate].astype(bool)) & active_lanes(s)
        bits = (p * (np.uint64(1) << np.arange(p.shape[1], dtype=np.uint64))).sum(axis=1, keepdims=True)
        got = _int32(bits) if dtype.itemsize == 4 else bits.astype(dtype)
        s.r[out] = np.broadcast_to(got, p.shape).reshape(s.m.nb, s.m.nt)

    return step


@rule("gpu.subgroup_broadcast")
def _broadcast(tr: Translator, op):
    value, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    lane = tr.reg(op.operands[1]) if len(op.operands) > 1 else None

    def step(s: State) -> None:
        x = by_warp(s, s.r[value])
        if lane is None:
            source = active_lanes(s).argmax(axis=1)[:, None]
        else:
            source = by_warp(s, s.r[lane])[:, :1].astype(np.int64)
        got = np.take_along_axis(x, source, axis=1)
        s.r[out] = np.broadcast_to(got, x.shape).reshape(s.m.nb, s.m.nt)

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
