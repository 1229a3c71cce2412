"""Decompositions of ops on two operands that torch-mlir lowers so that a NaN is lost, or shapes that differ are
refused."""

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


@_decomposes(aten.logaddexp.default)
def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """log(exp(x) + exp(y)); an infinity is itself, and two of them have no difference."""
    larger = torch.maximum(x, y)
    total = larger + torch.log1p(torch.exp(-torch.abs(x - y)))
    return torch.where(torch.eq(torch.abs(larger), math.inf), larger, total)


@_decomposes(aten.logaddexp2.default)
def _logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    """The same with base 2; PyTorch's own decomposition takes an infinity beside a NaN for the result."""
    larger = torch.maximum(x, y)
    total = larger + torch.log1p(torch.exp2(-torch.abs(x - y))) * (1 / math.log(2))
    return torch.where(torch.eq(torch.abs(larger), math.inf), larger, total)


@_decomposes(aten.isclose.default)
def _isclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """torch-mlir's own takes no operands of different shapes."""
    equal = torch.eq(x, y)
    if not (x.dtype.is_floating_point and y.dtype.is_floating_point):
        return equal if rtol == 0 and atol < 1 else NotImplemented
    if equal_nan:
        equal = equal | (torch.ne(x, x) & torch.ne(y, y))
    difference = torch.abs(x - y)
    return equal | (torch.lt(difference, math.inf) & torch.le(difference, atol + rtol * torch.abs(y)))


@_decomposes(aten.fmax.default)
def _fmax(x: Tensor, y: Tensor) -> Tensor:
    """A NaN loses here; torch-mlir's own takes no operands of different shapes."""
    return torch.where(torch.gt(x, y) | torch.ne(y, y), x, y)


@_decomposes(aten.fmin.default)
def _fmin(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.lt(x, y) | torch.ne(y, y), x, y)
