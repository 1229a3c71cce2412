"""Decompositions of the copying forms of views (`aten.permute_copy` and its like): the view, and a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
_NAMES = (
    "alias", "as_strided", "detach", "diagonal", "expand", "narrow", "permute", "select", "slice", "split",
    "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view", "view_as_real",
)  # fmt: skip


def _copying(view: Any) -> Callable:
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        views = view(*args, **kwargs)
        if isinstance(views, torch.Tensor):
            return views.clone(memory_format=torch.contiguous_format)
        return [v.clone(memory_format=torch.contiguous_format) for v in views]

    return decomposed


def _decompositions() -> dict[Any, Callable]:
    table = {}
    for name in _NAMES:
        view, copy = getattr(aten, name), getattr(aten, f"{name}_copy")
        for overload in set(copy.overloads()) & set(view.overloads()):
            table[getattr(copy, overload)] = _copying(getattr(view, overload))
    return table


COPIES = _decompositions()
