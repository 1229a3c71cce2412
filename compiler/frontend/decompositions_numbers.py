"""Decompositions of ops on integers, bits and dtypes that torch-mlir lacks, or gets wrong for some values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.frontend.elementwise import bitcast
from mlirc.frontend.opmath import HALF, filled, promoted

aten = torch.ops.aten
Tensor = torch.Tensor

NUMBERS: dict[Any, Callable] = {}
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        NUMBERS[op] = function
        return function

    return add


@_decomposes(aten.isfinite.default)
def _isfinite(x: Tensor) -> Tensor:
    """torch-mlir compares with infinity for inequality, and NaN is unequal to it."""
    if x.is_complex():
        return NotImplemented
    return x.abs() < float("inf") if x.is_floating_point() else torch.ones_like(x, dtype=torch.bool)


@_decomposes(aten.signbit.default)
def _signbit(x: Tensor) -> Tensor:
    if x.is_floating_point():  # -0.0 and NaN have a sign, too
        x = x.float() if x.element_size() == 2 else x
        x = bitcast(x, _BITS[x.element_size()])
    return torch.zeros_like(x) if x.dtype == torch.bool else x < 0


@_decomposes(aten.copysign.Tensor)
def _copysign(x: Tensor, sign: Tensor) -> Tensor:
    dtype = torch.result_type(x, sign)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    size = x.to(dtype).abs()
    return torch.where(_signbit(sign), -size, size)


@_decomposes(aten.copysign.Scalar)
def _copysign_scalar(x: Tensor, sign: float) -> Tensor:
    size = x.abs() if x.is_floating_point() else x.to(torch.get_default_dtype()).abs()
    return -size if torch.signbit(torch.tensor(float(sign))) else size


@_decomposes(aten.nextafter.default)
def _nextafter(x: Tensor, y: Tensor) -> Tensor:
    """Floats of one sign are in the order of their bits; on either side of 0 lies the least subnormal number."""
    x, y = torch.broadcast_tensors(x, y)
    bits = _BITS[x.element_size()]
    number = bitcast(x.contiguous(), bits)
    away = (x < y) == (x > 0)  # from 0
    step = bitcast(torch.where(away, number + 1, number - 1), x.dtype)
    least = bitcast(torch.ones_like(number), x.dtype)
    step = torch.where(x == 0, torch.copysign(least, y), step)
    return torch.where(torch.isnan(x) | torch.isnan(y), x + y, torch.where(x == y, y, step))


@_decomposes(aten.view.dtype)
def _view_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Elements of another width out of the bits of the last dimension, the least bytes first."""
    old, new = x.element_size(), dtype.itemsize
    if x.is_complex() or dtype.is_complex or torch.bool in (x.dtype, dtype):
        return NotImplemented
    if old == new:
        if not x.is_floating_point() and not dtype.is_floating_point:
            return NotImplemented
        bits = bitcast(x, _BITS[old]) if x.is_floating_point() else x
        if dtype.is_floating_point:
            return bitcast(bits if bits.dtype == _BITS[old] else bits.view(_BITS[old]), dtype)
        return bits if bits.dtype == dtype else bits.view(dtype)
    narrow, wide = min(old, new), max(old, new)
    computing = torch.int64 if wide == 8 else torch.int32
    bits = (bitcast(x, _BITS[old]) if x.is_floating_point() else x).to(computing)
    shifts = torch.arange(wide // narrow, device=x.device, dtype=computing) * (8 * narrow)
    if new < old:
        parts = (bits.unsqueeze(-1) >> shifts).to(_BITS[new])
        out = parts.reshape(*x.shape[:-1], x.shape[-1] * (wide // narrow))
    else:
        parts = bits.reshape(*x.shape[:-1], x.shape[-1] // (wide // narrow), wide // narrow)
        mask = (1 << 8 * narrow) - 1
        out = ((parts & mask) << shifts).sum(-1, dtype=computing).to(_BITS[new])
    if dtype.is_floating_point:
        return bitcast(out, dtype)
    return out if out.dtype == dtype else aten.view.dtype(out, dtype)


@_decomposes(aten.clamp.default)
def _clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """Integers between floats are floats, and a NaN stays one; torch-mlir's comparisons lose it."""
    if not x.is_floating_point():
        if not any(isinstance(bound, float) for bound in (min, max)):
            return NotImplemented
        x = x.to(torch.get_default_dtype())
    for bound, is_beyond, nearest in ((min, torch.lt, torch.maximum), (max, torch.gt, torch.minimum)):
        if bound == 0:  # a zero stays as it is, with its sign
            x = torch.where(is_beyond(x, bound), filled(bound, x.dtype, x), x)
        elif bound is not None:
            x = nearest(x, filled(bound, x.dtype, x))
    return x


@_decomposes(aten.clamp.Tensor)
def _clamp_tensor(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    out = x if min is None else torch.maximum(x, min)
    out = out if max is None else torch.minimum(out, max)
    return out.clone() if out is x else out


@_decomposes(aten.clamp_min.default)
def _clamp_min(x: Tensor, min: float) -> Tensor:
    return torch.clamp(x, min=min)


@_decomposes(aten.clamp_max.default)
def _clamp_max(x: Tensor, max: float) -> Tensor:
    return torch.clamp(x, max=max)


def _promoted(op: Any) -> Callable:
    """Floats of different dtypes."""

    def decomposed(x: Tensor, y: Tensor) -> Tensor:
        dtype = torch.result_type(x, y)
        if x.dtype == y.dtype or not dtype.is_floating_point:
            return NotImplemented
        return op(x.to(dtype), y.to(dtype))

    return decomposed


NUMBERS[aten.maximum.default] = _promoted(torch.maximum)
NUMBERS[aten.minimum.default] = _promoted(torch.minimum)
NUMBERS[aten.fmod.Tensor] = _promoted(torch.fmod)


@_decomposes(aten.fmod.Scalar)
def _fmod_scalar(x: Tensor, y: float) -> Tensor:
    dtype = torch.result_type(x, y)
    if not dtype.is_floating_point:
        return NotImplemented
    return torch.fmod(x.to(dtype), torch.full((), y, dtype=dtype, device=x.device))


@_decomposes(aten._to_copy.default)
def _to_copy(x: Tensor, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """From FP64 to 16 bits by way of f32, as in PyTorch."""
    if x.dtype != torch.float64 or dtype not in (torch.float16, torch.bfloat16):
        return NotImplemented
    return x.to(torch.float32).to(dtype)


@_decomposes(aten.pow.Tensor_Tensor)
def _pow(x: Tensor, exponent: Tensor) -> Tensor:
    """Integers by squaring, which wraps as PyTorch's does; a negative exponent leaves only 1 and -1."""
    dtype = torch.result_type(x, exponent)
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return NotImplemented
    computing = torch.int64 if dtype == torch.int64 else torch.int32
    bits = torch.iinfo(dtype).bits - (dtype != torch.uint8)
    base, exponent = torch.broadcast_tensors(x.to(dtype).to(computing), exponent.to(dtype).to(computing))
    out, square = torch.ones_like(base), base
    for bit in range(bits):
        out = torch.where(((exponent >> bit) & 1) != 0, out * square, out)
        square = square * square
    units = torch.where(base == 1, 1, torch.where(base == -1, 1 - 2 * (exponent & 1), 0))
    return torch.where(exponent < 0, units, out).to(dtype)


@_decomposes(aten.all.dims)
def _all_dims(x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    return _over_dims(aten.all.dim, x, dim, keepdim)


@_decomposes(aten.any.dims)
def _any_dims(x: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Tensor:
    return _over_dims(aten.any.dim, x, dim, keepdim)


def _over_dims(op: Any, x: Tensor, dim: list[int] | None, keepdim: bool) -> Tensor:
    """`op` over each of `dim` in turn: None is all, an empty list none. Bytes stay bytes, all else becomes bool."""
    out = x.bool().to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)
    for d in sorted(range(x.dim()) if dim is None else (d % x.dim() for d in dim if x.dim()), reverse=True):
        out = op(out, d, keepdim)
    return out


@_decomposes(aten.pow.Scalar)
def _pow_scalar(base: float, exponent: Tensor) -> Tensor:
    if exponent.is_floating_point() or exponent.is_complex():
        return NotImplemented
    dtype = torch.result_type(exponent, base)
    if dtype.is_floating_point:
        return aten.pow.Scalar(base, exponent.to(dtype))
    return _pow(torch.full((), base, dtype=torch.int64, device=exponent.device).to(dtype), exponent)


@_decomposes(aten.norm.Scalar)
def _norm(x: Tensor, p: float = 2) -> Tensor:
    return aten.linalg_vector_norm.default(x, p)


@_decomposes(aten.norm.ScalarOpt_dim)
def _norm_dim(x: Tensor, p: float | None, dim: list[int], keepdim: bool = False) -> Tensor:
    return aten.linalg_vector_norm.default(x, 2 if p is None else p, dim, keepdim)


@_decomposes(aten.norm.ScalarOpt_dim_dtype)
def _norm_dim_dtype(x: Tensor, p: float | None, dim: list[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    return aten.linalg_vector_norm.default(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@_decomposes(aten.norm.ScalarOpt_dtype)
def _norm_dtype(x: Tensor, p: float | None, *, dtype: torch.dtype) -> Tensor:
    return aten.linalg_vector_norm.default(x, 2 if p is None else p, None, False, dtype=dtype)


@_decomposes(aten.addr.default)
def _addr(x: Tensor, rows: Tensor, columns: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """An outer product whose every step is rounded to 16 bits; a beta of 0 hides what x is. Of booleans, beta and
    alpha are booleans, too."""
    if torch.bool == x.dtype == rows.dtype == columns.dtype:
        outer = (rows[:, None] & columns) if alpha else torch.zeros_like(rows[:, None] & columns)
        return outer | x if beta else outer
    outer = (rows if alpha == 1 else rows * filled(alpha, rows.dtype, x))[:, None] * columns
    return outer.to(promoted(x, outer)) if beta == 0 else outer + (x if beta == 1 else x * filled(beta, x.dtype, x))


@_decomposes(aten.linspace.Tensor_Tensor)
@_decomposes(aten.linspace.Tensor_Scalar)
@_decomposes(aten.linspace.Scalar_Tensor)
def _linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Of integers, its ends are integers first, and its steps in f64."""
    like = start if isinstance(start, Tensor) else end
    dtype = dtype or torch.get_default_dtype()
    wide = torch.float64 if not dtype.is_floating_point else torch.float32 if dtype in HALF else dtype

    def element(value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(dtype).to(wide)
        return filled(value if dtype.is_floating_point else int(value), dtype, like).to(wide)

    first, last = element(start), element(end)
    place = torch.arange(steps, device=like.device)
    step = (last - first) / max(steps - 1, 1)
    up, down = first + step * place.to(wide), last - step * (steps - 1 - place).to(wide)
    return torch.where(place < (1 if steps == 1 else steps // 2), up, down).to(dtype)


@_decomposes(aten._int_mm.default)
def _int_mm(x: Tensor, y: Tensor) -> Tensor:
    return aten.mm.default(x.to(torch.int32), y.to(torch.int32))


@_decomposes(aten.conv_tbc.default)
def _conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """x [time, batch, channels], weight [width, channels, outputs]."""
    out = aten.convolution.default(
        x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, [1], [pad], [1], False, [0], 1
    )  # fmt: skip
    return out.permute(2, 0, 1)
