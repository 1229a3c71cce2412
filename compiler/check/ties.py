"""Which of equal elements an operator chooses, where PyTorch leaves it open: in a check, the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class FirstOfEqual(TorchDispatchMode):
    """Inside, sorts are stable, and top-k, k-th values and medians give the index that a stable sort gives.

    Values stay as they are; PyTorch promises no order of equal elements, and its CPU and its GPU differ in it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _STABLE.get(func, func)(*args, **(kwargs or {}))


def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


def _stable_sort(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sort(x, dim, descending)


def _argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return _sort(x, dim, descending)[1]


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    if x.dim() == 0:
        return aten.topk.default(x, k, dim, largest, sorted)
    values, indices = _sort(x, dim, largest)
    return values.narrow(dim, 0, k).clone(), indices.narrow(dim, 0, k).clone()


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, indices = aten.kthvalue.default(x, k, dim, keepdim)
    return values, indices if x.dim() == 0 else _at(x, torch.tensor(k - 1), dim, keepdim)


def _median_by(op: Any, skips_nan: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        values, indices = op(x, dim, keepdim)
        if x.dim() == 0 or x.numel() == 0:
            return values, indices
        size, missing = x.shape[dim], (x != x).sum(dim, keepdim=True)
        middle = (size - missing - 1).clamp(min=0) // 2
        place = middle if skips_nan else torch.where(missing > 0, size - missing, (size - 1) // 2)
        return values, _at(x, place, dim, keepdim)

    return median


def _at(x: Tensor, place: Tensor, dim: int, keepdim: bool) -> Tensor:
    """The indices that a stable sort has at `place` of each row: its shape has size 1 in `dim`, or none at all."""
    order = _sort(x, dim)[1]
    shape = [1 if d == dim % x.dim() else n for d, n in enumerate(x.shape)]
    indices = order.gather(dim, place.expand(shape))
    return indices if keepdim else indices.squeeze(dim)


_STABLE: dict[Any, Callable] = {
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
    aten.argsort.default: _argsort,
    aten.topk.default: _topk,
    aten.kthvalue.default: _kthvalue,
    aten.median.dim: _median_by(aten.median.dim, False),
    aten.nanmedian.dim: _median_by(aten.nanmedian.dim, True),
}
