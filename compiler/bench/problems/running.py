"""One problem on the GPU: is it right beside PyTorch, and how fast is it. Needs no MLIR.

A problem's inputs can be gigabytes: they are made on the GPU, compared a slice at a time, and PyTorch's FP64 is asked
only where ours and eager disagree, on as much of the batch at once as fits.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mlirc.bench import reference, timing
from mlirc.bench.artifacts import read_compiled
from mlirc.bench.bound import bound_us, limited_by
from mlirc.bench.cases import Case
from mlirc.bench.kernels import time_kernels
from mlirc.bench.problems.compare import Sums, judge_cancelled, judge_error
from mlirc.check.wide import Float64Mode
from mlirc.errors import MlircError
from mlirc.frontend.problem import adopt, load_problem
from mlirc.frontend.source import named_outputs
from mlirc.precision import DEFAULT_FP32
from mlirc.runtime import load_text
from mlirc.runtime.model import CompiledModel

_SECONDS = 1.0  # of samples per contender, where one is slow
_LONG = 3e6  # microseconds
_ALIKE = 1e-4  # how far a part of the batch alone may be from the same part of the whole


def run_problem(
    case: Case, info: dict[str, Any], folder: Path, settings: dict[str, Any], device: str = "cuda"
) -> dict[str, Any]:
    """Checks a compiled problem, then times it; the result is JSON data. `settings`: `time`, `peers`, `samples`,
    `kernels` (time each kernel alone), `warm` (only run the compiling peers once, so that their caches are filled)."""
    start = time.perf_counter()
    try:
        with reference.exact_math(info.get("fp32", DEFAULT_FP32)):
            if settings.get("warm"):
                return _warm(case, folder, settings, device)
            return _run(case, info, folder, settings, device, start)
    finally:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _run(
    case: Case, info: dict[str, Any], folder: Path, settings: dict[str, Any], device: str, start: float
) -> dict[str, Any]:
    compiled = read_compiled(folder, case)
    problem = load_problem(case.options["path"], case.options["source"])
    module, inputs = adopt(problem.module(device), compiled.constants), problem.inputs(device)
    weights = {**{k: v.to(device) for k, v in compiled.constants.items()}, **module.state_dict()}
    made = time.perf_counter()
    if device == "cuda":
        torch.cuda.empty_cache()  # the compiled model's memory comes from the driver
    model = load_text(compiled.ptx, weights, frozen=True)
    result: dict[str, Any] = {"inputs_s": round(made - start, 3), "load_s": round(time.perf_counter() - made, 3)}
    try:
        model.bind(*[x.contiguous() for x in inputs if isinstance(x, Tensor)])

        def wide() -> nn.Module:
            return adopt(problem.module(device), compiled.constants).double()

        result["check"] = check(model, module, inputs, wide, info.get("fp32", DEFAULT_FP32))
        result["check_s"] = round(time.perf_counter() - start, 3)
        work = info["work"]
        result |= {"bound_us": bound_us(work), "limited_by": limited_by(work)}
        if settings["time"]:
            result |= _times(model, module, inputs, settings, result["check"]["first_us"])
        if settings.get("kernels"):
            result["kernels"] = time_kernels(model, info["kernels"], timing.Flusher())
    finally:
        model.close()
    return result | {"total_s": round(time.perf_counter() - start, 3)}


def _warm(case: Case, folder: Path, settings: dict[str, Any], device: str) -> dict[str, Any]:
    start = time.perf_counter()
    constants = read_compiled(folder, case).constants
    problem = load_problem(case.options["path"], case.options["source"])
    module, inputs = adopt(problem.module(device), constants), problem.inputs(device)
    for peer in settings["peers"]:
        if peer != "eager":
            with contextlib.suppress(Exception):  # timing it will say what is wrong
                _compiled(peer, module)(*inputs)
    return {"warm_s": round(time.perf_counter() - start, 3)}


def check(
    model: CompiledModel, module: nn.Module, inputs: Sequence[Any], wide: Callable[[], nn.Module],
    fp32: str = DEFAULT_FP32,
) -> dict[str, Any]:  # fmt: skip
    """Compares one run of the bound model with eager PyTorch, and both with FP64 where they are further apart than the
    dtype's gate. Outputs are poisoned first."""
    before = [x.clone() if isinstance(x, Tensor) and x.nbytes < 1 << 30 else None for x in inputs]
    given = _copies(inputs)  # the run may change some of them
    ours, first_us = _poisoned_run(model)
    eager = _outputs(module(*given))
    if len(ours) < len(eager):
        raise MlircError(f"{len(ours)} outputs, but PyTorch gives {len(eager)}")
    ours = ours[: len(eager)]
    for out, theirs in zip(ours, eager, strict=True):
        if out.shape != theirs.shape or out.dtype != theirs.dtype:
            mine = f"{out.dtype} {list(out.shape)}"
            raise MlircError(f"an output is {mine}, but PyTorch's is {theirs.dtype} {list(theirs.shape)}")
    near = [Sums.between(out, theirs) for out, theirs in zip(ours, eager, strict=True)]
    rows = [judge_error(s.relative, None, out.dtype, fp32) for s, out in zip(near, ours, strict=True)]
    found: dict[str, Any] = {"against": "eager"}
    if any(r["verdict"] == "FAIL" for r in rows):
        found, rows = _against_wide(ours, eager, inputs, module, wide, near, fp32)
    # What PyTorch changes, too, the model is meant to.
    changed = [i for i, b in enumerate(before) if b is not None and _same(b, given[i]) and not _same(b, inputs[i])]
    verdicts = [str(r["verdict"]) for r in rows]
    verdict = "FAIL" if "FAIL" in verdicts or changed else max(verdicts, key=len, default="ok")
    return {**found, "outputs": rows, "changed": changed, "verdict": verdict, "first_us": first_us}


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num()) if a.is_floating_point() else torch.equal(a, b)


