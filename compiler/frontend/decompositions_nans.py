"""Decompositions of ops on two operands that torch-mlir lowers so that a NaN is lost, or shapes that differ are
refused."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from mlirc.frontend.opmath import filled, promoted, rounded

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


def _entropy_term(logarithm: Callable, x: Any, y: Any) -> Tensor:
    """x times a logarithm of y, each rounded to the dtype: 0 for an x of 0, but NaN for a NaN y."""
    dtype = promoted(x, y)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    like = x if isinstance(x, Tensor) else y
    x, y = (v.to(dtype) if isinstance(v, Tensor) else filled(v, dtype, like) for v in (x, y))
    return torch.where(torch.ne(y, y), y, torch.where(torch.eq(x, 0), 0.0, x * logarithm(y)))


for _overload in ("Tensor", "Scalar_Other", "Scalar_Self"):
    NANS[getattr(aten.xlogy, _overload)] = functools.partial(_entropy_term, torch.log)
for _overload in ("default", "other_scalar", "self_scalar"):
    NANS[getattr(aten.special_xlog1py, _overload)] = functools.partial(_entropy_term, torch.log1p)


@_decomposes(aten.special_entr.default)
def _entr(x: Tensor) -> Tensor:
    """-x log(x), 0 at 0, -inf below."""
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    below = torch.where(torch.eq(x, 0), 0.0, -math.inf).to(x.dtype)
    return torch.where(torch.ne(x, x), x, torch.where(torch.gt(x, 0), -x * torch.log(x), below))


@_decomposes(aten.logit.default)
def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)) in steps that PyTorch rounds to 16 bits one by one, the bounds that `eps` gives, too."""
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    if eps is not None:
        low = rounded(eps, x.dtype)
        high = rounded(1 - low, x.dtype)
        x = torch.where(x < low, low, torch.where(x > high, high, x))
    return torch.log(x / (1 - x))
