"""Decompositions of ops that write at indices: all become `mlirc::scatter`, or a choice per element.

An index that counts from the end is resolved where PyTorch takes such; elsewhere it is an error there, and its slice is
left out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.scatter import scatter, scatter_elements

aten = torch.ops.aten
Tensor = torch.Tensor

SCATTERS: dict[Any, Callable] = {}
_MASKS = (torch.bool, torch.uint8)
_COMBINE = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def _decomposes(*ops: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        for op in ops:
            SCATTERS[op] = function
        return function

    return add


@_decomposes(aten.index_put.default, aten._index_put_impl.default, aten._unsafe_index_put.default)
def _index_put(
    x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    """A mask as an index is a choice per element: true element number n takes row n of `values`.

    With other indices beside it, a mask is the list of its true elements, whose length the others or `values` tell.
    """
    given = [i for i in indices if i is not None]
    masks = [i for i in given if i.dtype in _MASKS]
    if len(given) == 1 and masks:
        dim = next(d for d, i in enumerate(indices) if i is not None)
        return _put_at_mask(x, dim, masks[0].to(torch.bool), values, accumulate)
    shapes = [i.shape for i in given if i.dtype not in _MASKS]
    shape = torch.broadcast_shapes(*shapes) if shapes else values.shape[:1]
    if masks and (len(shape) != 1 or (not shapes and any(i is None for i in indices))):
        raise MlircError(
            "how many elements a mask chooses is not known before the model runs: use torch.where, or no other index "
            "beside the mask"
        )
    found: list[Tensor | None] = []
    for index in indices:
        mask = index is not None and index.dtype in _MASKS
        found += _true_places(index.to(torch.bool), shape[0]) if mask else [index]  # type: ignore[arg-type, union-attr]
    return _put(x, found, values, accumulate)


def _put(x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool) -> Tensor:
    """`index_put` at integers alone: x with the indices' common shape in place of their dimensions, in front of the
    others where they are not next to each other, is what `values` broadcasts to."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    if not dims:
        whole = values.to(x.dtype).expand(x.shape)
        return x + whole if accumulate else whole.clone()
    given = torch.broadcast_tensors(*[i for i in indices if i is not None])
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    if not x.numel() or not given[0].numel():
        return x.clone()
    rank = given[0].dim()
    updates = values.expand([*rest[:first], *given[0].shape, *rest[first:]])
    updates = updates.movedim(list(range(first, first + rank)), list(range(rank))) if first and rank else updates
    return scatter(
        x, {d: from_front(i, x.shape[d]) for d, i in zip(dims, given, strict=True)}, updates, _add(accumulate)
    )


def _add(accumulate: bool) -> str:
    return "add" if accumulate else "set"


def from_front(index: Tensor, size: int) -> Tensor:
    """Indices of which negative ones count from the end of a dimension, as those that do not."""
    return torch.where(index < 0, index + size, index)


