"""Slices, concatenations and lookups: what begins behind a size, or counts from it, is found by computed indices."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx import Node

from mlirc.frontend.sizes.layout import Layout, Unknown, broadcast, count, padded, room, static
from mlirc.frontend.sizes.rules.masks import filled, padded_dims
from mlirc.frontend.sizes.rules.registry import Number, rule

aten = torch.ops.aten


def _expr(value: Any) -> sympy.Expr:
    return value.expr if isinstance(value, Number) else sympy.Integer(value)


def _single(w: Any, x: Node, dim: int) -> int:
    """The dimension, counted from the front; raises Unknown for one of several sizes."""
    at = dim % max(len(w.layouts[x]), 1)
    if padded(w.layouts[x][at]) and len(w.layouts[x][at]) > 1:
        raise Unknown("it goes along a dimension of several sizes")
    return at


def _index(w: Any, length: int) -> Node:
    return w.made((static(length),), aten.arange.default, length, dtype=torch.int64)


def _plus(w: Any, index: Node, expr: sympy.Expr) -> Node:
    if expr == 0:
        return index
    return w.made(w.layouts[index], aten.add.Tensor, index, w.tensor(expr))


def _picked(w: Any, x: Node, at: int, index: Node, dim: Any) -> Node:
    """x at those indices of a dimension, kept inside of it, which then is `dim`."""
    index = w.made(w.layouts[index], aten.clamp.default, index, 0, max(room(w.layouts[x][at]) - 1, 0))
    layout = (*w.layouts[x][:at], dim, *w.layouts[x][at + 1 :])
    return w.made(layout, aten.index_select.default, x, at, index)


@rule(aten.slice.Tensor)
def slice_(w: Any, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Node:
    at = _single(w, x, dim)
    old = w.layouts[x][at]
    dims = w.fresh(w.meant().shape[at])
    if isinstance(step, Number):
        raise Unknown("its step depends on sizes")
    start = 0 if start is None else start
    first, length = _expr(start), room(dims)
    if first.is_Integer and first < 0:
        first = sympy.Max(count(old) + first, 0) if padded(old) else sympy.Integer(max(room(old) + int(first), 0))
    layout = (*w.layouts[x][:at], dims, *w.layouts[x][at + 1 :])
    if first.is_Integer:
        begin = min(int(first), room(old))
        if begin == 0 and length == room(old) and step == 1:
            return w.made(layout, aten.alias.default, x)
        return w.made(layout, aten.slice.Tensor, x, at, begin, min(begin + (length - 1) * step + 1, room(old)), step)
    index = _index(w, length)
    if step != 1:
        index = w.made(w.layouts[index], aten.mul.Scalar, index, step)
    return _picked(w, x, at, _plus(w, index, first), dims)


@rule(aten.select.int)
def select(w: Any, x: Node, dim: int, index: Any) -> Node:
    at = _single(w, x, dim)
    old = w.layouts[x][at]
    rest = (*w.layouts[x][:at], *w.layouts[x][at + 1 :])
    place = _expr(index)
    if place.is_Integer and place < 0:
        place = count(old) + place
    if place.is_Integer:
        return w.made(rest, aten.select.int, x, at, int(place))
    row = w.made(((),), aten.reshape.default, w.tensor(place), [1])
    found = _picked(w, x, at, row, ())
    return w.made(rest, aten.reshape.default, found, [room(d) for d in rest])


@rule(aten.flip.default)
def flip(w: Any, x: Node, dims: list[int]) -> Node:
    rank = len(w.layouts[x])
    fixed = [d for d in dims if not padded(w.layouts[x][d % rank])]
    if fixed:
        x = w.made(w.layouts[x], aten.flip.default, x, fixed)
    for d in (_single(w, x, d) for d in dims if d not in fixed):
        old = w.layouts[x][d]
        index = w.made((static(room(old)),), aten.neg.default, _index(w, room(old)))
        x = _picked(w, x, d, _plus(w, index, count(old) - 1), old)
    return x


@rule(aten.roll.default)
def roll(w: Any, x: Node, shifts: Any, dims: Any = ()) -> Node:
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    dims = dims if isinstance(dims, (list, tuple)) else [dims]
    if not dims:
        raise Unknown("it rolls over all elements")
    for shift, dim in zip(shifts, dims, strict=True):
        d = _single(w, x, dim)
        old = w.layouts[x][d]
        if not padded(old) and not isinstance(shift, Number):
            x = w.made(w.layouts[x], aten.roll.default, x, [shift], [d])
            continue
        index = _plus(w, _index(w, room(old)), -_expr(shift))
        index = w.made(w.layouts[index], aten.remainder.Tensor, index, w.tensor(count(old)))
        x = _picked(w, x, d, index, old)
    return x


@rule(aten.cat.default)
def cat(w: Any, tensors: list[Node], dim: int = 0) -> Node:
    """Where something comes behind a symbolic size, the tensors lie one behind the other at the bound, and are looked
    up."""
    tensors = [t for t in tensors if t.meta["val"].shape != (0,)]
    at = dim % len(w.layouts[tensors[0]])
    for t in tensors:
        _single(w, t, at)
    rests = [(*w.layouts[t][:at], (), *w.layouts[t][at + 1 :]) for t in tensors]
    rest, sizes = broadcast(rests), [w.layouts[t][at] for t in tensors]
    if any(r != rest for r in rests):
        raise Unknown("it combines dimensions of different sizes")
    total = sum(room(d) for d in sizes)

    def layout(dim: Any) -> Layout:
        return (*rest[:at], dim, *rest[at + 1 :])

    result = w.fresh(w.meant().shape[at])
    if not any(padded(d) for d in sizes[:-1]):
        return w.made(layout(result), aten.cat.default, tensors, at)
    found = w.made(layout(static(total)), aten.cat.default, tensors, at)
    place = _index(w, total)
    index, end = place, sympy.Integer(0)
    for d in sizes[:-1]:  # every tensor in front moves what is behind its size back by its padding
        end = end + count(d)
        if padded(d):
            behind = w.made(w.layouts[place], aten.ge.Tensor, place, w.tensor(end))
            gap = w.made(w.layouts[place], aten.mul.Tensor, behind, w.tensor(room(d) - count(d)))
            index = w.made(w.layouts[place], aten.add.Tensor, index, gap)
    return _picked(w, found, at, index, result)


def _safe(w: Any, index: Node, size: Any) -> Node:
    """Indices as PyTorch means them (from the end where they are below 0) into a dimension of that layout, 0 where
    they are padding."""
    if index.meta["val"].dtype == torch.bool:
        raise Unknown("it selects by a mask")
    if padded(size):
        if len(size) > 1:
            raise Unknown("it goes along a dimension of several sizes")
        negative = w.made(w.layouts[index], aten.lt.Scalar, index, 0)
        wrapped = w.made(w.layouts[index], aten.add.Tensor, index, w.tensor(count(size)))
        index = w.made(w.layouts[index], aten.where.self, negative, wrapped, index)
    return filled(w, index, None, 0)


@rule(aten.embedding.default)
def embedding(w: Any, table: Node, index: Node, *args: Any) -> Node:
    if padded_dims(w, table):
        raise Unknown("its table has a symbolic size")
    return w.made(
        (*w.layouts[index], *w.layouts[table][1:]), aten.embedding.default, table, filled(w, index, None, 0), *args
    )


@rule(aten.index_select.default)
def index_select(w: Any, x: Node, dim: int, index: Node) -> Node:
    at = _single(w, x, dim)
    index = _safe(w, index, w.layouts[x][at])
    where = w.layouts[index] or ((),)
    layout = (*w.layouts[x][:at], *where, *w.layouts[x][at + 1 :])
    return w.made(layout, aten.index_select.default, x, at, index)


@rule(aten.gather.default)
def gather(w: Any, x: Node, dim: int, index: Node, **kwargs: Any) -> Node:
    at = _single(w, x, dim)
    for d, (here, there) in enumerate(zip(w.layouts[x], w.layouts[index], strict=True)):
        if d != at and here != there and (padded(here) and there != ()):
            raise Unknown("it combines dimensions of different sizes")
    return w.made(w.layouts[index], aten.gather.default, x, at, _safe(w, index, w.layouts[x][at]))


@rule(aten.index.Tensor)
def index(w: Any, x: Node, indices: list[Node | None]) -> Node:
    old = w.layouts[x]
    indices = [*indices, *[None] * (len(old) - len(indices))]
    used = [d for d, i in enumerate(indices) if i is not None]
    safe = [i if i is None else _safe(w, i, old[d]) for d, i in enumerate(indices)]
    where = broadcast([w.layouts[i] for i in safe if i is not None])
    kept = [old[d] for d in range(len(old)) if d not in used]
    together = used == list(range(used[0], used[-1] + 1))
    first = used[0] if together else 0
    return w.made((*kept[:first], *where, *kept[first:]), aten.index.Tensor, x, safe)
