"""A whole launch plan executed on the CPU as the runtime does it: its steps in order, the file's own PTX, one arena."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mlirc.backend.kernel import Launch
from mlirc.device.ptx.machine import Memory
from mlirc.device.ptx.parse import module_memory, parse
from mlirc.device.ptx.run import run_launch
from mlirc.runtime.arrays import NUMPY_DTYPES
from mlirc.runtime.plan import WRITTEN, CopyStep, Plan, Ref

_LEFT_OVER = 0xFF  # what the arena and the outputs hold before: NaN, as floats


def run_plan(text: str, plan: Plan, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Runs all steps of a plan by the PTX file's `text`; `given`: inputs and weights by name, which stay as they are.
    Returns the plan's results: the outputs, and behind them the new values of what it writes. Raises MlircError as
    `run_kernel` does, `Unknown` (an MlircError) for instructions that are not executed here."""
    entries = parse(text, f"PTX of {plan.model}")
    spaces = {"input": plan.inputs, "weight": plan.weights, "output": plan.outputs}
    tensors = [(space, i, spec) for space, specs in spaces.items() for i, spec in enumerate(specs)]
    memory = Memory([*(spec.nbytes for _, _, spec in tensors), plan.arena_size], module_memory(entries))
    number = {(space, i): n for n, (space, i, _) in enumerate(tensors)} | {("arena", 0): len(tensors)}
    for n, (space, _, spec) in enumerate(tensors):
        start = memory.starts[n]
        if space == "output":
            memory.data[start : start + spec.nbytes] = _LEFT_OVER
        else:
            memory.data[start : start + spec.nbytes] = np.frombuffer(given[spec.name].tobytes(), np.uint8)
    start = memory.starts[len(tensors)]
    memory.data[start : start + plan.arena_size] = _LEFT_OVER

    def place(ref: Ref) -> int:
        return memory.starts[number[ref.space, ref.index]] + ref.offset

    for step in plan.steps:
        if isinstance(step, CopyStep):
            source, target = place(step.source), place(step.target)
            memory.data[target : target + step.source.size] = memory.data[source : source + step.source.size].copy()
        elif math.prod(step.grid):
            buffers, offsets = [number[r.space, r.index] for r in step.args], [r.offset for r in step.args]
            tables = {n: [(number[r.space, r.index], r.offset) for r in t] for n, t in step.tables.items()}
            extents = {d: replace(e, scalar=number["input", e.scalar]) for d, e in step.extents.items()}
            launch = Launch(step.symbol, step.grid, step.block, step.smem, buffers, offsets, step.cluster, step.maps,
                            step.dependent, step.values, tables, extents, cooperative=step.cooperative)  # fmt: skip
            run_launch(entries, launch, memory)
    order = ("output", "weight", "input")
    results = []
    for (space, i), spec in ((t[:2], t[2]) for name in order for t in tensors if t[0] == name):
        if spec.kind == "output" or spec.kind in WRITTEN:
            start = memory.starts[number[space, i]]
            raw = memory.data[start : start + spec.nbytes]
            results.append(raw.view(NUMPY_DTYPES[spec.dtype]).reshape(spec.shape).copy())
    return results
