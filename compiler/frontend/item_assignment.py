"""`x[..., i, ...] = y` and `x[i, j]` with an i that is a tensor of no dimension, for torch.export.

PyTorch makes a number of i first, which an export does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


def _is_index(item: Any) -> bool:
    """Whether an item is a tensor of integers."""
    return isinstance(item, torch.Tensor) and not item.dtype.is_floating_point and item.dtype not in _MASKS


_MASKS = (torch.bool, torch.uint8)


def _is_place(item: Any) -> bool:
    """Whether an item is an integer in a tensor of no dimension."""
    return _is_index(item) and item.dim() == 0


def _is_row_of_integers(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(type(i) is int for i in item)


class ItemAssignment(TorchFunctionMode):
    """Writes such an assignment as an `index_put_`, which takes the tensor as it is, and such a lookup beside other
    tensors as an `index`. Masks and lists but those of integers are PyTorch's to understand."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.__setitem__, torch.Tensor.__getitem__):
            target, index = args[:2]
            items = index if isinstance(index, tuple) else (index,)
            if any(map(_is_place, items)):
                items = tuple(torch.tensor(i, device=target.device) if _is_row_of_integers(i) else i for i in items)
            known = all(i is None or i is ... or isinstance(i, int | slice) or _is_index(i) for i in items)
            places = [i for i in items if _is_place(i)] if known else []
            if places and func is torch.Tensor.__setitem__:
                put(target, items, args[2])
                return None
            if places and any(_is_index(i) and i.dim() for i in items):  # the export makes `select`s of others
                return take(target, items)
        return func(*args, **(kwargs or {}))


@dataclass
class _Items:
    """What items of a tensor are: of a view of it, those at `places`, None for a dimension that stays. `rank`
    dimensions of indices stand at `at` in what Python gives and at `moved` in what `aten.index` gives."""

    view: torch.Tensor
    places: list[torch.Tensor | None]
    rank: int
    at: int
    moved: int


def _resolve(target: torch.Tensor, items: Sequence[Any]) -> _Items:
    """Integers, slices, None and an ellipsis are applied; a place goes as an integer does: before other indices."""
    taken = sum(item is not None and item is not ... for item in items)
    plain: list[Any] = []
    places: list[Any] = []  # for each dimension of the view that `plain` gives
    for item in items:
        if item is ...:
            plain += [slice(None)] * (target.dim() - taken)
            places += [None] * (target.dim() - taken)
        else:
            plain.append(slice(None) if _is_index(item) else item)
            places += [] if isinstance(item, int) else [item if _is_index(item) else None]
    view = target if all(isinstance(p, slice) and p == slice(None) for p in plain) else target[tuple(plain)]
    places += [None] * (view.dim() - len(places))
    rank = max((p.dim() for p in places if p is not None), default=0)
    at = _first_dimension([p for p in places if not _is_place(p)])
    return _Items(view, places, rank, at, _first_dimension(places))


def _first_dimension(places: Sequence[torch.Tensor | None]) -> int:
    """Where the indices' dimensions stand in the result: in front if the indices are not next to each other."""
    dims = [d for d, p in enumerate(places) if p is not None]
    return dims[0] if dims and dims[-1] - dims[0] == len(dims) - 1 else 0


def put(target: torch.Tensor, items: Sequence[Any], value: Any) -> None:
    """Assigns to the items of a tensor: integers and tensors of them, slices, None and an ellipsis."""
    to = _resolve(target, items)
    view = to.view
    given = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=view.dtype, device=view.device)
    rank = to.rank + sum(p is None for p in to.places)
    while given.dim() > rank and given.shape[0] == 1:  # as PyTorch's assignments leave out leading ones
        given = given.squeeze(0)
    if to.rank and to.at != to.moved:
        given = given.reshape([1] * (rank - given.dim()) + list(given.shape))
        given = given.movedim(_range(to.at, to.rank), _range(to.moved, to.rank))
    aten.index_put_.default(view, to.places, given.to(view.dtype))


def take(target: torch.Tensor, items: Sequence[Any]) -> torch.Tensor:
    """The items of a tensor, as `put` has them."""
    of = _resolve(target, items)
    found = aten.index.Tensor(of.view, of.places)
    return found.movedim(_range(of.moved, of.rank), _range(of.at, of.rank)) if of.at != of.moved else found


def _range(start: int, count: int) -> list[int]:
    return list(range(start, start + count))
