"""Decompositions of scans (cumulative sums, products, extrema) to the ops of `prefix_scan.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.frontend import prefix_scan, scan  # noqa: F401  the ops
from mlirc.frontend.linear_recurrences import straighten

aten = torch.ops.aten
Tensor = torch.Tensor

SCANS: dict[Any, Callable] = {torch.ops.mlirc.scan.default: straighten}

PART = 4096  # elements of a row that are worth a block of their own
BLOCKS = 128  # that keep a GPU busy
ALIGNED = 8  # elements whose rows stay aligned
_JOINS: dict[str, tuple[int, Callable]] = {
    "add": (0, lambda x, dim: aten.sum.dim_IntList(x, [dim])),
    "mul": (1, aten.prod.dim_int),
}
_HALF = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64, torch.int32, torch.int64)


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        SCANS[op] = function
        return function

    return add


@_decomposes(aten.cumsum.default)
def _cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _scan(aten.cumsum.default, x, dim, dtype, "add")


@_decomposes(aten.cumprod.default)
def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _scan(aten.cumprod.default, x, dim, dtype, "mul")


def _scan(op: Any, x: Tensor, dim: int, dtype: torch.dtype | None, combine: str) -> Any:
    """16-bit floats are summed up in f32 and rounded once, as PyTorch does on a GPU; integers in int64."""
    wanted = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    if wanted.is_complex:
        return op(x.to(wanted, copy=True), dim) if dtype is not None else NotImplemented
    x = x.to(wanted)
    if _is_copy(x, dim):
        return x.clone()
    wide = torch.float32 if wanted in _HALF else wanted if wanted.is_floating_point else torch.int64
    return _in_parts(x.to(wide), dim % x.dim(), combine).to(wanted)


def _in_parts(x: Tensor, dim: int, combine: str) -> Tensor:
    """A scan. Few long columns are cut into parts, of which each begins with what all before it come to: so that there
    are blocks enough to keep a GPU busy. Their elements are read twice, but written once."""
    length, shape = x.shape[dim], list(x.shape)
    rows = x.numel() // length
    count = min(BLOCKS // rows, length // PART)
    if count < 2 or dim == x.dim() - 1:
        return torch.ops.mlirc.prefix_scan(x, dim, combine)
    part = -(-length // (count * ALIGNED)) * ALIGNED
    count = -(-length // part)
    neutral, join = _JOINS[combine]
    padding = [0, 0] * (x.dim() - 1 - dim) + [0, count * part - length]
    padded = aten.constant_pad_nd.default(x, padding, neutral) if padding[-1] else x
    parts = padded.reshape(*shape[:dim], count, part, *shape[dim + 1 :])
    totals = join(aten.slice.Tensor(parts, dim, 0, count - 1), dim + 1)
    padding[-2:] = [1, 0]
    before = torch.ops.mlirc.prefix_scan(aten.constant_pad_nd.default(totals, padding, neutral), dim, combine)
    out = torch.ops.mlirc.prefix_scan(parts, dim + 1, combine, before)
    return aten.slice.Tensor(out.reshape(*shape[:dim], count * part, *shape[dim + 1 :]), dim, 0, length)


def _is_copy(x: Tensor, dim: int) -> bool:
    return x.dim() == 0 or x.shape[dim] == 1 or not x.numel()


@_decomposes(aten.cummax.default)
def _cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremum(x, dim, True)


@_decomposes(aten.cummin.default)
def _cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremum(x, dim, False)


def _extremum(x: Tensor, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Values and the places of the last of equal ones; from a NaN on, NaN, as in PyTorch."""
    if _is_copy(x, dim):
        return x.clone(), torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    wide = torch.float32 if x.dtype in _HALF else x.dtype if x.dtype in _WIDE else torch.int32
    values, places = torch.ops.mlirc.prefix_extremum(x.to(wide), dim % x.dim(), largest)
    return values.to(x.dtype), places


@_decomposes(aten.logcumsumexp.default)
def _logcumsumexp(x: Tensor, dim: int) -> Any:
    if x.dtype.is_complex:
        return NotImplemented
    if _is_copy(x, dim):
        return x.clone()
    wide = x.float() if x.dtype in _HALF else x
    return torch.ops.mlirc.prefix_scan(wide, dim % x.dim(), "logaddexp").to(x.dtype)
