"""Decompositions of divisions that round, rounding to decimals, and scaling by powers of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.frontend.elementwise import bitcast
from mlirc.frontend.opmath import HALF, filled, promoted

aten = torch.ops.aten
Tensor = torch.Tensor

ROUNDING: dict[Any, Callable] = {}


def _decomposes(*ops: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        ROUNDING.update(dict.fromkeys(ops, function))
        return function

    return add


@_decomposes(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_mode(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    """Floats round down from the exact quotient and not from the rounded one: 1.0 // 0.1 is 9.

    As in PyTorch, steps on 16-bit floats are in f32 for a divisor that is a number or has no dimension, and in 16 bits
    for one that has some.
    """
    dtype = promoted(x, y)
    if rounding_mode is None or not dtype.is_floating_point:
        return NotImplemented
    is_scalar = not isinstance(y, Tensor) or y.dim() == 0 and x.dim() > 0
    wide = torch.float32 if dtype in HALF and is_scalar else dtype
    x = x.to(dtype).to(wide)
    y = y.to(wide) if isinstance(y, Tensor) else filled(y, wide, x)
    return (torch.trunc(x / y) if rounding_mode == "trunc" else _floor_of_quotient(x, y)).to(dtype)


def _floor_of_quotient(x: Tensor, y: Tensor) -> Tensor:
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((y < 0) != (rest < 0)), quotient - 1, quotient)
    below = torch.floor(quotient)
    below = torch.where(quotient - below > 0.5, below + 1, below)
    ratio = x / y
    out = torch.where(quotient != 0, below, torch.copysign(torch.zeros_like(ratio), ratio))
    return torch.where(y == 0, ratio, out)


@_decomposes(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_divide(x: Any, y: Any) -> Tensor:
    if not isinstance(x, Tensor):
        x = filled(x, promoted(x, y), y)
    return torch.div(x, y, rounding_mode="floor")


@_decomposes(aten.remainder.Scalar_Tensor)
def _remainder_of_number(x: float, y: Tensor) -> Tensor:
    dtype = promoted(x, y)
    return torch.remainder(filled(x, dtype, y), y.to(dtype))


@_decomposes(aten.round.decimals)
def _round_decimals(x: Tensor, *, decimals: int = 0) -> Tensor:
    """x scaled by a power of ten, in f32 for 16-bit floats, rounded, and scaled back."""
    if not x.is_floating_point():
        return NotImplemented
    wide = x.float() if x.dtype in HALF else x
    power = filled(10.0 ** abs(decimals), wide.dtype, x)
    if decimals < 0:
        return (torch.round(wide / power) * power).to(x.dtype)
    return (torch.round(wide * power) / power if decimals else torch.round(wide)).to(x.dtype)


@_decomposes(aten.frac.default)
def _frac(x: Tensor) -> Tensor:
    return x - torch.trunc(x)


@_decomposes(aten.ldexp.Tensor)
def _ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2**exponent, rounded once, though the power itself may be none of the dtype's; computed in f32 for 16 bits.

    A power beyond the range is taken in steps: those up are exact, and those down stay above the subnormal numbers
    (2**-102) as long as the result is not 0.
    """
    dtype = promoted(x, exponent)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    wide = torch.float32 if dtype in HALF else dtype
    out = x.to(dtype).to(wide)
    if exponent.is_floating_point():
        return (out * torch.exp2(exponent.to(dtype).to(wide))).to(dtype)
    bits, bias, mantissa = (torch.int32, 127, 23) if wide == torch.float32 else (torch.int64, 1023, 52)
    step_down = bias - 1 - mantissa - 1
    count = torch.clamp(exponent.to(torch.int64), -3 * bias, 3 * bias).to(bits)
    for _ in range(2):
        high, low = count > bias, count < 1 - bias
        out = torch.where(high, out * 2.0**bias, torch.where(low, out * 2.0**-step_down, out))
        count = torch.where(high, count - bias, torch.where(low, count + step_down, count))
    power = (torch.clamp(count, 1 - bias, bias) + bias) << mantissa
    return (out * bitcast(power, wide)).to(dtype)
