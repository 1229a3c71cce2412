"""Decompositions of activations with bounds and slopes that torch-mlir gets wrong for NaN, zeros or scalars, and of
those that take fewer operations than PyTorch writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.frontend.opmath import HALF

aten = torch.ops.aten
Tensor = torch.Tensor

ACTIVATIONS: dict[Any, Callable] = {}


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        ACTIVATIONS[op] = function
        return function

    return add


@_decomposes(aten.hardtanh.default)
def _hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return torch.clamp(x, min_val, max_val).to(x.dtype)


@_decomposes(aten.relu6.default)
def _relu6(x: Tensor) -> Tensor:
    return torch.clamp(x, 0, 6)


@_decomposes(aten.leaky_relu.default)
def _leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """A slope that is not finite hides no positive number."""
    return torch.where(x > 0, x, x * negative_slope)


@_decomposes(aten.elu.default)
def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


@_decomposes(aten.mish.default)
def _mish(x: Tensor) -> Tensor:
    """x tanh(log(1 + n)), n = exp(x), is x w / (w + 2), w = n (n + 2): one function for three. From 20 on both are
    x."""
    n = torch.exp(torch.clamp(x, max=20.0))
    w = n * (n + 2)
    return x * (w / (w + 2))


@_decomposes(aten.threshold.default)
def _threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """Of 16-bit floats, compared with an f32 threshold; a NaN stays."""
    if not x.is_floating_point():
        return torch.where(x <= threshold, torch.full_like(x, value), x)
    compared = x.float() if x.dtype in HALF else x
    return torch.where(compared <= threshold, value, compared).to(x.dtype)


@_decomposes(aten.hardshrink.default)
def _hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), 0.0, x)


@_decomposes(aten.softshrink.default)
def _softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Between the bounds 0., whose sign is never x's, or NaN."""
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x - x))


@_decomposes(aten.threshold_backward.default)
def _threshold_backward(gradient: Tensor, x: Tensor, threshold: float) -> Tensor:
    dtype = torch.result_type(gradient, x)
    return torch.where(x <= threshold, 0, gradient.to(dtype))
