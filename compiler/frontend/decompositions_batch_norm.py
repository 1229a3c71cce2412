"""Decompositions of batch norm in its many forms: by running statistics, or by those of the batch; and of the gradient
of weight norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.frontend.moments import moments, rounded_moments

aten = torch.ops.aten
Tensor = torch.Tensor

BATCH_NORMS: dict[Any, Callable] = {}


def _decomposes(*ops: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        for op in ops:
            BATCH_NORMS[op] = function
        return function

    return add


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _per_channel(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape([1, -1] + [1] * (like.dim() - 2)) if like.dim() > 1 else x


def saved_statistics(x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """What a norm of `x` saves for its gradient, in the dtype that PyTorch has on the device: on a CPU the weight's."""
    if x.device.type != "cpu":
        return mean, rstd
    dtype = x.dtype if weight is None else weight.dtype
    return mean.to(dtype), rstd.to(dtype)


@_decomposes(aten._native_batch_norm_legit_no_training.default)
def _by_running_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) * factor + bias: the factor is one small kernel, and the others are read where they are used."""
    factor = torch.rsqrt(_wide(var) + eps)
    factor = factor * weight if weight is not None else factor
    out = (_wide(x) - _per_channel(_wide(mean), x)) * _per_channel(factor, x)
    out = out + _per_channel(_wide(bias), x) if bias is not None else out
    empty = x.new_empty((0,))
    return out.to(x.dtype), empty, empty


@_decomposes(aten._native_batch_norm_legit.no_stats)
def _by_batch(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """By the mean and the variance of each channel of x [N, C, ...]; also gives them, as mean and 1 / deviation."""
    wide = _wide(x)
    if x.shape[0] == 1 and x.dim() > 2:  # the norm of rows
        mean, centered, square = moments(wide, [*range(2, x.dim())])
        mean, rstd = mean.reshape(-1), torch.rsqrt(square + eps).reshape(-1)
    else:
        mean, var = _statistics(wide)
        rstd = torch.rsqrt(var + eps)
        centered = wide - _per_channel(mean, x)
    out = centered * _per_channel(rstd, x)
    out = out * _per_channel(weight, x) if weight is not None else out
    out = out + _per_channel(bias, x) if bias is not None else out
    return out.to(x.dtype), *saved_statistics(x, weight, mean, rstd)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel of x [N, C, ...]."""
    mean, square = rounded_moments(x, [0, *range(2, x.dim())])
    return mean.reshape(-1), square.reshape(-1)


@_decomposes(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """What it writes to running statistics is in the functional form only, which `decompose` asks for."""
    if training or running_mean is None or running_var is None:
        return _by_batch(x, weight, bias, True, momentum, eps)
    return _by_running_statistics(x, weight, bias, running_mean, running_var, momentum, eps)


@_decomposes(aten.batch_norm.default)
def _batch_norm_in_eval(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    if training and running_mean is not None:
        return NotImplemented  # made functional first
    return _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)[0]


@_decomposes(aten._native_batch_norm_legit_functional.default)
def _functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Also gives the new running statistics, whose variance is that of a sample."""
    out, mean, rstd = _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    if not training:
        return out, mean, rstd, running_mean.clone(), running_var.clone()
    batch_mean, var = _statistics(_wide(x))
    count = x.numel() // x.shape[1]
    new_mean = momentum * batch_mean + (1 - momentum) * running_mean
    new_var = momentum * (var * (count / (count - 1))) + (1 - momentum) * running_var
    return out, mean, rstd, new_mean.to(running_mean.dtype), new_var.to(running_var.dtype)


@_decomposes(aten._weight_norm_interface_backward.default)
def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The gradients of v and g for that of w = v g / |v|, of one shape; g and the norms have size 1 but in `dim`."""
    wide, direction = _wide(grad), _wide(v)
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    along = (wide * direction).sum(others, keepdim=True)
    size = _wide(norms)
    return (_wide(g) / size * (wide - direction * (along / (size * size)))).to(v.dtype), (along / size).to(g.dtype)


def updates_statistics(target: Any, args: tuple) -> bool:
    """Whether a call changes running statistics, of which its schema says nothing."""
    if target is aten.batch_norm.default:
        return bool(args[5]) and args[3] is not None
    return target is aten.instance_norm.default and bool(args[5]) and args[3] is not None
