"""What a result is compared with: the model in FP64, and the gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mlirc.bench.build import Built, Operator
from mlirc.check.gates import GATES
from mlirc.check.wide import Float64Mode
from mlirc.frontend.module_copy import copied_module
from mlirc.precision import DEFAULT_FP32

# Half a unit in the last place of 1: rounding the result alone costs this much, so that no smaller error is asked for.
ROUNDING = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


@contextmanager
def exact_math(fp32: str = DEFAULT_FP32) -> Iterator[None]:
    """No gradients; PyTorch's GEMMs and convolutions of f32 may use TF32 where `fp32` (as of `mlirc --fp32`) is `tf32`,
    so that both sides round alike, and nowhere else."""
    matmul = torch.backends.cuda.matmul
    saved = matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fp32 == "tf32"
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = saved


def widen(built: Built) -> Built:
    """The module with its parameters and buffers in FP64, which represents the narrow values exactly."""
    return Built(copied_module(built.module).double(), built.arguments)


def run_wide(wide: Built, inputs: Mapping[str, Tensor]) -> Any:
    """Runs a widened module in FP64 throughout."""
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    if isinstance(wide.module, Operator):
        return _run_wide_operator(wide.module, list(inputs.values()))
    with Float64Mode():
        return wide(inputs)


def _run_wide_operator(module: Operator, inputs: Sequence[Tensor]) -> Any:
    """Attention head by head: FP64 scores of all heads may not fit."""
    name = module.function.__name__
    with Float64Mode():
        if name not in ("sdpa_causal", "sdpa_full", "naive_attention"):
            return module(*inputs)
        q, k, v = inputs
        group = q.shape[1] // k.shape[1]
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=torch.float64, device=q.device)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                out[b, h] = _attend(q[b, h], k[b, h // group], v[b, h // group], causal=name != "sdpa_full")
        return out


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = q @ k.T * q.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


def pick_outputs(result: Any, names: Sequence[str]) -> list[Tensor]:
    """The tensors of a module's result that the compiled model's outputs are named after."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Mapping):
        return [result[name] for name in names]
    return list(result)


def judge(error: float, eager: float, dtype: str) -> str:
    """`ok`: within the dtype's gate and twice eager's own error. `ok (eager)`: within twice eager's error, which is
    over half the gate itself, as in deep models. `FAIL`: anything else. `tf32`: f32 whose products are TF32's."""
    if dtype not in GATES:
        return "ok" if error == 0 else "FAIL"
    if not error <= max(2 * eager, GATES[dtype] if dtype == "tf32" else ROUNDING[dtype]):  # a CPU's eager has no TF32
        return "FAIL"
    return "ok" if error <= GATES[dtype] else "ok (eager)"


def fingerprint(module: nn.Module) -> int:
    """A sum over the bits of every weight: changes when one of them is written."""
    total = 0
    for parameter in module.parameters():
        bits = {4: torch.int32, 2: torch.int16, 8: torch.int64}.get(parameter.element_size())
        if bits is not None:
            total += int(parameter.detach().view(bits).sum(dtype=torch.int64).item())
    return total