def _put_at_mask(x: Tensor, dim: int, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    before, after = list(x.shape[:dim]), list(x.shape[dim + mask.dim() :])
    whole = mask.reshape([1] * dim + list(mask.shape) + [1] * len(after))
    if values.numel() == 1:
        chosen = values.reshape([])
    else:
        count = values.shape[-len(after) - 1] if values.dim() > len(after) else 1
        rows = values.expand([*before, count, *after])
        if not count or not x.numel():
            return x.clone()
        place = _place_among_true(mask, count)
        chosen = aten.index_select.default(rows, dim, place.reshape(-1)).reshape(x.shape)
    chosen = chosen.to(x.dtype)
    return torch.where(whole, x + chosen if accumulate else chosen, x)


def _place_among_true(mask: Tensor, count: int) -> Tensor:
    """How many true elements stand before each one, at most count - 1: with fewer than the true ones, PyTorch raises an
    error."""
    place = torch.cumsum(mask.reshape(-1).to(torch.int64), 0) - 1
    return torch.where(mask.reshape(-1), place.clamp(0, count - 1), 0).reshape(mask.shape)


def _true_places(mask: Tensor, count: int) -> list[Tensor]:
    """The indices of the first `count` true elements of a mask, a vector per dimension."""
    seen = torch.cumsum(mask.reshape(-1).to(torch.int64), 0)
    place = (seen[None, :] <= torch.arange(count, device=mask.device)[:, None]).sum(1)
    found = []
    for size in reversed(mask.shape):
        found.append(place % size)
        place = place // size
    return found[::-1]


@_decomposes(aten.masked_scatter.default)
def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """True element number n of the mask takes element n of the source, in their order in memory."""
    x, mask = torch.broadcast_tensors(x, mask.to(torch.bool))
    if not x.numel() or not source.numel():
        return x.clone()
    chosen = aten.index_select.default(source.reshape(-1), 0, _place_among_true(mask, source.numel()).reshape(-1))
    return torch.where(mask, chosen.reshape(x.shape).to(x.dtype), x)


@_decomposes(aten.put.default)
def _put_flat(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = x.reshape(-1)
    places = {0: from_front(index.reshape(-1), flat.shape[0])}
    return scatter(flat, places, source.reshape(-1), _add(accumulate)).reshape(x.shape)


# -- slices along a dimension


def _slices(x: Tensor, dim: int, index: Tensor, source: Tensor, combine: str) -> Tensor:
    """x with slice n of the source along `dim` at `index`[n]."""
    whole = x.reshape(1) if x.dim() == 0 else x
    dim, source = dim % whole.dim(), source.reshape(1) if source.dim() == 0 else source
    return scatter(whole, {dim: index.reshape(-1)}, source.movedim(dim, 0), combine).reshape(x.shape)


@_decomposes(aten.index_add.default)
def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    return _slices(x, dim, index, source if alpha == 1 else (source * alpha).to(x.dtype), "add")


@_decomposes(aten.index_copy.default)
def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _slices(x, dim, index, source, "set")


@_decomposes(aten.index_fill.int_Tensor)
def _index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    whole = x.reshape(1) if x.dim() == 0 else x
    dim, shape = dim % whole.dim(), list(whole.shape)
    shape[dim] = index.numel()
    filled = value.to(x.dtype).expand(shape)
    return _slices(x, dim, from_front(index, whole.shape[dim]), filled, "set")


@_decomposes(aten.index_fill.int_Scalar)
def _index_fill_scalar(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    return _index_fill(x, dim, index, torch.full((), value, dtype=x.dtype, device=x.device))


@_decomposes(aten.index_reduce.default)
def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    def write(target: Tensor, values: Tensor, combine: str) -> Tensor:
        return _slices(target, dim, index, values, combine)

    return _reduced(x, source, reduce, include_self, write)


# -- elements along a dimension


def _elements(x: Tensor, dim: int, index: Tensor, source: Tensor, combine: str) -> Tensor:
    """x with each element of the source at the same place, but for `dim`, where it is at the index's element; the
    source may be larger than the index."""
    whole = x.reshape(1) if x.dim() == 0 else x
    index, source = (t.reshape(1) if t.dim() == 0 else t for t in (index, source))
    if not index.numel():
        return x.clone()
    for d, n in enumerate(index.shape):
        source = aten.slice.Tensor(source, d, 0, n)
    return scatter_elements(whole, dim % whole.dim(), index, source, combine).reshape(x.shape)


@_decomposes(aten.scatter.src)
def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _elements(x, dim, index, src, "set")


@_decomposes(aten.scatter.value)
def _scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    return _elements(x, dim, index, _filled(x, index, value), "set")


@_decomposes(aten.scatter.reduce)
def _scatter_and(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    return _elements(x, dim, index, src, _COMBINE[reduce])


@_decomposes(aten.scatter.value_reduce)
def _scatter_value_and(x: Tensor, dim: int, index: Tensor, value: float, *, reduce: str) -> Tensor:
    return _elements(x, dim, index, _filled(x, index, value), _COMBINE[reduce])


def _filled(x: Tensor, index: Tensor, value: float) -> Tensor:
    return torch.full((), value, dtype=x.dtype, device=x.device).expand(index.shape)


@_decomposes(aten.scatter_add.default)
def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _elements(x, dim, index, src, "add")


@_decomposes(aten.scatter_reduce.two)
def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    def write(target: Tensor, values: Tensor, combine: str) -> Tensor:
        return _elements(target, dim, index, values, combine)

    return _reduced(x, src, reduce, include_self, write)


def _reduced(
    x: Tensor, source: Tensor, reduce: str, include_self: bool, write: Callable[[Tensor, Tensor, str], Tensor]
) -> Tensor:
    """`write` with the combination that `reduce` names. What is written to counts as the reduction's neutral element
    unless `include_self`; the mean of integers is rounded down."""
    half = x.dtype.is_floating_point and x.dtype.itemsize < 4
    total = x.float() if half and _COMBINE[reduce] in ("add", "mul") else x
    source = source.to(total.dtype)
    if not include_self:
        start = torch.full((), neutral(x.dtype, _COMBINE[reduce]), dtype=total.dtype, device=x.device)
        total = write(total, start.expand(source.shape), "set")
    total = write(total, source, _COMBINE[reduce])
    if reduce == "mean":
        counted = torch.int32 if x.dtype == torch.bool else total.dtype
        count = torch.full(x.shape, int(include_self), dtype=counted, device=x.device)
        count = write(count, torch.ones((), dtype=counted, device=x.device).expand(source.shape), "add").clamp(min=1)
        total = total / count if total.is_floating_point() else torch.div(total, count, rounding_mode="floor")
    return total.to(x.dtype)


def neutral(dtype: torch.dtype, combine: str) -> float | int | bool:
    """The element that changes nothing in a combination of `mlirc::scatter`."""
    if combine in ("add", "mul"):
        return 0 if combine == "add" else 1
    lowest = combine == "max"
    if dtype == torch.bool:
        return not lowest
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    info = torch.iinfo(dtype)
    return info.min if lowest else info.max


# -- gradients


@_decomposes(aten.unfold_backward.default)
def _unfold_backward(grad: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """Element s of window w is added at w * step + s. grad: windows along `dim`, their elements along the last."""
    out = torch.zeros(input_sizes, dtype=grad.dtype, device=grad.device)
    if not input_sizes:
        return out + grad.reshape([])
    dim %= len(input_sizes)
    windows = grad.movedim((dim, -1), (0, 1))
    along = torch.arange(grad.shape[dim], device=grad.device)[:, None] * step
    places = along + torch.arange(size, device=grad.device)
    return scatter(out, {dim: places}, windows.reshape(-1, *windows.shape[2:]), "add")
