"""Decompositions of fake quantization: to the nearest of a few integers, halves to even, and back.

Each gives the elements and a mask of those that were within the integers' range. The scale is f32, and its inverse is
what elements are multiplied with. What is no integer of 64 bits becomes the lowest one where PyTorch's CPU converts to
such integers, which it does by channel alone: infinity is there the lowest, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

FAKE_QUANTIZATIONS: dict[Any, Callable] = {}


def _quantized(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, by_channel: bool) -> tuple[Tensor, Tensor]:
    """x, with f32 scales and zero points, integers or floats, that broadcast to it."""
    wide = x.float() if x.element_size() == 2 else x
    shift, steps = zero.to(wide.dtype), wide * (1.0 / scale)
    place = torch.round(steps + shift) if zero.is_floating_point() else torch.round(steps) + shift
    within = (place >= low) & (place <= high)
    chosen = torch.where(place > low, place, low).clamp(max=high)
    if by_channel:
        chosen = torch.where(place.abs() < 2.0**63, chosen, low)
    back = chosen - shift
    return ((back if by_channel else back.float()) * scale).to(x.dtype), within


def _per_tensor(x: Tensor, scale: float, zero: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    scales = torch.full((), scale, dtype=torch.float32, device=x.device)
    zeros = torch.full((), zero, dtype=torch.int32, device=x.device)
    return _quantized(x, scales, zeros, low, high, False)


def _tensor_qparams(
    x: Tensor, scale: Tensor, zero: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    found, within = _quantized(x, scale.reshape([]).float(), zero.reshape([]).to(torch.int32), low, high, False)
    on = enabled.reshape([]) != 0
    return torch.where(on, found, x), torch.where(on, within, True)


def _per_channel(x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    shape = [-1 if d == axis else 1 for d in range(x.dim())]
    return _quantized(x, scale.float().reshape(shape), zero.reshape(shape), low, high, True)


FAKE_QUANTIZATIONS |= {
    aten.fake_quantize_per_tensor_affine_cachemask.default: _per_tensor,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _tensor_qparams,
    aten.fake_quantize_per_channel_affine_cachemask.default: _per_channel,
}
