"""Decompositions of special functions: error functions, logarithms of the gamma function and its derivatives, phases.

They are computed in FP64 and rounded once. Formulas: M. Abramowitz, I. A. Stegun, "Handbook of Mathematical Functions"
(1964), chapters 6 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.elementwise import erfc

aten = torch.ops.aten
Tensor = torch.Tensor

SPECIAL: dict[Any, Callable] = {}
SHIFT = 10  # Stirling's series is right to FP64 from here on
# B(2k) / (2k (2k - 1)): the series of the gamma function's logarithm; times 2k - 1 it is that of its derivative.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_HALF_LOG_2_PI = 0.9189385332046728


def _of_floats(*ops: Any) -> Callable[[Callable], Callable]:
    """Registers a function of FP64 for all real dtypes; of integers it gives the default float dtype."""

    def add(function: Callable) -> Callable:
        def decomposed(x: Tensor) -> Tensor:
            if x.is_complex():
                return NotImplemented
            dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
            return function(x.to(dtype).double()).to(torch.float32 if dtype.itemsize == 2 else dtype).to(dtype)

        for op in ops:
            SPECIAL[op] = decomposed
        return function

    return add


@_of_floats(aten.erfc.default)
def _erfc(x: Tensor) -> Tensor:
    return erfc(x)


@_of_floats(aten.special_erfcx.default)
def _erfcx(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x): from 26 on by its asymptotic series, since erfc is 0 there."""
    moderate = torch.clamp(x, max=25.0)
    square = moderate * moderate
    near = torch.exp(square) * erfc(moderate)
    inverse = 1 / (x * x)
    series = 1 - 0.5 * inverse * (1 - 1.5 * inverse * (1 - 2.5 * inverse * (1 - 3.5 * inverse)))
    return torch.where(x > 25, series / (x * math.sqrt(math.pi)), near)


def _inverse_erfc(q: Tensor) -> Tensor:
    """y >= 0 with erfc(y) = q, for 0 <= q <= 1: Halley's method from Winitzki's approximation."""
    log = torch.log(q * (2 - q))
    half = 2 / (math.pi * 0.147) + log / 2
    y = torch.sqrt(torch.clamp(torch.sqrt(half * half - log / 0.147) - half, min=0.0))
    for _ in range(3):
        off = (erfc(y) - q) / (-2 / math.sqrt(math.pi) * torch.exp(-y * y))
        y = y - off / (1 + y * off)
    return torch.where(q == 0, math.inf, y)


@_of_floats(aten.erfinv.default)
def _erfinv(x: Tensor) -> Tensor:
    size = x.abs()
    tail = _inverse_erfc(torch.clamp(1 - size, 0.0, 0.75))
    y = size * (math.sqrt(math.pi) / 2)  # of numbers below a quarter: by erf, whose error is relative
    small = torch.clamp(size, max=0.5)
    y = small * (math.sqrt(math.pi) / 2) * (1 + math.pi / 12 * small * small)
    for _ in range(3):
        off = (torch.erf(y) - small) / (2 / math.sqrt(math.pi) * torch.exp(-y * y))
        y = y - off / (1 + y * off)
    found = torch.copysign(torch.where(size < 0.4, y, tail), x)
    return torch.where(size <= 1, found, math.nan)


@_of_floats(aten.special_ndtri.default)
def _ndtri(p: Tensor) -> Tensor:
    below = torch.where(p < 0.5, p, 1 - p)
    y = math.sqrt(2) * _inverse_erfc(torch.clamp(2 * below, 0.0, 1.0))
    return torch.where((p >= 0) & (p <= 1), torch.where(p < 0.5, -y, y), math.nan)


def _turned(x: Tensor) -> Tensor:
    """The distance from the nearest integer, with its sign: the angle pi x but for multiples of pi."""
    return x - torch.round(x)


@_of_floats(aten.lgamma.default, aten.special_gammaln.default)
def _lgamma(x: Tensor) -> Tensor:
    positive = torch.where(x < 0.5, 1 - x, x)
    product, large = torch.ones_like(x), positive
    for _ in range(SHIFT):
        small = large < SHIFT
        product = torch.where(small, product * large, product)
        large = torch.where(small, large + 1, large)
    inverse = 1 / large
    found = (large - 0.5) * torch.log(large) - large + _HALF_LOG_2_PI
    found = found + inverse * _series(_STIRLING, inverse * inverse) - torch.log(product)
    found = torch.where(positive == math.inf, math.inf, torch.where((x == 1) | (x == 2), 0.0, found))
    sine = torch.sin(math.pi * _turned(x)).abs()
    reflected = math.log(math.pi) - torch.log(sine) - found
    reflected = torch.where((sine == 0) | (x == -math.inf), math.inf, reflected)
    return torch.where(x < 0.5, reflected, found)


def _series(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


@_of_floats(aten.digamma.default)
def _digamma(x: Tensor) -> Tensor:
    large, total = torch.where(x < 0.5, 1 - x, x), torch.zeros_like(x)
    for _ in range(SHIFT):
        small = large < SHIFT
        total = torch.where(small, total - 1 / large, total)
        large = torch.where(small, large + 1, large)
    square = 1 / (large * large)
    series = _series(tuple(b / (2 * k + 2) for k, b in enumerate(_BERNOULLI)), square)
    found = torch.log(large) - 0.5 / large - square * series + total
    turned = _turned(x)
    found = torch.where(x < 0.5, found - math.pi / torch.tan(math.pi * turned), found)
    found = torch.where((turned == 0) & (x < 0), math.nan, found)
    found = torch.where(x == 0, torch.copysign(torch.full_like(x, math.inf), -x), found)
    return torch.where(x.abs() == math.inf, torch.where(x > 0, x, math.nan), found)


def _trigamma(x: Tensor) -> Tensor:
    large, total = torch.where(x < 0.5, 1 - x, x), torch.zeros_like(x)
    for _ in range(SHIFT):
        small = large < SHIFT
        total = torch.where(small, total + 1 / (large * large), total)
        large = torch.where(small, large + 1, large)
    inverse = 1 / large
    square = inverse * inverse
    found = inverse + 0.5 * square + inverse * square * _series(_BERNOULLI, square) + total
    sine = torch.sin(math.pi * _turned(x))
    return torch.where(x < 0.5, (math.pi * math.pi) / (sine * sine) - found, found)


_of_floats("trigamma")(_trigamma)
_TRIGAMMA = SPECIAL.pop("trigamma")


def _polygamma(n: int, x: Tensor) -> Tensor:
    if n > 1:
        raise MlircError(
            f"polygamma of order {n} is not supported: only of orders 0 and 1; compute it outside of the model"
        )
    return (_TRIGAMMA if n else SPECIAL[aten.digamma.default])(x)


SPECIAL[aten.polygamma.default] = _polygamma


def _angle(x: Tensor) -> Tensor:
    """Of real numbers: pi where they are negative; complex ones are pairs by then."""
    if x.is_complex():
        return NotImplemented
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(x < 0, math.pi, torch.where(x != x, x, 0.0)).to(x.dtype)


SPECIAL[aten.angle.default] = _angle


def _addmv(x: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    out = aten.addmm.default(x.reshape(-1, 1), matrix, vector.reshape(-1, 1), beta=beta, alpha=alpha)
    return out.reshape(matrix.shape[0])


SPECIAL[aten.addmv.default] = _addmv