def _copies(inputs: Sequence[Any]) -> list[Any]:
    """The inputs as the module may have them: small ones copied, since some modules write to theirs."""
    return [x.clone() if isinstance(x, Tensor) and x.nbytes < 1 << 30 else x for x in inputs]


def _outputs(result: Any) -> list[Tensor]:
    return [value for _, value in named_outputs(result) if isinstance(value, Tensor)]


def _poisoned_run(model: CompiledModel) -> tuple[list[Tensor], float]:
    """Runs the bound model with NaN (or a large integer) in its outputs first; returns those outputs, not copies, and
    how long it took, in microseconds."""
    outputs = [torch.from_dlpack(o) for o in model.outputs]
    for out in outputs:
        out.fill_(float("nan") if out.is_floating_point() else True if out.dtype == torch.bool else 77)
    if outputs and outputs[0].is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    model.launch()
    model.synchronize()
    return outputs, (time.perf_counter() - start) * 1e6


def _against_wide(
    ours: list[Tensor],
    eager: list[Tensor],
    inputs: Sequence[Any],
    module: nn.Module,
    wide: Callable[[], nn.Module],
    near: list[Sums],
    fp32: str,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How far both are from FP64, output by output; where FP64 cannot be had, how far they are from each other."""
    try:
        sums = _wide_sums(ours, eager, inputs, module, wide)
    except (RuntimeError, MlircError, TypeError, ValueError) as e:
        if "CUDA error" in str(e):
            raise
        why = f"{type(e).__name__}: {' '.join(str(e).split())}"[:200]
        rows = [judge_error(s.relative, None, o.dtype, fp32) for s, o in zip(near, ours, strict=True)]
        return {"against": "eager", "fp64": why}, rows
    rows = [
        judge_cancelled(judge_error(mine.relative, own.relative, out.dtype, fp32), mine.absolute)
        | {"apart": apart.relative}
        for (mine, own), out, apart in zip(sums, ours, near, strict=True)
    ]
    return {"against": "fp64"}, rows


def _wide_sums(
    ours: list[Tensor], eager: list[Tensor], inputs: Sequence[Any], module: nn.Module, wide: Callable[[], nn.Module]
) -> list[tuple[Sums, Sums]]:
    """(our sums, eager's sums) against FP64 for each output, over the whole batch or, where that does not fit, over its
    parts."""
    exact = wide()
    size = _batch(inputs, eager)
    parts = 1
    while True:
        sums = [(Sums(), Sums()) for _ in ours]
        try:
            for low, high in _parts(size, parts):
                cut = list(inputs) if parts == 1 else _cut(inputs, low, high)
                if parts > 1 and low == 0:
                    _require_alike(module, cut, eager, high)
                with Float64Mode():
                    found = _outputs(exact(*[_double(x) for x in cut]))
                for (mine, own), a, b, ref in zip(sums, ours, eager, found, strict=True):
                    whole = parts == 1
                    mine.add(a if whole else a[low:high], ref)
                    own.add(b if whole else b[low:high], ref)
                del found
            return sums
        except torch.OutOfMemoryError:
            if parts == size:
                raise MlircError("FP64 does not fit, and the model has no batch to cut into parts") from None
            parts = min(4 * parts, size)
        gc.collect()
        torch.cuda.empty_cache()


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _batch(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """The size of the batch, the first dimension of all inputs and outputs; 1 where they differ."""
    tensors = [*(x for x in inputs if isinstance(x, Tensor)), *outputs]
    sizes = {t.shape[0] if t.dim() else 1 for t in tensors}
    return sizes.pop() if len(sizes) == 1 else 1


def _parts(size: int, parts: int) -> Iterator[tuple[int, int]]:
    step = -(-size // parts)
    return ((low, min(low + step, size)) for low in range(0, size, step))


def _cut(inputs: Sequence[Any], low: int, high: int) -> list[Any]:
    return [x[low:high] if isinstance(x, Tensor) else x for x in inputs]


def _require_alike(module: nn.Module, cut: Sequence[Any], eager: Sequence[Tensor], high: int) -> None:
    """Raises MlircError for a module whose first rows depend on the other rows of the batch."""
    for alone, whole in zip(_outputs(module(*_copies(cut))), eager, strict=True):
        if alone.shape != whole[:high].shape or not Sums.between(alone, whole[:high]).relative <= _ALIKE:
            raise MlircError("FP64 does not fit, and the model mixes the rows of its batch")


def _times(
    model: CompiledModel, module: nn.Module, inputs: Sequence[Any], settings: dict[str, Any], first_us: float
) -> dict[str, Any]:
    flush = timing.Flusher()
    outcome: dict[str, Any] = {"peer_errors": {}, "times": {}, "graphs": {}}
    stream = torch.cuda.current_stream()
    ours = timing.Arm("mlirc", lambda: model.launch(torch.cuda.current_stream()), 1)  # a graph already
    outcome["times"]["mlirc"] = _sample(ours, flush, settings["samples"], first_us)
    for name in settings["peers"]:  # not in turn with ours: the graphs of two may not fit together
        try:
            run: Callable[..., Any] = module if name == "eager" else _compiled(name, module)
            with torch.cuda.stream(stream):
                arm, outcome["graphs"][name] = _arm(name, functools.partial(run, *inputs))
                outcome["times"][name] = _sample(arm, flush, settings["samples"])
            del arm
        except Exception as e:
            if "CUDA error" in str(e):
                raise
            outcome["peer_errors"][name] = f"{type(e).__name__}: {' '.join(str(e).split())}"[:300]
        gc.collect()
        torch.cuda.empty_cache()
    # What PyTorch's allocator holds after a capture that failed does not come back.
    return outcome | ({"spent": True} if not all(outcome["graphs"].values()) else {})


def _sample(arm: timing.Arm, flush: Callable[[], None], most: int, first_us: float = 0.0) -> dict[str, Any]:
    """Times one contender, at most about a second of it; one that takes longer than some is not run again."""
    if first_us > _LONG:
        return timing.summarize([first_us]).to_json()
    one = timing.quick_us(arm.replay, samples=2)
    samples = max(3, min(most, int(_SECONDS * 1e6 / max(one, 1))))
    return timing.interleave([arm], samples, flush)[arm.name].to_json()


def _arm(name: str, run: Callable[[], Any]) -> tuple[timing.Arm, bool]:
    """The contender in a CUDA graph, or, where it cannot be captured (it copies from the host, say), as it is."""
    try:
        with torch.cuda.stream(torch.cuda.current_stream()):  # a capture that fails leaves its own behind
            return timing.capture(name, lambda _: run(), [None], 1), True
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as e:
        if not _is_capture_error(str(e)):
            raise
        torch.cuda.synchronize()
        return timing.Arm(name, run, 1), False


def _is_capture_error(text: str) -> bool:
    return "captur" in text or "cudaErrorStreamCapture" in text


def _compiled(peer: str, module: nn.Module) -> Any:
    torch._dynamo.reset()
    mode = None if peer == "compile" else "max-autotune-no-cudagraphs"
    return torch.compile(module, dynamic=False, mode=mode)
