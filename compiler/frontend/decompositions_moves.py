"""Decompositions of ops that move elements and compute nothing: rolls, pads, and views by strides.

Sizes are static here, so that bounds and signs are resolved before torch-mlir sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

MOVES: dict[Any, Callable] = {}


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        MOVES[op] = function
        return function

    return add


@_decomposes(aten.roll.default)
def _roll(x: Tensor, shifts: list[int], dims: list[int] = ()) -> Tensor:  # type: ignore[assignment]
    """Two slices, each of static size, joined; torch-mlir's own lowering computes the sizes at run time."""
    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        cut = (size - shift) % size if size else 0
        if cut:
            x = aten.cat.default(
                [aten.slice.Tensor(x, dim, cut, size), aten.slice.Tensor(x, dim, 0, cut)], dim % x.dim()
            )
    return x.clone()


@_decomposes(aten._pad_circular.default)
def _pad_circular(x: Tensor, pad: list[int]) -> Tensor:
    """`pad` counts from the last dimension; a negative entry crops, and what is left wraps around, as in PyTorch."""
    for i in range(len(pad) // 2):
        dim, (before, after) = x.dim() - 1 - i, pad[2 * i : 2 * i + 2]
        if before < 0 or after < 0:
            x = aten.slice.Tensor(x, dim, max(0, -before), x.shape[dim] - max(0, -after))
        size = x.shape[dim]
        ends = [aten.slice.Tensor(x, dim, size - before, size)] if before > 0 else []
        starts = [aten.slice.Tensor(x, dim, 0, after)] if after > 0 else []
        x = aten.cat.default([*ends, x, *starts], dim) if ends or starts else x
    return x.clone()


@_decomposes(aten.diagonal_scatter.default)
def _diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A choice by row and column: `src` has a number per row that the diagonal meets, and is padded to all of them."""
    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = moved.shape[-2:]
    before = max(-offset, 0)
    padded = aten.constant_pad_nd.default(src, [before, rows - before - src.shape[-1]], 0)
    row, column = (torch.arange(n, device=x.device) for n in (rows, columns))
    met = column == (row + offset).unsqueeze(1)
    return torch.where(met, padded.unsqueeze(-1), moved).movedim((-2, -1), (dim1, dim2))


@_decomposes(aten.pad.default)
def _pad(x: Tensor, pad: list[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """PyTorch's own circular padding writes into an empty tensor, which has no functional form here.

    The other modes are dispatched as in PyTorch: torch-mlir would have to get the signs right once more.
    """
    if mode == "circular":
        return _pad_circular(x, pad)
    if mode == "constant":
        fill = 0.0 if value is None else value
        out = _constant_pad(x, pad, fill)
        return aten.constant_pad_nd.default(x, pad, fill) if out is NotImplemented else out
    name = {"reflect": "reflection_pad", "replicate": "replication_pad"}[mode]
    return getattr(aten, f"{name}{len(pad) // 2}d").default(x, pad)


@_decomposes(aten.constant_pad_nd.default)
def _constant_pad(x: Tensor, pad: list[int], value: float = 0) -> Tensor:
    """Crops where `pad` is negative, then pads: torch-mlir takes a pad that leaves the sizes alone for the identity."""
    if all(n >= 0 for n in pad):
        return NotImplemented
    for i in range(len(pad) // 2):
        dim, (before, after) = x.dim() - 1 - i, pad[2 * i : 2 * i + 2]
        start, end = max(0, -before), x.shape[dim] - max(0, -after)
        if start > end:
            raise ValueError(f"a padding of ({before}, {after}) takes more than the {x.shape[dim]} elements there are")
        x = aten.slice.Tensor(x, dim, start, end)
    pad = [max(0, n) for n in pad]
    return aten.constant_pad_nd.default(x, pad, value) if any(pad) else x.clone()


@_decomposes(aten.as_strided.default)
def _as_strided(x: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Tensor:
    """A lookup in the elements of x in the order of its storage: later steps know no strides, and may change them."""
    order = sorted(range(x.dim()), key=lambda d: (x.stride(d), x.shape[d]), reverse=True)
    steps = [math.prod(x.shape[d] for d in order[i + 1 :]) for i in range(len(order))]
    dense = all(x.shape[d] == 1 or x.stride(d) == step for d, step in zip(order, steps, strict=True))
    offset = 0 if storage_offset is None else storage_offset - int(x.storage_offset())
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not dense or not math.prod(size) or offset < 0 or last >= x.numel():
        return NotImplemented
    flat = x.permute(order).reshape(-1)
    if list(stride) == [math.prod(size[i + 1 :]) for i in range(len(size))]:
        return aten.slice.Tensor(flat, 0, offset, last + 1).reshape(size)
    place = torch.full((1,) * len(size), offset, dtype=torch.int64, device=x.device)
    for i, (n, step) in enumerate(zip(size, stride, strict=True)):
        along = torch.arange(n, device=x.device) * step
        place = place + along.reshape([-1 if d == i else 1 for d in range(len(size))])
    return aten.index.Tensor(flat, [place])


@_decomposes(aten.index_put.default)
def _index_put(x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """A mask as an index is a choice per element: true element number n takes row n of `values`.

    With other indices beside it, a mask is the list of its true elements, whose length the others or `values` tell.
    """
    given = [i for i in indices if i is not None]
    masks = [i for i in given if i.dtype == torch.bool]
    if not masks:
        return NotImplemented
    if len(given) == 1:
        return _put_at_mask(x, indices.index(masks[0]), masks[0], values, accumulate)  # type: ignore[arg-type]
    shapes = [i.shape for i in given if i.dtype != torch.bool]
    shape = torch.broadcast_shapes(*shapes) if shapes else values.shape[:1]
    if len(shape) != 1 or (not shapes and any(i is None for i in indices)):
        raise ValueError("how many elements a mask chooses is not known: use torch.where, or one index that is a mask")
    found: list[Tensor | None] = []
    for index in indices:
        mask = index is not None and index.dtype == torch.bool
        found += _true_places(index, shape[0]) if mask else [index]  # type: ignore[arg-type]
    return aten.index_put.default(x, found, values, accumulate)


def _put_at_mask(x: Tensor, dim: int, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    before, after = list(x.shape[:dim]), list(x.shape[dim + mask.dim() :])
    whole = mask.reshape([1] * dim + list(mask.shape) + [1] * len(after))
    if values.numel() == 1:
        chosen = values.reshape([])
    else:
        count = values.shape[-len(after) - 1] if values.dim() > len(after) else 1
        rows = values.expand([*before, count, *after])
        place = (torch.cumsum(mask.reshape(-1).to(torch.int64), 0) - 1).clamp(min=0)
        # Rows that no element takes: with fewer of them than true elements, PyTorch raises an error.
        place = torch.where(mask.reshape(-1), place, 0) if count > 1 else torch.zeros_like(place)
        chosen = aten.index_select.default(rows, dim, place).reshape(x.shape) if count else x
    chosen = chosen.to(x.dtype)
    return torch.where(whole, x + chosen if accumulate else chosen, x)


def _true_places(mask: Tensor, count: int) -> list[Tensor]:
    """The indices of the first `count` true elements of a mask, a vector per dimension."""
    seen = torch.cumsum(mask.reshape(-1).to(torch.int64), 0)
    place = (seen[None, :] <= torch.arange(count, device=mask.device)[:, None]).sum(1)
    found = []
    for size in reversed(mask.shape):
        found.append(place % size)
        place = place // size
    return found[::-1]
