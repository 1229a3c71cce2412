"""Sorts and what is made of them (top-k, k-th values) as one op, `mlirc::sort`, which stays whole until a schedule
takes it apart (`mlirc.dialects.sort`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.dialects.sort import SORT as OP
from mlirc.frontend.amax import builtin_tensor
from mlirc.mlir import ir

aten = torch.ops.aten
Tensor = torch.Tensor

SORTED = "torch.mlirc.sort"
SORTS: dict[Any, Callable] = {}

PART = 4096  # elements of a row, at least, that are worth a block of their own where few are looked for
BLOCKS = 128  # that keep a GPU busy
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


@torch.library.custom_op("mlirc::sort", mutates_args=())
def sort_op(x: Tensor, count: int, descending: bool) -> tuple[Tensor, Tensor]:
    """The first `count` elements of each sorted row of `x` [R, N], which is of one of _TYPES, and their places (int64),
    both [R, count]; equal elements keep their order, and NaNs are the largest."""
    values, places = torch.sort(x, dim=1, descending=descending, stable=True)
    return values[:, :count].clone(), places[:, :count].clone()


@sort_op.register_fake
def _(x, count, descending):
    return x.new_empty((x.shape[0], count)), x.new_empty((x.shape[0], count), dtype=torch.int64)


def first(x: Tensor, count: int, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """The first `count` elements along a dimension of what a stable sort gives, and their places."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    dim = dim % x.dim()
    shape = [count if d == dim else n for d, n in enumerate(x.shape)]
    if not x.numel() or not count:
        return x.new_empty(shape), torch.empty(shape, dtype=torch.int64, device=x.device)
    wide = x if x.dtype in _TYPES else x.to(torch.int32)
    rows = wide.movedim(dim, -1)
    outer = rows.shape[:-1]
    values, places = _in_parts(rows.reshape(-1, x.shape[dim]), count, descending)
    values, places = (t.reshape(*outer, count).movedim(-1, dim) for t in (values, places))
    return values.to(x.dtype), places


def _in_parts(x: Tensor, count: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Of few long rows first those of each part, each by a block, and then those of these: what is equal stays in its
    order."""
    rows, length = x.shape
    least = max(PART, 4 * count)
    parts = next((p for p in range(min(BLOCKS // rows, length // least), 1, -1) if length % p == 0), 1)
    if parts == 1:
        return torch.ops.mlirc.sort(x, count, descending)
    values, places = torch.ops.mlirc.sort(x.reshape(rows * parts, length // parts), count, descending)
    starts = torch.arange(0, length, length // parts, device=x.device)
    places = (places.reshape(rows, parts, count) + starts.reshape(1, parts, 1)).reshape(rows, parts * count)
    values, among = torch.ops.mlirc.sort(values.reshape(rows, parts * count), count, descending)
    return values, torch.gather(places, 1, among)


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        SORTS[op] = function
        return function

    return add


@_decomposes(aten.sort.default)
def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return first(x, x.shape[dim] if x.dim() else 1, dim, descending)


@_decomposes(aten.sort.stable)
def _stable_sort(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sort(x, dim, descending)


@_decomposes(aten.argsort.default)
def _argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return _sort(x, dim, descending)[1]


@_decomposes(aten.argsort.stable)
def _stable_argsort(x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False) -> Tensor:
    return _sort(x, dim, descending)[1]


@_decomposes(aten.topk.default)
def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return first(x, k, dim, largest)


@_decomposes(aten.kthvalue.default)
def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The element that a stable sort has at place `k - 1`; NaN is above all."""
    row = x.reshape(1) if x.dim() == 0 else x
    values, places = (t.narrow(dim, k - 1, 1) for t in first(row, k, dim, False))
    if x.dim() == 0:
        return values.reshape(()), places.reshape(())
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def lower_sort(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name SORTED, whose shapes are static and not empty."""
    count, descending = (op.operands[i].owner.attributes["value"].value for i in (1, 2))
    with op.location, ir.InsertionPoint(op):
        x = builtin_tensor(op.operands[0])
        rows, element = x.type.shape[0], x.type.element_type
        types = [ir.RankedTensorType.get([rows, count], t) for t in (element, ir.IntegerType.get_signless(64))]
        made = ir.Operation.create(OP, types, [x], {"descending": ir.BoolAttr.get(bool(descending))})
        for old, new in zip(op.results, made.results, strict=True):
            back = ir.Operation.create("torch_c.from_builtin_tensor", [old.type], [new])
            old.replace_all_uses_with(back.results[0])
        op.erase()
