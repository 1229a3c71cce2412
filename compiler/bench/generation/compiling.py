"""The half of measuring a model that generates that needs MLIR and no GPU: its plans, their counted work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlirc.bench.artifacts import Compiled, write_compiled
from mlirc.bench.cases import Case
from mlirc.bench.generation.cases import DECODE, capacity, chunks
from mlirc.driver.start import spawn_ahead
from mlirc.generate.opening import MANY_LAYERS
from mlirc.precision import DEFAULT_FP32
from mlirc.runtime.plan import Plan


def compile_generating(
    case: Case,
    folder: Path,
    target: str,
    schedule: Sequence[str] = (),
    ptxas: bool = False,
    fp32: str = DEFAULT_FP32,
) -> dict[str, Any]:
    """As `mlirc.bench.compiling.compile_case`: writes the plans and constants of a model that generates into `folder`,
    and says what the manifest has to know. Raises MlircError."""
    if case.options.get("config", {}).get("num_hidden_layers", 0) >= MANY_LAYERS:
        spawn_ahead()
    from mlirc.backend.ptx import check_ptxas
    from mlirc.bench.generation.build import open_generating
    from mlirc.bench.peak import forget_peak, peak_memory
    from mlirc.bench.ptxas import summarize
    from mlirc.generate.compilation import compile_generation

    forget_peak()
    start, cpu = time.perf_counter(), time.process_time()
    made = compile_generation(
        open_generating(case), slots=case.options["slots"], context=capacity(case), chunks=chunks(case),
        quantize=case.options["quantize"], target=target, schedule=schedule, fp32=fp32, **case.options.get("open", {}),
    )  # fmt: skip
    found: dict[str, Any] = {}
    if ptxas:
        found["ptxas"] = summarize("\n".join(check_ptxas(job.ptx, job.target) for job in made.jobs.values()))
    constants = {name: tensor for job in made.jobs.values() for name, tensor in job.imported.constants.items()}
    texts = {name: job.ptx for name, job in made.jobs.items()}
    size = write_compiled(folder, case, Compiled(texts.pop(DECODE), constants, texts))
    plans = {name: job.plan for name, job in made.jobs.items()}
    return {
        **found,
        "fp32": fp32,
        "dtype": made.about().dtype,
        "sizes": asdict(made.generator.sizes),
        "notes": made.notes,
        "seconds": round(time.perf_counter() - start, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "peak_bytes": peak_memory(),
        "archive_bytes": size,
        "launches": len(plans[DECODE].launches),
        "arena_bytes": sum(plan.arena_size for plan in plans.values()),
        "weight_bytes": sum(w.nbytes for w in _weights(plans).values()),
        "plans": {name: _about(job) for name, job in made.jobs.items()},
    }


def _weights(plans: dict[str, Plan]) -> dict[str, Any]:
    return {w.name: w for plan in plans.values() for w in plan.weights}


def _about(job: Any) -> dict[str, Any]:
    """What is counted of one plan: the operations of the whole (without those of attention over a cache, whose number
    depends on its lengths), and the work of each kernel."""
    from mlirc.bench.count import count_program, kernels_of

    work = count_program(job.modules["kernels"], cached=False)
    return {
        "launches": len(job.plan.launches),
        "arena_bytes": job.plan.arena_size,
        "work": work.to_json(),
        "kernels": kernels_of(job),
        "steps": {k: round(v, 3) for k, v in job.timer.seconds.items()},
    }
