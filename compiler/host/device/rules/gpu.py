"""gpu on arrays: ids, barriers, shared memory."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.declare import rule, waiting
from mlirc.host.device.machine import WARP, State
from mlirc.host.device.memory import MemRef
from mlirc.host.device.sync import block_barrier
from mlirc.host.device.translate import Translator


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


@rule("gpu.subgroup_id")
def _warp_id(tr: Translator, op):
    out = tr.reg(op.results[0])

    def step(s: State) -> None:
        s.r[out] = np.arange(s.m.nt, dtype=np.int64)[None, :] // WARP

    return step
