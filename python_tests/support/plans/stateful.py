"""A compiled model of one kernel that changes a state and an input: w and x become x + w, and y is twice that."""

from __future__ import annotations

import numpy as np

from mlirc.runtime.plan import CopyStep, KernelLaunch, Plan, TensorSpec
from support.plans.tiny import N, W, ref


def stateful_plan(target: str = "sm_80") -> Plan:
    x, w = TensorSpec("x", "f32", (N,), "inout"), TensorSpec("m.w", "f32", (1, N), "state")
    y = TensorSpec("y", "f32", (N,), "output")
    steps = [
        KernelLaunch("add", (1, 1, 1), (64, 1, 1), 0, (ref("input"), ref("weight"), ref("arena"))),
        KernelLaunch("twice", (1, 1, 1), (64, 1, 1), 64 * 1024, (ref("arena"), ref("output"))),
        CopyStep(ref("arena"), ref("weight")),
        CopyStep(ref("arena"), ref("input")),
    ]
    return Plan("stateful", target, [x], [y], [w], 256, steps)


def sums(x: np.ndarray, calls: int) -> list[np.ndarray]:
    """What w is after each of some calls with the same x."""
    found = [W[0]]
    for _ in range(calls):
        found.append(x + found[-1])
    return found[1:]
