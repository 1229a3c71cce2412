"""Errors of tensors too large to convert at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mlirc.bench.reference import judge
from mlirc.check.gates import gate_name
from mlirc.precision import DEFAULT_FP32

_STEP = 1 << 26  # elements compared at a time
_NEAR = 1e-4  # KernelBench's tolerance for f32
_CODES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclass
class Sums:
    """||out - ref||² and ||ref||² of what was added, over the finite entries of the references; `wrong` where NaN or
    infinities are not where the reference has them."""

    difference: float = 0.0
    norm: float = 0.0
    count: int = 0
    wrong: bool = False

    @classmethod
    def between(cls, out: Tensor, ref: Tensor) -> Sums:
        """The sums of one pair of tensors."""
        sums = cls()
        sums.add(out, ref)
        return sums

    def add(self, out: Tensor, ref: Tensor) -> None:
        """Adds a pair of tensors of one shape, a slice at a time."""
        if out.shape != ref.shape:
            raise ValueError(f"{list(out.shape)} cannot be compared with {list(ref.shape)}")
        a, b = out.reshape(-1), ref.reshape(-1)
        for low in range(0, a.numel(), _STEP):
            self._add(a[low : low + _STEP].double(), b[low : low + _STEP].double())

    def _add(self, out: Tensor, ref: Tensor) -> None:
        finite = torch.isfinite(ref)
        if not bool(finite.all()):
            same = torch.isnan(out) & torch.isnan(ref) | (out == ref) | finite
            self.wrong |= not bool(same.all())
            out, ref = out[finite], ref[finite]
        self.wrong |= not bool(torch.isfinite(out).all())
        self.count += ref.numel()
        self.difference += torch.sum((out - ref) ** 2).item()
        self.norm += torch.sum(ref**2).item()

    @property
    def relative(self) -> float:
        """||out - ref|| / ||ref||, infinite where they differ in kind."""
        if self.wrong:
            return math.inf
        return math.sqrt(self.difference / self.norm) if self.norm else math.sqrt(self.difference)

    @property
    def absolute(self) -> float:
        """The root mean square of out - ref, infinite where they differ in kind."""
        return math.inf if self.wrong else math.sqrt(self.difference / self.count) if self.count else 0.0


def judge_cancelled(row: dict[str, Any], absolute: float) -> dict[str, Any]:
    """A failed row's verdict where the exact result cancels to less than eager's own error: no digit of it can be
    right, and `ok (cancels)` says that ours (`absolute`, a root mean square) is as near to it as KernelBench asks."""
    cancelled = row["verdict"] == "FAIL" and (row["eager_error"] or 0) > 1 and absolute <= _NEAR
    return row | {"verdict": "ok (cancels)", "absolute_error": absolute} if cancelled else row


def judge_error(error: float, eager: float | None, dtype: torch.dtype, fp32: str = DEFAULT_FP32) -> dict[str, Any]:
    """A row of a check. `eager`: PyTorch's own error against FP64; None when `error` is against PyTorch itself, whose
    own error is taken as none, so that only what is within the dtype's gate passes."""
    code = _CODES.get(dtype, str(dtype).removeprefix("torch."))
    verdict = judge(error, math.inf if eager is None else eager, gate_name(code, fp32))
    if eager is None and verdict != "ok":
        verdict = "FAIL"
    return {"dtype": code, "error": error, "eager_error": eager, "verdict": verdict}
