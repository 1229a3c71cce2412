"""`x[..., i, ...] = y` with an i that is a tensor of no dimension, for torch.export: PyTorch makes a number of i first,
which an export does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


def _is_place(item: Any) -> bool:
    """Whether an index is an integer in a tensor of no dimension."""
    integer = isinstance(item, torch.Tensor) and item.dim() == 0 and not item.dtype.is_floating_point
    return integer and item.dtype != torch.bool


class ItemAssignment(TorchFunctionMode):
    """Writes such an assignment as an `index_put_`, which takes the tensor as it is. Other tensors or lists among the
    indices are PyTorch's to understand."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__setitem__:
            target, index, value = args
            items = index if isinstance(index, tuple) else (index,)
            known = all(i is None or i is ... or isinstance(i, int | slice) or _is_place(i) for i in items)
            if known and any(map(_is_place, items)):
                put(target, items, value)
                return None
        return func(*args, **(kwargs or {}))


def put(target: torch.Tensor, items: Sequence[Any], value: Any) -> None:
    """Assigns to the items of a tensor: places, integers, slices, None and an ellipsis."""
    taken = sum(item is not None and item is not ... for item in items)
    plain: list[Any] = []
    places: list[Any] = []  # for each dimension of the view that `plain` gives
    for item in items:
        if item is ...:
            plain += [slice(None)] * (target.dim() - taken)
            places += [None] * (target.dim() - taken)
        else:
            plain.append(slice(None) if _is_place(item) else item)
            places += [] if isinstance(item, int) else [item if _is_place(item) else None]
    view = target if all(isinstance(p, slice) and p == slice(None) for p in plain) else target[tuple(plain)]
    given = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=view.dtype, device=view.device)
    rank = view.dim() - sum(place is not None for place in places)
    while given.dim() > rank and given.shape[0] == 1:  # as PyTorch's assignments leave out leading ones
        given = given.squeeze(0)
    aten.index_put_.default(view, places, given.to(view.dtype))
