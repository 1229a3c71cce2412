"""`mlirc::dequantize`: a packed weight as floats, an op of its own down to the `torch` level."""

from __future__ import annotations

import torch

from mlirc.frontend.quantize.packing import unpack
from mlirc.frontend.quantize.scheme import FP8, Format


@torch.library.custom_op("mlirc::dequantize", mutates_args=())
def dequantize(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, kind: str, k: int, group: int
) -> torch.Tensor:
    """(number - zero) * scale [N, k], of the scales' dtype: the difference is exact, the product rounded once.

    `words` as `pack` makes them of a `Format` of the name `kind`; scales and zeros are [N, groups], one for `group`
    numbers of a row (0: for the row)."""
    format_ = Format.of(kind)
    numbers = unpack(words, format_.bits, scales.shape[0], k)
    each = torch.arange(k, device=words.device) // (group or k)
    if format_.floating:
        return numbers.view(FP8).to(scales.dtype) * scales[:, each]
    zero = format_.middle if zeros is None else zeros[:, each].to(torch.int32)
    return (numbers.to(torch.int32) - zero).to(scales.dtype) * scales[:, each]


@dequantize.register_fake
def _(words, scales, zeros, kind, k, group):
    return scales.new_empty(scales.shape[0], k)
