"""Decompositions of loss functions where PyTorch's own are missing, or are not what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

LOSSES: dict[Any, Callable] = {}


def _multilabel_margin(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Only the targets before the first negative one count; PyTorch's decomposition sums over the others, too.

    x [N, C] or [C]; target the same, of class numbers; reduction 0 none, 1 mean, 2 sum.
    """
    scores, classes = torch.atleast_2d(x), torch.atleast_2d(target)
    count = scores.shape[1]
    place = torch.arange(count, device=x.device)
    end = aten.amin.default(torch.where(classes < 0, place, count), [-1], True)
    counted = place < end
    wanted = torch.where(counted, classes, 0)
    is_target = ((place[:, None] == wanted[:, None, :]) & counted[:, None, :]).any(-1)
    # [N, C, target]: the margin by which a class that is none of the targets should stay below a target
    margin = (1 - scores.gather(-1, wanted)[:, None, :] + scores[:, :, None]).clamp_min(0)
    out = torch.where(counted[:, None, :] & ~is_target[:, :, None], margin, 0).sum([1, 2]) / count
    out = out.sum() if reduction == 2 else out.mean() if reduction == 1 else out.reshape(target.shape[:-1])
    return out.to(x.dtype), is_target.to(x.dtype).reshape(target.shape)


LOSSES[aten.multilabel_margin_loss_forward.default] = _multilabel_margin
