"""What `products.py` multiplies, by the name of a case's dtype: its module, its inputs, PyTorch's ways to compute it,
and what is right.

A case is (dtype, M, N, K, layout). x is [M, K]; the other operand is [N, K] (`nk`) or [K, N] (`kn`), and `t` before it
says that x is given as [K, M]; `gated` is two layers of N columns each, silu(x g^T) * (x u^T). `fp8` and `fp8rows` are
float8_e4m3fn with bf16 results, and one scale or one for each row and column; `i8` is int8 with int32 results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "fp8": torch.float8_e4m3fn,
          "fp8rows": torch.float8_e4m3fn, "i8": torch.int8}  # fmt: skip
RESULTS = {"fp8": torch.bfloat16, "fp8rows": torch.bfloat16, "i8": torch.int32}
Case = tuple[str, int, int, int, str]


def seen(layout: str, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The operands as [M, K] and [K, N]."""
    return (x.t() if layout.startswith("t") else x), (w.t() if layout.endswith("nk") else w)


def weights(layout: str) -> int:
    """How many operands x is multiplied with."""
    return 2 if layout == "gated" else 1


def gated(x: Tensor, up: Tensor, gate: Tensor, out: Tensor | None = None) -> Tensor:
    """silu(x gate^T) * (x up^T) for [N, K] weights."""
    return torch.mul(torch.nn.functional.silu(x @ gate.t()), x @ up.t(), out=out)


def multiply(case: Case, x: Tensor, w: Tensor, *more: Tensor, fast: bool = False, out: Tensor | None = None) -> Tensor:
    """PyTorch's product, into `out` where that is possible. `more` are scales, or a gate's weights; `fast` allows 8-bit
    floats sums of fewer bits."""
    if case[4] == "gated":
        return gated(x, w, *more, out=out)
    x, w = seen(case[4], x, w)
    if case[0].startswith("fp8"):
        return torch._scaled_mm(x, w, *more, out_dtype=RESULTS[case[0]], use_fast_accum=fast)
    return torch._int_mm(x, w) if case[0] == "i8" else torch.matmul(x, w, out=out)


def module(case: Case) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """The module that computes one product, and inputs of its shapes."""

    class Product(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return multiply(case, *inputs)

    return Product().eval(), inputs(case, "cpu", torch.empty)


def inputs(case: Case, device: str, make: Callable[..., Tensor] = torch.randn) -> tuple[Tensor, ...]:
    """Operands, and scales: normal numbers, and all bytes."""
    dtype, m, n, k, layout = case
    shapes = [(k, m) if layout.startswith("t") else (m, k), (n, k) if layout.endswith("nk") else (k, n)]
    if dtype == "i8" and make is torch.randn:
        return tuple(torch.randint(-128, 128, s, device=device, dtype=torch.int8) for s in shapes)
    if layout == "gated":
        shapes = [(m, k), (n, k), (n, k)]
    size = k**-0.5 if layout == "gated" else 1.0
    operands = tuple((make(s, device=device) * (size if i else 1.0)).to(DTYPES[dtype]) for i, s in enumerate(shapes))
    if not dtype.startswith("fp8"):
        return operands
    scales = ((m, 1), (1, n)) if dtype == "fp8rows" else ((), ())
    return (*operands, *(make(s, device=device).abs() + 0.5 for s in scales))


def peers(case: Case) -> dict[str, Callable[..., Any]]:
    """PyTorch's ways by name, cuBLAS's default first; each called with the inputs."""
    if case[0].startswith("fp8"):
        return {"cublas": lambda *s: multiply(case, *s), "cublas fast": lambda *s: multiply(case, *s, fast=True)}
    dtype, m, n, *_ = case
    out = None if dtype == "i8" else torch.empty(m, n, device="cuda", dtype=DTYPES[dtype])
    return {"cublas": lambda *s: multiply(case, *s, out=out)}


def right(case: Case, x: Tensor, w: Tensor, *scales: Tensor) -> Tensor:
    """What is right: in FP64 for f32 and i8, else in f32."""
    wide = torch.float64 if case[0] in ("f32", "i8") else torch.float32
    if case[4] == "gated":
        return gated(*(v.to(wide) for v in (x, w, *scales)))
    out = torch.matmul(*(v.to(wide) for v in seen(case[4], x, w)))
    for scale in scales:
        out *= scale
    return out


def nbytes(case: Case) -> int:
    """Bytes of operands and result."""
    dtype, m, n, k, layout = case
    return (m * k + weights(layout) * n * k) * DTYPES[dtype].itemsize + m * n * RESULTS.get(
        dtype, DTYPES[dtype]
    ).itemsize
