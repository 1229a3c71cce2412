"""Special registers (PTX ISA, "Special Registers"), which nvvm and gpu have as operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlirc.device.attributes import word
from mlirc.device.declare import stateful
from mlirc.device.machine import WARP, Machine, State
from mlirc.device.numbers import dtype_of
from mlirc.device.translate import Translator

_SREG = "nvvm.read.ptx.sreg."
_AXES: dict[str, Callable[[Machine, str, int], Any]] = {  # along an axis, by its name and its number
    "tid": lambda m, d, i: m.thread_id[d],
    "ntid": lambda m, d, i: m.block[i],
    "ctaid": lambda m, d, i: m.block_id[d],
    "nctaid": lambda m, d, i: m.grid[i],
    "cluster.ctaid": lambda m, d, i: m.block_id[d] % m.cluster[i],
    "cluster.nctaid": lambda m, d, i: m.cluster[i],
    "clusterid": lambda m, d, i: m.block_id[d] // m.cluster[i],
    "nclusterid": lambda m, d, i: m.grid[i] // m.cluster[i],
    "globalid": lambda m, d, i: m.block_id[d] * m.block[i] + m.thread_id[d],  # of gpu alone
}


def _lane_mask(chosen: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Machine], np.ndarray]:
    """For each lane the bits of those chosen by (bit, lane)."""
    bit = np.arange(WARP)
    table = (chosen(bit, bit[:, None]) * (np.uint64(1) << bit.astype(np.uint64))).sum(axis=1).astype(np.uint32)
    return lambda m: table.view(np.int32)[m.lane]


_ALONE: dict[str, Callable[[Machine], Any]] = {
    "laneid": lambda m: m.lane,
    "warpid": lambda m: np.arange(m.nt)[None, :] // WARP,
    "warpsize": lambda m: WARP,
    "nwarpid": lambda m: 64,  # those that an SM can hold, not those of the block
    "nwarps": lambda m: -(-m.nt // WARP),  # of gpu alone
    "dynamic.smem.size": lambda m: m.dynamic_shared.nbytes if m.dynamic_shared.nbytes > 1 else 0,
    "cluster.ctarank": lambda m: m.rank,
    "cluster.nctarank": lambda m: m.cluster_size,
    "lanemask.lt": _lane_mask(np.less),
    "lanemask.le": _lane_mask(np.less_equal),
    "lanemask.eq": _lane_mask(np.equal),
    "lanemask.ge": _lane_mask(np.greater_equal),
    "lanemask.gt": _lane_mask(np.greater),
}
_GPU = {
    "gpu.thread_id": "tid", "gpu.block_dim": "ntid", "gpu.block_id": "ctaid", "gpu.grid_dim": "nctaid",
    "gpu.cluster_block_id": "cluster.ctaid", "gpu.cluster_dim_blocks": "cluster.nctaid", "gpu.cluster_id": "clusterid",
    "gpu.cluster_dim": "nclusterid", "gpu.lane_id": "laneid", "gpu.subgroup_id": "warpid",
    "gpu.subgroup_size": "warpsize", "gpu.global_id": "globalid", "gpu.num_subgroups": "nwarps",
}  # fmt: skip


@stateful(*_GPU, *(f"{_SREG}{name}.{d}" for name in _AXES if name != "globalid" for d in "xyz"),
          *(f"{_SREG}{name}" for name in _ALONE if name != "nwarps"))  # fmt: skip
def _register(tr: Translator, op):
    name, dtype = _GPU.get(op.name, op.name.removeprefix(_SREG)), dtype_of(op.results[0].type)
    axis = word(op, "dimension") if op.name in _GPU else name[-1]
    name = name if op.name in _GPU or name in _ALONE else name[:-2]

    def read(s: State) -> np.ndarray:
        value = _ALONE[name](s.m) if name in _ALONE else _AXES[name](s.m, axis, "xyz".index(axis))
        return value.astype(dtype, copy=False) if isinstance(value, np.ndarray) else np.full((1, 1), value, dtype)

    return read
