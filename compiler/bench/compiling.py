"""The half of a benchmark that needs MLIR and no GPU: a case's PTX, its constants, its counted work."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlirc.bench.artifacts import Compiled, write_compiled
from mlirc.bench.cases import Case
from mlirc.errors import MlircError


def compile_case(case: Case, folder: Path, target: str, schedule: Sequence[str] = ()) -> dict[str, Any]:
    """Compiles one case into `folder` and returns what the manifest says of it: compile times, sizes, counted work.

    Kernels are compiled in this process: cases run side by side, in processes of their own. Raises MlircError.
    """
    from mlirc.bench.build import build_abstract, example_inputs
    from mlirc.bench.count import count_kernels, count_program
    from mlirc.driver import Compilation
    from mlirc.kernel_build import KernelCache, cache_folder
    from mlirc.targets import get_target

    job = Compilation(case.name, get_target(target), tuple(schedule), KernelCache(cache_folder()), helpers=0)
    built = build_abstract(case)
    start = time.perf_counter()
    if case.builder == "network":
        _import_archive(job, case)
    elif case.builder == "operator":
        job.import_module(built.module, tuple(example_inputs(case).values()), {})
    else:
        job.import_module(built.module, (), {**_example(case), **built.call})
    job.lower("kernels")
    work = count_program(job.modules["linalg"])
    kernels = count_kernels(job.modules["kernels"])
    for one, calls in kernels.values():
        work.add(one, calls)
    job.lower("ptx")
    seconds = time.perf_counter() - start
    constants = {**job.imported.constants, **_buffers(built.module)}
    size = write_compiled(folder, case, Compiled(job.ptx, constants))
    return {
        "seconds": round(seconds, 3),
        "steps": {k: round(v, 3) for k, v in job.timer.seconds.items()},
        "archive_bytes": size,
        "ptx_bytes": len(job.ptx),
        "launches": len(job.plan.launches),
        "arena_bytes": job.plan.arena_size,
        "weight_bytes": sum(w.nbytes for w in job.plan.weights),
        "work": work.to_json(),
        "kernels": {name: {**one.to_json(), "calls": n, **_script(job, name)} for name, (one, n) in kernels.items()},
    }


def _example(case: Case) -> dict[str, Any]:
    import torch

    from mlirc.bench.build import example_inputs

    found = example_inputs(case)
    return {k: torch.ones_like(v) if case.inputs[k]["kind"] == "tail_mask" else v for k, v in found.items()}


def _script(job: Any, name: str) -> dict[str, Any]:
    from mlirc import levels

    record = job.records.get(name)
    function = levels.kernels(job.modules["kernels"])[name]
    origin = levels.strings(function, "mlirc.origin")
    return {"script": record.script if record else "given", "origin": origin[:3], "kind": _kind(name)}


def _kind(name: str) -> str:
    return name.rpartition("_")[0]


def _buffers(module: Any) -> dict[str, Any]:
    """The buffers that are in no state dict: their values must be the same on both machines to the last bit."""
    stored = set(module.state_dict())
    return {name: b for name, b in module.named_buffers() if name not in stored}


def _import_archive(job: Any, case: Case) -> None:
    """Takes a small network the way a user's file comes: through a saved `.pt2`."""
    import torch

    from mlirc.bench.build import build_real, example_inputs

    built = build_real(case, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        with torch.no_grad():
            torch.export.save(torch.export.export(built.module, tuple(example_inputs(case).values())), path)
        job.import_model(str(path))


def case_memory(info: dict[str, Any], dtype: str) -> float:
    """GPU memory that checking a case takes, in bytes: the weights as they are and in FP64, activations, a context."""
    width = {"f32": 4, "f64": 8}.get(dtype, 2)
    return 3e9 + info.get("weight_bytes", 0) * (1 + 8 / width) * 1.05 + 4 * info.get("arena_bytes", 0)


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers; raises MlircError for none."""
    if not values:
        raise MlircError("no values to average")
    return math.exp(sum(math.log(v) for v in values) / len(values))
