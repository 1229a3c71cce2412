"""Decompositions of scans (cumulative sums, products, maxima): a long row is cut into chunks that are scanned side by
side, so that one row keeps a whole GPU busy. It is also more exact: a sum's error grows with the chunk's length and
the number of chunks, not with their product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

SCANS: dict[Any, Callable] = {}

CHUNK = 64  # elements that one thread scans
ENOUGH_ROWS = 1 << 17  # with so many rows, a thread for each keeps the machine busy
_HALF = (torch.float16, torch.bfloat16)


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        SCANS[op] = function
        return function

    return add


@_decomposes(aten.cumsum.default)
def _cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _scan(aten.cumsum.default, x, dim, dtype, torch.add, 0)


@_decomposes(aten.cumprod.default)
def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _scan(aten.cumprod.default, x, dim, dtype, torch.mul, 1)


def _scan(op: Any, x: Tensor, dim: int, dtype: torch.dtype | None, join: Callable, neutral: int) -> Any:
    """16-bit floats are summed up in f32 and rounded once, as PyTorch does on a GPU."""
    wanted = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    if x.dtype in _HALF or wanted in _HALF:
        return op(x.to(wanted).float(), dim).to(wanted)
    if not wanted.is_floating_point and (wanted != torch.int64 or x.dtype != wanted):
        return op(x.to(torch.int64), dim).to(wanted)  # narrower sums wrap around as these do once they are cut
    if dtype is not None:  # torch-mlir's product takes none, not even its own
        return op(x.to(wanted, copy=True), dim)
    length = x.shape[dim] if x.dim() else 1
    if length <= 1:  # torch-mlir's scan would leave what it carries from step to step unwritten
        return x.to(wanted).clone()
    if length < 2 * CHUNK or x.numel() // length >= ENOUGH_ROWS:
        return NotImplemented
    rows = x.to(wanted).movedim(dim, -1)
    chunks = -(-length // CHUNK)
    if chunks * CHUNK != length:
        rows = aten.constant_pad_nd.default(rows, [0, chunks * CHUNK - length], neutral)
    inside = op(rows.reshape(*rows.shape[:-1], chunks, CHUNK), -1)
    totals = op(aten.select.int(inside, -1, CHUNK - 1), -1)
    # What stands before each chunk.
    before = aten.slice.Tensor(aten.constant_pad_nd.default(totals, [1, 0], neutral), -1, 0, chunks)
    out = join(inside, before.unsqueeze(-1)).reshape(*rows.shape[:-1], chunks * CHUNK)
    return aten.slice.Tensor(out, -1, 0, length).movedim(-1, dim)


@_decomposes(aten.cummax.default)
def _cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremum(x, dim, torch.ge)


@_decomposes(aten.cummin.default)
def _cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremum(x, dim, torch.le)


def _extremum(x: Tensor, dim: int, at_least: Callable) -> tuple[Tensor, Tensor]:
    """Values and the places of the last of equal ones; from a NaN on, NaN, as in PyTorch."""
    length = x.shape[dim] if x.dim() else 1
    shape = [1] * x.dim()
    if x.dim():
        shape[dim] = length
    values, places = x, torch.arange(length, device=x.device).reshape(shape).expand(x.shape)
    for step in _steps(length):
        earlier, earlier_places = (_earlier(t, dim, step, aten.slice.Tensor(t, dim, 0, step)) for t in (values, places))
        later = at_least(values, earlier)
        if x.dtype.is_floating_point:
            later = later | torch.isnan(values)
        values = torch.where(later, values, earlier)
        places = torch.where(later, places, earlier_places)
    return values.clone(), places.clone()


@_decomposes(aten.logcumsumexp.default)
def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    total = x.float() if x.dtype in _HALF else x
    length = x.shape[dim] if x.dim() else 1
    for step in _steps(length):
        nothing = torch.full_like(aten.slice.Tensor(total, dim, 0, step), -math.inf)
        earlier = _earlier(total, dim, step, nothing)
        total = torch.logaddexp(total, earlier)
    return total.to(x.dtype).clone()


def _steps(length: int) -> list[int]:
    """1, 2, 4, ...: after each step, an element stands for twice as many before it."""
    return [1 << i for i in range((length - 1).bit_length())]


def _earlier(x: Tensor, dim: int, step: int, start: Tensor) -> Tensor:
    """What stands `step` places before each element, behind `start`."""
    return aten.cat.default([start, aten.slice.Tensor(x, dim, 0, x.shape[dim] - step)], dim)
