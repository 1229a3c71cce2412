"""Decompositions of ops that compare every element with every other: places in sorted rows, distances, medians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

SEARCH: dict[Any, Callable] = {}


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        SEARCH[op] = function
        return function

    return add


@_decomposes(aten.searchsorted.Tensor)
def _searchsorted(
    row: Tensor, x: Tensor, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """How many elements of a sorted row are not above (`right`) or are below each of x; NaN is above all."""
    if sorter is not None:
        row = torch.gather(row, -1, sorter)
    values = x.unsqueeze(-1)
    row = row if row.dim() == 1 else row.unsqueeze(-2)
    above = row > values if right or side == "right" else row >= values
    if row.is_floating_point() and values.is_floating_point():  # sorts put NaN last
        above = above | (torch.isnan(row) & ~torch.isnan(values))
    return torch.logical_not(above).sum(-1, dtype=torch.int64).to(torch.int32 if out_int32 else torch.int64)


@_decomposes(aten.searchsorted.Scalar)
def _searchsorted_scalar(row: Tensor, x: float, **options: Any) -> Tensor:
    return _searchsorted(row, torch.full((), x, dtype=row.dtype, device=row.device), **options)


@_decomposes(aten._cdist_forward.default)
def _cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Distances of the rows of x [.., m, d] and y [.., n, d]: [.., m, n]."""
    apart = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return apart.ceil().clamp(max=1).sum(-1)
    if p == float("inf"):
        return torch.where(apart >= 0, apart, 0).amax(-1)  # PyTorch's comparisons pass over NaN here
    if p == 1:
        return apart.sum(-1)
    return torch.sqrt((apart * apart).sum(-1)) if p == 2 else ((apart**p).sum(-1)) ** (1 / p)


def _median(x: Tensor, dim: int, keepdim: bool, skip_nan: bool) -> tuple[Tensor, Tensor]:
    ordered, index = torch.sort(x, dim)
    size = x.shape[dim]
    missing = (
        torch.isnan(x).sum(dim, keepdim=True) if x.is_floating_point() else torch.zeros_like(index.narrow(dim, 0, 1))
    )
    if skip_nan:
        place = ((size - missing - 1).clamp(min=0)) // 2
    else:  # the first NaN, where there is one
        place = torch.where(missing > 0, size - missing, (size - 1) // 2)
    found = torch.gather(ordered, dim, place), torch.gather(index, dim, place)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


@_decomposes(aten.median.dim)
def _median_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _median(x, dim, keepdim, False)


@_decomposes(aten.median.default)
def _median_all(x: Tensor) -> Tensor:
    return _median(x.reshape(-1), 0, False, False)[0]


@_decomposes(aten.nanmedian.dim)
def _nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _median(x, dim, keepdim, True)


@_decomposes(aten.nanmedian.default)
def _nanmedian_all(x: Tensor) -> Tensor:
    return _median(x.reshape(-1), 0, False, True)[0]


@_decomposes(aten.kthvalue.default)
def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The element that a stable sort has at place `k - 1`; NaN is above all."""
    row = x.reshape(1) if x.dim() == 0 else x
    ordered, index = torch.sort(row, dim=dim, stable=True)
    values, indices = ordered.narrow(dim, k - 1, 1), index.narrow(dim, k - 1, 1)
    if x.dim() == 0:
        return values.reshape(()), indices.reshape(())
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


@_decomposes(aten.dist.default)
def _dist(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    return torch.linalg.vector_norm(x - y, p)


@_decomposes(aten.hypot.default)
def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """Without overflow of the squares; infinite where a side is, even beside NaN."""
    dtype = torch.result_type(x, y)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    x, y = x.to(dtype).to(wide).abs(), y.to(dtype).to(wide).abs()
    long, short = torch.maximum(x, y), torch.minimum(x, y)
    ratio = torch.where(long > 0, short / torch.where(long > 0, long, 1), 0)
    out = torch.where(long != long, long, long * torch.sqrt(1 + ratio * ratio))
    infinite = (x == float("inf")) | (y == float("inf"))
    return torch.where(infinite, float("inf"), out).to(dtype)
