"""A compiled model of one kernel that takes a scalar by value and a table of pointers: y = n * a + b + m, in as many
blocks as n decides; and a second one that takes the scalar m by its address."""

from __future__ import annotations

import numpy as np

from mlirc.runtime.plan import Extent, KernelLaunch, Plan, Ref, TensorSpec
from support.devices.fake_gpu import at
from support.plans.tiny import N, ref

PTX = """.version 8.0
.target sm_90a
.address_size 64

.visible .entry pick(.param .u64 .ptr .align 16 out, .param .u32 n, .param .align 8 .b8 table[16])
{
  ret;
}
.visible .entry shift(.param .u64 .ptr .align 16 out, .param .u64 .ptr .align 16 m)
{
  ret;
}
"""
MOST = 9


def _pick(out: int, n: bytes, table: list[int]) -> None:
    a, b = (at(p, N) for p in table)
    at(out, N)[:] = int.from_bytes(n, "little", signed=True) * a + b


def _shift(out: int, m: int) -> None:
    at(out, N)[:] += at(m, 1)[0]


KERNELS = {"pick": _pick, "shift": _shift}


def terms_plan() -> Plan:
    inputs = [TensorSpec("a", "f32", (N,), "input"), TensorSpec("n", "i32", (), "scalar"),
              TensorSpec("m", "f32", (), "scalar"), TensorSpec("b", "f32", (N,), "input")]  # fmt: skip
    b = ref("input", index=3)
    steps = [
        KernelLaunch("pick", (2 * MOST, 1, 1), (64, 1, 1), 0, (ref("output"), Ref("input", 1, 0, 4), ref("input")),
                     values=(1,), tables={2: (b,)}, extents={0: Extent(1, 1, 2)}),
        KernelLaunch("shift", (1, 1, 1), (64, 1, 1), 0, (ref("output"), Ref("input", 2, 0, 4))),
    ]  # fmt: skip
    return Plan("terms", "sm_90a", inputs, [TensorSpec("y", "f32", (N,), "output")], [], 0, steps)


def right(a: np.ndarray, n: int, m: float, b: np.ndarray) -> np.ndarray:
    return n * a + b + np.float32(m)
