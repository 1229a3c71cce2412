"""The half of a benchmark that needs a GPU and no MLIR: checks a compiled case and times it against PyTorch."""

from __future__ import annotations

import contextlib
import gc
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlirc.bench import reference, timing
from mlirc.bench.artifacts import MINILM, Compiled, read_compiled
from mlirc.bench.bound import bound_us, limited_by
from mlirc.bench.build import Built, build_real, make_inputs, set_buffers
from mlirc.bench.cases import Case, input_bytes
from mlirc.bench.generation.cases import BUILDER as GENERATION
from mlirc.bench.kernels import time_kernels
from mlirc.check.gates import gate_name, relative_error
from mlirc.errors import MlircError
from mlirc.precision import DEFAULT_FP32
from mlirc.runtime import load_text
from mlirc.runtime.model import CompiledModel

_CODES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


class Runner:
    """Runs cases in one process; keeps the last torch module, since cases of one group follow each other.

    `settings`: `check` and `time` (what to do), `warm` (run the compiling peers once, so that their caches are filled),
    `peers` (of eager, compile, max-autotune), `samples`, `kernels` (time each kernel alone).
    """

    def __init__(self, folder: Path, settings: dict[str, Any], device: str = "cuda") -> None:
        self.folder, self.settings, self.device = folder, settings, device
        self._group = ""
        self._built: Built | None = None
        self._wide: Built | None = None

    def run(self, case: Case, info: dict[str, Any]) -> dict[str, Any]:
        """Checks, then times; the result is JSON data. Raises what goes wrong."""
        if case.builder == GENERATION:
            from mlirc.bench.generation.running import run_generating

            return run_generating(case, info, self.folder, self.settings, self.device)
        with reference.exact_math(info.get("fp32", DEFAULT_FP32)):
            return self._run(case, info)

    def _run(self, case: Case, info: dict[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        compiled = read_compiled(self.folder, case)
        if case.builder == "mlir" and not case.options["source"]:
            raise MlircError(f"PyTorch has no form of {case.options['untranslatable']}: nothing to compare with")
        built = self._module(case, compiled)
        weights = {**built.module.state_dict(), **{k: v.to(self.device) for k, v in compiled.constants.items()}}
        loading = time.perf_counter()
        # Operators are captured many times over in torch's own graph; models run as users run them.
        model = load_text(compiled.ptx, weights, graph=not case.rotated, frozen=True)
        result: dict[str, Any] = {"load_s": round(time.perf_counter() - loading, 3)}
        try:
            if self.settings["check"]:
                self._wide = self._wide or reference.widen(built)
                result["check"] = check(case, model, built, self._wide, self.device, info.get("fp32", DEFAULT_FP32))
                result["check_s"] = round(time.perf_counter() - start, 3)
            if self.settings["warm"]:
                self._warm(case, built)
            if self.settings["time"]:
                result |= self._time(case, info, model, built)
        finally:
            model.close()
            gc.collect()
            torch.cuda.empty_cache()
        result["total_s" if self.settings["time"] else "check_total_s"] = round(time.perf_counter() - start, 3)
        return result

    def _warm(self, case: Case, built: Built) -> None:
        for peer in self.settings["peers"]:
            if peer != "eager":
                with contextlib.suppress(Exception):  # timing it will say what is wrong
                    _compiled_peer(peer, built)(make_inputs(case, self.device))

    def _module(self, case: Case, compiled: Compiled) -> Built:
        if self._built is None or case.group != self._group:
            self._built = self._wide = None
            gc.collect()
            torch.cuda.empty_cache()
            self._built = build_real(case, self.device, self.folder / MINILM)
            set_buffers(self._built.module, compiled.constants)
            self._group = case.group
        return self._built

    def _time(self, case: Case, info: dict[str, Any], model: CompiledModel, built: Built) -> dict[str, Any]:
        work = info["work"]
        inputs = make_inputs(case, self.device)
        flush = timing.Flusher()
        outcome: dict[str, Any] = {"bound_us": bound_us(work), "limited_by": limited_by(work), "peer_errors": {}}
        if case.rotated:
            run_us = timing.quick_us(lambda: built(inputs))
            sets, runs = timing.copies_for(input_bytes(case.inputs) + work["written"], min(run_us, 4 * bound_us(work)))
            many = [inputs, *(make_inputs(case, self.device, i) for i in range(1, sets))]
            arms = [timing.capture("mlirc", lambda x: model(*x.values()), many, runs)]
        else:
            sets, runs, many = 1, 1, [inputs]
            model.bind(**inputs)
            arms = [timing.Arm("mlirc", lambda: model.launch(torch.cuda.current_stream()), 1)]
        outcome |= {"input_sets": sets, "runs_per_graph": runs}
        for peer in self.settings["peers"]:
            try:
                arms.append(_peer(peer, built, many, runs))
            except Exception as e:  # a peer that cannot do it is a result, too
                outcome["peer_errors"][peer] = f"{type(e).__name__}: {' '.join(str(e).split())}"[:500]
        outcome["times"] = {n: t.to_json() for n, t in timing.interleave(arms, self.settings["samples"], flush).items()}
        del arms
        if self.settings["kernels"]:
            model.bind(*inputs.values())
            model.launch()
            outcome["kernels"] = time_kernels(model, info["kernels"], flush)
        return outcome


def _peer(name: str, built: Built, sets: list[dict[str, Tensor]], runs: int) -> timing.Arm:
    return timing.capture(name, built if name == "eager" else _compiled_peer(name, built), sets, runs)


def _compiled_peer(name: str, built: Built) -> Built:
    torch._dynamo.reset()
    mode = None if name == "compile" else "max-autotune-no-cudagraphs"
    return Built(torch.compile(built.module, dynamic=False, mode=mode), built.arguments)  # type: ignore[arg-type]


def check(
    case: Case, model: CompiledModel, built: Built, wide: Built, device: str = "cuda", fp32: str = DEFAULT_FP32
) -> dict[str, Any]:
    """Compares one run with FP64 and with eager's own error; outputs are poisoned before, inputs and weights must stay
    as they were, and a second run must give the same bits."""
    inputs = make_inputs(case, device)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    weights = reference.fingerprint(built.module)
    model.bind(*inputs.values()) if case.rotated else model.bind(**inputs)
    first = _poisoned_run(model)
    second = _poisoned_run(model)
    names = [spec.name for spec in model.plan.outputs]
    eager = reference.pick_outputs(built(inputs), names)
    exact = reference.pick_outputs(reference.run_wide(wide, inputs), names)
    rows = []
    if not len(first) == len(eager) == len(exact):
        raise MlircError(f"{len(first)} outputs, but PyTorch gives {len(eager)}")
    for name, out, theirs, ref in zip(names, first, eager, exact, strict=True):
        dtype = _CODES.get(out.dtype, str(out.dtype))
        ours, own = relative_error(out, ref), relative_error(theirs, ref)
        verdict = reference.judge(ours, own, gate_name(dtype, fp32))
        rows.append({"output": name, "dtype": dtype, "error": ours, "eager_error": own, "verdict": verdict})
    changed = [n for n in inputs if not torch.equal(inputs[n], before[n])]
    if weights != reference.fingerprint(built.module):
        changed.append("weights")
    same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True))
    verdicts = [str(r["verdict"]) for r in rows]
    verdict = "FAIL" if "FAIL" in verdicts or changed else max(verdicts, key=len)
    return {"outputs": rows, "changed": changed, "repeats": same, "verdict": verdict}


def _poisoned_run(model: CompiledModel) -> list[Tensor]:
    """Runs the bound model with NaN (or the largest integer) in its outputs first; returns copies of them."""
    outputs = [torch.from_dlpack(o) for o in model.outputs]
    for out in outputs:
        out.fill_(float("nan") if out.is_floating_point() else True if out.dtype == torch.bool else 77)
    if outputs and outputs[0].is_cuda:
        torch.cuda.synchronize()
    model.launch()
    model.synchronize()
    return [out.clone() for out in outputs]
