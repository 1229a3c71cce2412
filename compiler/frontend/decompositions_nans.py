"""Decompositions of ops that torch-mlir lowers to a comparison and a choice that loses a NaN. In PyTorch a NaN goes on
through minima, maxima and clamps, and is neither finite nor equal to anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

NANS: dict[Any, Callable] = {}


def _decomposes(*ops: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        for op in ops:
            NANS[op] = function
        return function

    return add


@_decomposes(aten.minimum.default)
def _minimum(x: Tensor, y: Tensor) -> Any:
    return _extremum(x, y, torch.lt)


@_decomposes(aten.maximum.default)
def _maximum(x: Tensor, y: Tensor) -> Any:
    return _extremum(x, y, torch.gt)


def _extremum(x: Tensor, y: Tensor, first_wins: Callable) -> Any:
    """A NaN in y wins every comparison, since none holds; one in x is asked for."""
    if not (x.dtype.is_floating_point or y.dtype.is_floating_point):
        return NotImplemented
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(dtype), y.to(dtype)
    return torch.where(first_wins(x, y) | torch.ne(x, x), x, y)


@_decomposes(aten.clamp.default, aten.clamp.Tensor)
def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Any:
    floats = [b for b in (x, low, high) if isinstance(b, Tensor) and b.dtype.is_floating_point]
    if not floats:
        return NotImplemented
    for bound, beyond, extremum in ((low, torch.lt, torch.maximum), (high, torch.gt, torch.minimum)):
        if isinstance(bound, Tensor):
            x = extremum(x, bound)
        elif bound is not None:
            # A bound that is NaN makes everything NaN.
            x = torch.where(beyond(x, bound), bound, x) if not math.isnan(bound) else torch.full_like(x, bound)
    return x.clone()


@_decomposes(aten.clamp_min.default, aten.clamp_min.Tensor)
def _clamp_min(x: Tensor, low: Any) -> Any:
    return _clamp(x, low, None)


@_decomposes(aten.clamp_max.default, aten.clamp_max.Tensor)
def _clamp_max(x: Tensor, high: Any) -> Any:
    return _clamp(x, None, high)


@_decomposes(aten.hardtanh.default)
def _hardtanh(x: Tensor, low: float = -1, high: float = 1) -> Any:
    return _clamp(x, low, high)


@_decomposes(aten.relu6.default)
def _relu6(x: Tensor) -> Any:
    return _clamp(x, 0, 6)


@_decomposes(aten.isfinite.default)
def _isfinite(x: Tensor) -> Tensor:
    return torch.lt(torch.abs(x), math.inf) if x.dtype.is_floating_point else torch.ones_like(x, dtype=torch.bool)
