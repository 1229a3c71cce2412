"""Decompositions of ops that look for elements: places in sorted rows, histograms, distances, medians, modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.frontend.scatter import scatter

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
    """PyTorch's bisection, step by step, which tells what a NaN or a row that is not sorted gives. row [N], or [*B,N]
    for x [*B,M]."""
    dtype = torch.result_type(row, x)
    row, x = row.to(dtype), x.to(dtype)
    if sorter is not None:
        row = torch.gather(row, -1, sorter)
    size, right = row.shape[-1], right or side == "right"
    start = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    end = torch.full(x.shape, size, dtype=torch.int64, device=x.device)
    for _ in range(size.bit_length() if x.numel() else 0):
        middle = (start + end) >> 1
        at = middle.clamp(max=size - 1)
        found = torch.gather(row, -1, at) if row.dim() > 1 else row.index_select(0, at.reshape(-1)).reshape(x.shape)
        after = torch.logical_not(found > x if right else found >= x)
        searching = start < end
        start, end = (
            torch.where(searching & after, middle + 1, start),
            torch.where(searching & torch.logical_not(after), middle, end),
        )
    return start.to(torch.int32 if out_int32 else torch.int64)


@_decomposes(aten.searchsorted.Scalar)
def _searchsorted_scalar(row: Tensor, x: float, **options: Any) -> Tensor:
    return _searchsorted(row, torch.full((), x, dtype=torch.result_type(row, x), device=row.device), **options)


@_decomposes(aten.bucketize.Tensor)
def _bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _searchsorted(boundaries, x, out_int32=out_int32, right=right)


@_decomposes(aten.bucketize.Scalar)
def _bucketize_scalar(x: float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _searchsorted_scalar(boundaries, x, out_int32=out_int32, right=right)


@_decomposes(aten.mode.default)
def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the values that are there most often, and the last place where it is. No NaN equals another; they
    are the largest, where PyTorch's order of them depends on where they stand."""

    def place(ordered: Tensor) -> Tensor:
        size = ordered.shape[dim]
        number = torch.arange(size, device=x.device).reshape(
            [size if d == dim % x.dim() else 1 for d in range(x.dim())]
        )
        same = torch.eq(ordered.narrow(dim, 1, size - 1), ordered.narrow(dim, 0, size - 1))
        no = torch.zeros_like(ordered.narrow(dim, 0, 1), dtype=torch.bool)
        goes_on, starts = torch.cat([same, no], dim), torch.logical_not(torch.cat([no, same], dim))
        first = torch.cummax(torch.where(starts, number, 0), dim)[0]
        return torch.where(goes_on, 0, number - first + 1).argmax(dim, keepdim=True)

    return _chosen(x, dim, keepdim, place)


def _chosen(x: Tensor, dim: int, keepdim: bool, place: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The element, and its index, at a place among the sorted ones of each row."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    ordered, index = torch.sort(x, dim=dim, stable=True)
    at = place(ordered)
    found = torch.gather(ordered, dim, at), torch.gather(index, dim, at)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


@_decomposes(aten.histc.default)
def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` equal parts of [min, max], which is that of the elements if it is empty;
    others are in none."""
    flat = x.reshape(-1)
    low, high = (torch.full((), v, dtype=x.dtype, device=x.device) for v in (min, max))
    if min == max and flat.shape[0]:
        low, high = aten.amin.default(flat, [0]), aten.amax.default(flat, [0])
    empty = low == high
    low, high = torch.where(empty, low - 1, low), torch.where(empty, high + 1, high)
    bin = ((flat - low) * bins / (high - low)).to(torch.int64).clamp(0, bins - 1)
    inside = (flat >= low) & (flat <= high)
    counts = scatter(torch.zeros(bins, dtype=torch.int64, device=x.device), {0: bin}, inside, "add")
    return counts.to(x.dtype)


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
