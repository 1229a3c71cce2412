"""Masks of what is inside of the sizes, and padding filled with a neutral element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from mlirc.frontend.sizes.layout import Part, padded, room, static

aten = torch.ops.aten


def dims_of(rank: int, dim: Any) -> list[int]:
    """Dimensions counted from the front; None or an empty list are all of them."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    return [d % max(rank, 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim])]


def padded_dims(w: Any, node: Node, dims: Sequence[int] | None = None) -> list[int]:
    layout = w.layouts[node]
    return [d for d in (range(len(layout)) if dims is None else dims) if d < len(layout) and padded(layout[d])]


def inside(w: Any, dim: tuple[Part, ...]) -> Node:
    """Bool [n]: which indices of a dimension are inside of the sizes."""
    if dim in w.masks:
        return w.masks[dim]
    found = None
    shape = [part.bound for part in dim]
    for i, part in enumerate(dim):
        if not part.padded:
            continue
        place = w.made((static(part.bound),), aten.arange.default, part.bound)
        seen = w.made((static(part.bound),), aten.lt.Tensor, place, w.tensor(part.count))
        if len(dim) > 1:
            wide = [n if i == j else 1 for j, n in enumerate(shape)]
            seen = w.call(aten.view.default, seen, wide)
            found = seen if found is None else w.call(aten.logical_and.default, found, seen)
        else:
            found = seen
    assert found is not None
    if len(dim) > 1:
        found = w.call(aten.view.default, w.call(aten.expand.default, found, shape), [room(dim)])
    w.layouts[found] = (static(room(dim)),)
    w.masks[dim] = found
    return found


def mask(w: Any, layout: Any, dims: Sequence[int]) -> Node:
    """Bool, of the layout's rank with ones where no dimension of `dims` is: whether an element is inside of them."""
    found = None
    for d in dims:
        seen = inside(w, layout[d])
        shape = [room(layout[d]) if i == d else 1 for i in range(len(layout))]
        seen = w.made(tuple(static(n) for n in shape), aten.view.default, seen, shape)
        if found is not None:
            seen = w.call(aten.logical_and.default, found, seen)
            w.layouts[seen] = tuple(static(n) for n in seen.meta["val"].shape)
        found = seen
    assert found is not None
    return found


def filled(w: Any, node: Node, dims: Sequence[int] | None, value: Any) -> Node:
    """The tensor with that value wherever it is outside of the sizes along `dims` (None: anywhere)."""
    dims = padded_dims(w, node, dims)
    if not dims:
        return node
    layout, dtype = w.layouts[node], node.meta["val"].dtype
    other = w.made((), aten.full.default, [], value, dtype=dtype)
    return w.made(layout, aten.where.self, mask(w, layout, dims), node, other)


def lowest(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return False
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return True
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max
