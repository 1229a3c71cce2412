"""The half of a benchmark that needs MLIR and no GPU: a case's PTX, its constants, its counted work."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlirc.bench.artifacts import Compiled, write_compiled
from mlirc.bench.cases import Case
from mlirc.bench.generation.cases import BUILDER as GENERATION
from mlirc.bench.peak import forget_peak, peak_memory
from mlirc.bench.ptxas import summarize
from mlirc.errors import MlircError
from mlirc.precision import DEFAULT_FP32


def compile_case(
    case: Case,
    folder: Path,
    target: str,
    schedule: Sequence[str] = (),
    ptxas: bool = False,
    fp32: str = DEFAULT_FP32,
) -> dict[str, Any]:
    """Compiles one case into `folder` and returns what the manifest says of it: compile times, sizes, counted work;
    with `ptxas`, what the assembler says, too.

    Kernels are compiled in this process: cases run side by side, in processes of their own. Raises MlircError.
    """
    if case.builder == GENERATION:
        from mlirc.bench.generation.compiling import compile_generating

        return compile_generating(case, folder, target, schedule, ptxas, fp32)
    from mlirc.backend.ptx import check_ptxas
    from mlirc.bench.count import count_program, kernels_of
    from mlirc.driver.compilation import Compilation
    from mlirc.driver.kernel_cache import KernelCache
    from mlirc.files.kept import cache_folder
    from mlirc.targets import get_target

    forget_peak()
    cache = KernelCache(cache_folder())
    job = Compilation(case.name, get_target(target), tuple(schedule), cache, helpers=0, fp32=fp32)
    start, cpu = time.perf_counter(), time.process_time()
    found, buffers = _IMPORTERS[case.builder](job, case)
    job.lower("kernels")
    if "linalg" not in job.modules:
        found |= _source_of(job.modules["kernels"])
    work = count_program(job.modules.get("linalg", job.modules["kernels"]))
    job.lower("ptx")
    seconds = time.perf_counter() - start
    kernels = kernels_of(job)
    if ptxas:
        found["ptxas"] = summarize(check_ptxas(job.ptx, job.target))
    constants = {**(job.imported.constants if job.imported else {}), **buffers}
    size = write_compiled(folder, case, Compiled(job.ptx, constants))
    return {
        **found,
        "fp32": fp32,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "peak_bytes": peak_memory(),
        "steps": {k: round(v, 3) for k, v in job.timer.seconds.items()},
        "archive_bytes": size,
        "ptx_bytes": len(job.ptx),
        "launches": len(job.plan.launches),
        "arena_bytes": job.plan.arena_size,
        "weight_bytes": sum(w.nbytes for w in job.plan.weights),
        "work": work.to_json(),
        "kernels": kernels,
    }


def _buffers(module: Any) -> dict[str, Any]:
    """The buffers that are in no state dict: their values must be the same on both machines to the last bit."""
    stored = set(module.state_dict())
    return {name: b.detach().cpu() for name, b in module.named_buffers() if name not in stored}


# How each builder's cases get into the compiler: what the manifest has to know besides, and the module's buffers.
_Imported = tuple[dict[str, Any], dict[str, Any]]


def _import_module(job: Any, case: Case) -> _Imported:
    from mlirc.bench.build import build_abstract, example_inputs

    built = build_abstract(case)
    args, kwargs = built.arguments(example_inputs(case))
    job.import_module(built.module, args, kwargs)
    return {}, _buffers(built.module)


def _import_network(job: Any, case: Case) -> _Imported:
    """Takes a small network the way a user's file comes: through a saved `.pt2`."""
    import torch

    from mlirc.bench.build import build_real, example_inputs

    built = build_real(case, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        with torch.no_grad():
            torch.export.save(torch.export.export(built.module, tuple(example_inputs(case).values())), path)
        job.import_model(str(path))
    return {}, _buffers(built.module)


def _import_file(job: Any, case: Case) -> _Imported:
    """A model that the user named: its inputs are known only now."""
    from mlirc.bench.build import open_source
    from mlirc.bench.cases import tensor
    from mlirc.frontend.inputs import dtype_name

    job.import_source(source := open_source(case))
    inputs = {}
    for spec, example in zip(source.input_specs(), source.example_inputs(), strict=True):
        kind = "ones" if "mask" in spec.name else "normal" if spec.dtype.is_floating_point else "ids"
        upper = int(example.max()) + 1 if kind == "ids" and example.numel() else 2
        inputs[spec.name] = tensor(dtype_name(spec.dtype), *spec.shape, kind=kind, upper=upper)
    return {"inputs": inputs}, {}


def _import_problem(job: Any, case: Case) -> _Imported:
    """A problem file; the tensors that it keeps outside of its state dict travel with the case."""
    from mlirc.frontend.problem import loose_tensors, open_problem

    source = open_problem(case.options["path"], case.options["source"])
    job.import_source(source)
    return {}, loose_tensors(source.module)  # type: ignore[arg-type]


def _import_mlir(job: Any, case: Case) -> _Imported:
    """An .mlir file: PyTorch's side of it is written from its IR."""
    from mlirc.bench.cases import tensor
    from mlirc.ir import levels
    from mlirc.mlir import context, ir

    job.read_levels(Path(case.options["spec"]))
    module = job.modules.get("linalg", job.modules.get("kernels"))
    main = levels.functions(module)["main"]
    names = [f"arg{i}" for i in range(len(main.type.inputs))]
    if "arg_attrs" in main.attributes:
        given = [ir.DictAttr(a) for a in main.attributes["arg_attrs"]]
        pairs = zip(given, names, strict=True)
        names = [ir.StringAttr(a["mlirc.name"]).value if "mlirc.name" in a else n for a, n in pairs]
    with context():  # weights become inputs, too: nobody else has them
        about = [ir.DictAttr.get({"mlirc.name": ir.StringAttr.get(n)}) for n in names]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(about)
    inputs = {}
    for name, type_ in zip(names, main.type.inputs, strict=True):
        element = str(type_.element_type)
        kind = "ids" if element.startswith("i") else "normal"
        inputs[name] = tensor(element, *type_.shape, kind=kind, upper=2)
    found: dict[str, Any] = {"inputs": inputs}
    if "linalg" in job.modules:
        found |= _source_of(module)
    return found, {}


def _source_of(module: Any) -> dict[str, Any]:
    from mlirc.repro.torch_source import Untranslatable, program_source

    try:
        return {"source": program_source(module)}
    except Untranslatable as e:
        return {"source": None, "untranslatable": str(e)}


_IMPORTERS: dict[str, Callable[[Any, Case], _Imported]] = {
    "operator": _import_module,
    "huggingface": _import_module,
    "network": _import_network,
    "file": _import_file,
    "problem": _import_problem,
    "mlir": _import_mlir,
}


def case_memory(info: dict[str, Any], dtype: str) -> float:
    """GPU memory that checking a case takes, in bytes: the weights as they are and in FP64, activations, a context."""
    width = {"f32": 4, "f64": 8}.get(dtype, 2)
    return 3e9 + info.get("weight_bytes", 0) * (1 + 8 / width) * 1.05 + 4 * info.get("arena_bytes", 0)


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers; raises MlircError for none."""
    if not values:
        raise MlircError("no values to average")
    return math.exp(sum(math.log(v) for v in values) / len(values))
