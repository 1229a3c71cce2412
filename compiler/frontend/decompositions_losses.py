"""Decompositions of loss functions where PyTorch's own are missing, or are not what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.frontend.opmath import HALF, promoted

aten = torch.ops.aten
Tensor = torch.Tensor

LOSSES: dict[Any, Callable] = {}


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        LOSSES[op] = function
        return function

    return add


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    """reduction: 0 none, 1 mean, 2 sum."""
    return loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss


def _distance(x: Tensor, y: Tensor) -> tuple[Tensor, torch.dtype]:
    """|x - y|, in f32 for 16-bit floats, and the dtype to which PyTorch promotes them."""
    dtype = promoted(x, y)
    wide = torch.float32 if dtype in HALF else dtype
    return torch.abs(x.to(dtype).to(wide) - y.to(dtype).to(wide)), dtype


@_decomposes(aten.mse_loss.default)
def _mse_loss(x: Tensor, y: Tensor, reduction: int = 1) -> Tensor:
    """PyTorch rounds the difference to 16 bits, and then its square."""
    difference = x - y
    return _reduced(difference * difference, reduction)


@_decomposes(aten.huber_loss.default)
def _huber_loss(x: Tensor, y: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """The result has the dtype of x, whatever y has."""
    z, _ = _distance(x, y)
    loss = torch.where(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta))
    return _reduced(loss.to(x.dtype), reduction)


@_decomposes(aten.smooth_l1_loss.default)
def _smooth_l1_loss(x: Tensor, y: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    z, dtype = _distance(x, y)
    loss = torch.where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta) if beta else z
    return _reduced(loss.to(dtype), reduction)


@_decomposes(aten.soft_margin_loss.default)
def _soft_margin_loss(x: Tensor, y: Tensor, reduction: int = 1) -> Tensor:
    """Every step, and the result, has the dtype of x."""
    product = (-x * y).to(x.dtype)
    return _reduced(torch.log1p(torch.exp(product)), reduction)


@_decomposes(aten.binary_cross_entropy.default)
def _binary_cross_entropy(x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """Logarithms are -100 at least; every step has the dtype of x."""
    loss = (y - 1) * torch.log1p(-x).clamp(min=-100) - y * torch.log(x).clamp(min=-100)
    return _reduced(loss if weight is None else loss * weight, reduction)


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
