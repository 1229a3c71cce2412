"""The time of each kernel of a compiled model, alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.bench import timing
from mlirc.bench.bound import bound_us
from mlirc.runtime.model import CompiledModel
from mlirc.runtime.plan import KernelLaunch

_SAMPLES = 20


def time_kernels(model: CompiledModel, known: dict[str, Any], flush: Callable[[], None]) -> list[dict[str, Any]]:
    """One row per kernel, the costliest first: microseconds per call and per run of the model, and the bound.

    A kernel's calls are replayed one after the other, each with its own weights and buffers, at least 20 in a graph;
    its data is `hot` where all calls together stay below four times the L2 cache. The model has run at least once.
    """
    calls: dict[str, list[int]] = {}
    for number, step in enumerate(model.steps):
        if isinstance(step, KernelLaunch):
            calls.setdefault(step.kernel, []).append(number)
    rows = []
    for name, numbers in calls.items():
        work = known.get(name)
        count = work["calls"] if work else len(numbers)
        repeats = -(-timing.MIN_COPIES // max(count, 1))
        sampled = _time_steps(model, numbers, repeats, flush)
        per_model = sampled.median / repeats
        bound = bound_us(work) if work else 0.0
        moved = work["read"] + work["written"] if work else 0
        rows.append(
            {
                "kernel": name,
                "calls": count,
                "launches": len(numbers),
                "us_per_call": per_model / max(count, 1),
                "us_per_run": per_model,
                "bound_us_per_call": bound,
                "bytes_per_call": moved,
                "hot": moved * count < timing.COLD_BYTES,
                "script": work["script"] if work else "",
                "origin": work["origin"] if work else [],
            }
        )
    return sorted(rows, key=lambda r: -float(r["us_per_run"]))


def _time_steps(model: CompiledModel, numbers: list[int], repeats: int, flush: Callable[[], None]) -> timing.Sampled:
    def run(_: Any) -> None:
        for number in numbers:
            model.launch_step(number, torch.cuda.current_stream())

    arm = timing.capture("kernel", run, [None], repeats)
    arm.copies = 1
    return timing.interleave([arm], _SAMPLES, flush)["kernel"]
