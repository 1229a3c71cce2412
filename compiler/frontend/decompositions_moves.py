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
    """`x[mask] = value` with one value for all is a choice per element; other masks would count their elements."""
    if len(indices) != 1 or indices[0] is None or indices[0].dtype != torch.bool or values.numel() != 1 or accumulate:
        return NotImplemented
    mask = indices[0]
    mask = mask.reshape(list(mask.shape) + [1] * (x.dim() - mask.dim()))
    return aten.where.self(mask, values.reshape([]), x)
