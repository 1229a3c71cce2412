"""gpu on arrays: ids, barriers, shuffles, shared memory."""

from __future__ import annotations

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.device.machine import WARP, State
from mlirc.host.device.memory import MemRef
from mlirc.host.device.sync import block_barrier
from mlirc.host.device.translate import Translator, rule, waiting


def _dimension(op) -> str:
    return str(op.attributes["dimension"]).split()[-1].rstrip(">")[-1]


@rule("gpu.thread_id", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim", "gpu.global_id", "gpu.lane_id")
def _ids(tr: Translator, op):
    out, name = tr.reg(op.results[0]), op.name
    d = _dimension(op) if "dimension" in op.attributes else "x"
    at = "xyz".index(d)

    def step(s: State) -> None:
        m = s.m
        if name == "gpu.thread_id":
            s.r[out] = m.thread_id[d]
        elif name == "gpu.block_id":
            s.r[out] = m.block_id[d]
        elif name == "gpu.lane_id":
            s.r[out] = m.lane
        elif name == "gpu.global_id":
            s.r[out] = m.block_id[d] * m.block[at] + m.thread_id[d]
        else:
            s.r[out] = np.full((1, 1), (m.block if name == "gpu.block_dim" else m.grid)[at], dtype=np.int64)

    return step


@rule("gpu.barrier")
def _barrier(tr: Translator, op):
    return waiting(lambda s: block_barrier(s, op))


@rule("gpu.dynamic_shared_memory")
def _dynamic_shared(tr: Translator, op):
    out = tr.reg(op.results[0])

    def step(s: State) -> None:
        buffer = s.m.dynamic_shared
        assert buffer is not None  # a launch without dynamic shared memory has an empty one
        s.r[out] = MemRef(buffer, 0, (buffer.nbytes,), (1,), 1)

    return step


def shuffled(s: State, value: np.ndarray, source: np.ndarray, op) -> np.ndarray:
    """Each thread's value of another thread of its warp; `source` is that thread's number in the block."""
    m = s.m
    if s.mask is not None:
        full = np.broadcast_to(s.mask, (m.nb, m.nt))
        lead = np.broadcast_to(source, (m.nb, m.nt))
        asleep = m.active(s.mask, ~np.take_along_axis(full, lead, axis=1))
        if asleep is not None:
            m.complain("divergent shuffle", asleep, "reads a register of a thread that is not active", op)
    if value.shape[1] == 1:
        return value
    if source.shape[0] == 1:
        return value.take(np.broadcast_to(source, (1, m.nt))[0], axis=1)
    blocks = np.broadcast_to(value, (m.nb, m.nt))
    return np.take_along_axis(blocks, np.broadcast_to(source, (m.nb, m.nt)), axis=1)


@rule("gpu.shuffle")
def _shuffle(tr: Translator, op):
    value, offset, width = (tr.reg(v) for v in op.operands)
    out, valid = (tr.reg(v) for v in op.results)
    mode = str(op.attributes["mode"]).split()[-1].rstrip(">")
    if mode not in ("xor", "idx", "up", "down"):
        raise MlircError(f"host device: {tr.where}: gpu.shuffle {mode} at {op.location} is not supported")

    def step(s: State) -> None:
        r, m = s.r, s.m
        w = int(r[width].flat[0])
        lane, off = m.lane, r[offset].astype(np.int64)
        first = lane // w * w
        if mode == "xor":
            source = lane ^ off
        elif mode == "idx":
            source = first + off % w
        else:
            source = lane + off if mode == "down" else lane - off
        good = (source >= first) & (source < first + w)
        source = np.where(good, source, lane)
        thread = np.arange(m.nt, dtype=np.int64)[None, :] // WARP * WARP + source
        r[out], r[valid] = shuffled(s, r[value], np.minimum(thread, m.nt - 1), op), good

    return step


@rule("gpu.subgroup_id")
def _warp_id(tr: Translator, op):
    out = tr.reg(op.results[0])

    def step(s: State) -> None:
        s.r[out] = np.arange(s.m.nt, dtype=np.int64)[None, :] // WARP

    return step


@rule("nvvm.vote.sync")
def _vote(tr: Translator, op):
    predicate, out = tr.reg(op.operands[1]), tr.reg(op.results[0])
    kind = str(op.attributes["kind"]).split("<")[-1].rstrip(">").split()[-1]

    def step(s: State) -> None:
        m = s.m
        full = m.everyone(s.mask)
        p = np.broadcast_to(s.r[predicate].astype(bool), (m.nb, m.nt))
        rows = (m.nb, m.nt // WARP, WARP)
        p, full = p.reshape(rows), full.reshape(rows)
        if kind == "all":
            got = (p | ~full).all(axis=2, keepdims=True)
        elif kind == "any":
            got = (p & full).any(axis=2, keepdims=True)
        elif kind == "uni":
            got = (p | ~full).all(axis=2, keepdims=True) | (~p | ~full).all(axis=2, keepdims=True)
        else:
            bits = ((p & full) * (np.uint64(1) << np.arange(WARP, dtype=np.uint64))).sum(axis=2, keepdims=True)
            got = bits.astype(np.uint32).view(np.int32)
        s.r[out] = np.broadcast_to(got, rows).reshape(m.nb, m.nt)

    return step
