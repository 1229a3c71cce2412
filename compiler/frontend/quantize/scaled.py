"""Linear layers whose products are of 8-bit floats (W8A8): weights with a scale for each row, activations rounded when
they are there (vllm-project/llm-compressor, scheme FP8_DYNAMIC)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlirc.frontend.quantize.rounding import Rounded
from mlirc.frontend.quantize.scheme import FP8

_MOST = torch.finfo(FP8).max
LEAST = 2.0**-64  # scale of activations, so that its reciprocal is finite, and a row of zeros has one


def fp8_scales(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The largest magnitude / 448 along some dimensions of x, which are kept, in f32."""
    return (x.abs().amax(tuple(dims), keepdim=True).float() / _MOST).clamp(min=LEAST)


def to_fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x / scale rounded to e4m3; what is too large becomes the largest number."""
    return (x.float() / scale).clamp(-_MOST, _MOST).to(FP8)


def scaled_linear(
    x: torch.Tensor,
    numbers: torch.Tensor,
    scales: torch.Tensor,
    input_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """y = q(x) w^T + bias: a weight of e4m3 `numbers` [N, K] and `scales` [N, 1], and x [..., K] rounded to e4m3; sums
    in f32, scales behind them; y has x's dtype.

    A row of x is divided by its largest magnitude / 448, or all of x by `input_scale`, and rounded to nearest; what is
    too large then becomes the largest number. A row with a NaN gives NaN, and so does an infinity where the scale is of
    the row."""
    rows = x.reshape(-1, numbers.shape[1])
    scale = input_scale
    if scale is None:
        scale = fp8_scales(rows, [-1])
    # As torch._scaled_mm, written out: so it can be computed in FP64, too, with the same roundings to e4m3.
    y = torch.mm(to_fp8(rows, scale).float(), numbers.float().t()) * scale * scales.t()
    y = y if bias is None else y + bias.float()
    return y.to(x.dtype).reshape(*x.shape[:-1], numbers.shape[0])


class ScaledLinear(torch.nn.Module):
    """`scaled_linear` of the parts of a weight, in buffers; `static`: with a scale for all activations."""

    def __init__(self, weight: Rounded, bias: torch.nn.Parameter | None):
        super().__init__()
        self.out_features, self.in_features = weight.numbers.shape
        self.static = weight.input_scale is not None
        for name, tensor in weight.parts().items():
            self.register_buffer(name, tensor)
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> torch.Tensor:
        """The weight as floats [N, K], in f32."""
        return self.weight_numbers.float() * self.weight_scales  # type: ignore[operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fixed = self.weight_input_scale if self.static else None
        return scaled_linear(x, self.weight_numbers, self.weight_scales, fixed, self.bias)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        kind = "static" if self.static else "dynamic"
        return f"in_features={self.in_features}, out_features={self.out_features}, scheme=fp8:{kind}"
