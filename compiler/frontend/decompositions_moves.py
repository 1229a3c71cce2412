"""Decompositions of ops that move elements and compute nothing: rolls, pads, and views by strides.

Sizes are static here, so that bounds and signs are resolved before torch-mlir sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.scatter import scatter
from mlirc.frontend.strides import dense_order

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
    order, offset = dense_order(x.shape, x.stride()), _offset(x, storage_offset)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if order is None or not math.prod(size) or offset < 0 or last >= x.numel():
        return NotImplemented
    flat = x.permute(order).reshape(-1)
    if (dense := dense_order(size, stride)) is not None:
        back = [dense.index(d) for d in range(len(size))]
        return aten.slice.Tensor(flat, 0, offset, last + 1).reshape([size[d] for d in dense]).permute(back)
    return aten.index.Tensor(flat, [_strided_places(size, stride, offset, x.device)])


@_decomposes(aten.as_strided_scatter.default)
def _as_strided_scatter(
    x: Tensor, src: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Tensor:
    order, offset = dense_order(x.shape, x.stride()), _offset(x, storage_offset)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if order is None or offset < 0 or last >= x.numel():
        raise MlircError("writes by strides into a tensor with gaps or beyond its elements: write to slices of it")
    moved = x.permute(order)
    places = _strided_places(size, stride, offset, x.device)
    flat = scatter(moved.reshape(-1), {0: places.expand(size).reshape(-1)}, src.reshape(-1))
    back = sorted(range(x.dim()), key=order.__getitem__)
    return flat.reshape(moved.shape).permute(back)


def _offset(x: Tensor, storage_offset: int | None) -> int:
    return 0 if storage_offset is None else storage_offset - int(x.storage_offset())


def _strided_places(size: list[int], stride: list[int], offset: int, device: torch.device) -> Tensor:
    """The numbers of a strided view's elements in the storage."""
    place = torch.full((1,) * len(size), offset, dtype=torch.int64, device=device)
    for i, (n, step) in enumerate(zip(size, stride, strict=True)):
        along = torch.arange(n, device=device) * step
        place = place + along.reshape([-1 if d == i else 1 for d in range(len(size))])
    return place


@_decomposes(aten.gather.default)
def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """torch-mlir's takes no tensors without a dimension."""
    if x.dim() and index.dim():
        return NotImplemented
    row, at = (t.reshape(1) if t.dim() == 0 else t for t in (x, index))
    return aten.gather.default(row, 0, at).reshape(index.shape)


@_decomposes(aten.take.default)
def _take(x: Tensor, index: Tensor) -> Tensor:
    """PyTorch's own asks for the value of an index without a dimension. One below 0 counts from the end."""
    from_front = torch.where(index < 0, index + x.numel(), index)
    return aten.index_select.default(x.reshape(-1), 0, from_front.reshape(-1)).reshape(index.shape)


@_decomposes(aten.index.Tensor)
def _index(x: Tensor, indices: list[Tensor | None]) -> Tensor:
    """torch-mlir does not come to an end where an index has no dimension: here all have as many."""
    given = [i for i in indices if i is not None]
    if all(i.dim() for i in given):
        return NotImplemented
    rank = max(i.dim() for i in given)
    dims = [d for d, i in enumerate(indices) if i is not None]
    first = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    ones = [1] * max(rank, 1)
    same = [i.reshape(ones) if i is not None and i.dim() == 0 else i for i in indices]
    found = aten.index.Tensor(x, same)
    return found if rank else found.squeeze(first)


@_decomposes(aten.select_scatter.default)
def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """x with `src` at one index of a dimension, which may be a number that a tensor holds, counted from the end too."""
    dim, size = dim % x.dim(), x.shape[dim]
    place = torch.arange(size, device=x.device).reshape([-1 if d == dim else 1 for d in range(x.dim())])
    at = place == index % size if isinstance(index, int) else (place == index) | (place == index + size)
    return torch.where(at, src.to(x.dtype).unsqueeze(dim).expand(x.shape), x)
