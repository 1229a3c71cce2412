"""Round to nearest: a weight as numbers of few bits with scales."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mlirc.errors import MlircError
from mlirc.frontend.quantize.dequantize import dequantize
from mlirc.frontend.quantize.packing import pack
from mlirc.frontend.quantize.scheme import FP8, Scheme, groups_of


@dataclass
class Packed:
    """A packed weight [N, K]: int32 words, scales [N, groups] and, where it has any, zero points [N, groups] as whole
    numbers of the scales' dtype. `order`: int64 [K], the input that each of its columns is for; None: the input of its
    own number. `experts`: of how many weights, one below the other, each with panels of words of its own."""

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    order: torch.Tensor | None = None
    experts: int = 0

    def parts(self) -> dict[str, torch.Tensor]:
        """By the names of a layer's buffers."""
        parts = {"words": self.words, "scales": self.scales, "zeros": self.zeros, "order": self.order}
        return {f"weight_{name}": tensor for name, tensor in parts.items() if tensor is not None}

    def floats(self, scheme: Scheme, k: int) -> torch.Tensor:
        """The weight as floats [N, K], its columns in the order in which they are stored."""
        about = scheme.format.name, k, scheme.group
        if not self.experts:
            return dequantize(self.words, self.scales, self.zeros, *about)
        words, scales = (part.chunk(self.experts) for part in (self.words, self.scales))
        zeros = [None] * self.experts if self.zeros is None else self.zeros.chunk(self.experts)
        each = zip(words, scales, zeros, strict=True)  # whose words are panels of their own
        return torch.cat([dequantize(*parts, *about) for parts in each])


@dataclass
class Rounded:
    """A weight of a scheme with `activations`: 8-bit floats [N, K] and f32 scales [N, 1]. `input_scale`: f32 [1], what
    activations are divided by before they are rounded, where that is the same for all."""

    numbers: torch.Tensor
    scales: torch.Tensor
    input_scale: torch.Tensor | None = None

    def parts(self) -> dict[str, torch.Tensor]:
        """By the names of a layer's buffers."""
        found = {"weight_numbers": self.numbers, "weight_scales": self.scales}
        return found if self.input_scale is None else {**found, "weight_input_scale": self.input_scale}

    def floats(self, scheme: Scheme, k: int) -> torch.Tensor:
        """The weight as floats [N, K], in f32."""
        return self.numbers.float() * self.scales


Weight = Packed | Rounded


def check_scales(scales: torch.Tensor, name: str) -> None:
    """Raises MlircError for scales that are not finite, or so large that unpacking (`lowering.py`) would overflow."""
    if not bool((scales.abs() < 2.0**120).all()) and scales.dtype != torch.float16:
        raise MlircError(f"{name} has scales of 2^120 or more, or that are not finite: it cannot be used quantized")


def quantize(weight: torch.Tensor, scheme: Scheme, name: str = "a weight") -> Weight:
    """Rounds a float weight [N, K] to the nearest numbers of the scheme; the scales are rounded to its dtype first
    (those of a scheme with `activations` are f32).

    Symmetric scales take a group's largest magnitude to the largest number (7 of int4, 448 of fp8); asymmetric ones its
    least and largest values, and 0, to the ends. Raises MlircError for a weight that is not finite.
    """
    if not bool(torch.isfinite(weight).all()):
        raise MlircError(f"{name} has values that are not finite: they cannot be quantized")
    (n, k), group = weight.shape, scheme.group or weight.shape[1]
    groups = groups_of(k, scheme.group)
    wide = torch.nn.functional.pad(weight.float(), (0, groups * group - k)).view(n, groups, group)
    top = (1 << scheme.format.bits) - 1
    low, high = wide.amin(2).clamp(max=0), wide.amax(2).clamp(min=0)
    if scheme.format.floating:
        scales = wide.abs().amax(2) / torch.finfo(FP8).max
    elif scheme.symmetric:
        scales = wide.abs().amax(2) / max((1 << (scheme.format.bits - 1)) - 1, 1)
    else:
        scales = (high - low) / top
    scales = scales if scheme.activations else scales.to(weight.dtype)
    check_scales(scales, name)
    divisor = scales.float().unsqueeze(2)
    rows = torch.where(divisor > 0, wide / divisor, 0)
    zeros = None
    if scheme.format.floating:
        most = torch.finfo(FP8).max
        floats = rows.clamp(-most, most).to(FP8)
        if scheme.activations:
            return Rounded(floats.view(n, k), scales)
        numbers = floats.view(torch.uint8)
    else:
        zero = torch.full_like(scales, scheme.format.middle, dtype=torch.float32)
        if not scheme.symmetric:
            zero = torch.where(scales > 0, (-low / scales.float()).round(), 0).clamp(0, top)
            zeros = zero.to(weight.dtype)
        numbers = (rows.round() + zero.unsqueeze(2)).clamp(0, top).to(torch.uint8)
    return Packed(pack(numbers.view(n, groups * group)[:, :k], scheme.format.bits), scales, zeros)
