"""Convolutions with weights of few bits: the weight [Co, C, *kernel] is a matrix [Co, K], the channel innermost, as
GEMMs of windows read it (docs/kernels.md)."""

from __future__ import annotations

from math import prod

import torch

from mlirc.frontend.quantize.rounding import Packed, Rounded
from mlirc.frontend.quantize.scaled import fp8_scales, to_fp8
from mlirc.frontend.quantize.scheme import Scheme

Convolution = torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d
KINDS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
LEAST_CHANNELS = 16  # of a group: fewer are no GEMM of its own, and a stem's three have few weights
_GEOMETRY = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode",
             "_reversed_padding_repeated_twice")  # fmt: skip


def is_convolution(layer: object) -> bool:
    """Whether a layer is a convolution whose weight can be quantized."""
    return type(layer) in KINDS and layer.weight.shape[1] >= LEAST_CHANNELS  # type: ignore[attr-defined]


def as_matrix(weight: torch.Tensor) -> torch.Tensor:
    """A weight [Co, C, *kernel] as [Co, K]."""
    return weight.movedim(1, -1).reshape(weight.shape[0], -1)


def as_weight(matrix: torch.Tensor, channels: int, kernel: tuple[int, ...]) -> torch.Tensor:
    """A matrix [Co, K] as a weight [Co, C, *kernel]."""
    return matrix.reshape(-1, *kernel, channels).movedim(-1, 1)


class _OwnWeight(torch.nn.Module):
    """The geometry of a convolution, and its bias; the weight is a subclass's, in buffers."""

    in_channels: int
    out_channels: int
    groups: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    bias: torch.nn.Parameter | None

    def __init__(self, parts: dict[str, torch.Tensor], like: Convolution):
        super().__init__()
        self.kind: type[Convolution] = type(like)
        for name in _GEOMETRY:
            setattr(self, name, getattr(like, name))
        for name, tensor in parts.items():
            self.register_buffer(name, tensor)
        self.register_parameter("bias", like.bias)  # type: ignore[arg-type]

    def shaped(self, matrix: torch.Tensor) -> torch.Tensor:
        """A matrix [Co, K] as the weight [Co, C, *kernel]."""
        return as_weight(matrix, self.in_channels // self.groups, self.kernel_size)

    def convolve(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.kind._conv_forward(self, x, weight, bias)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"


class QuantizedConvolution(_OwnWeight):
    """A convolution of x [N, C, *image] and a packed weight; both have the scales' dtype, and so has the result."""

    def __init__(self, packed: Packed, scheme: Scheme, like: Convolution):
        super().__init__(packed.parts(), like)
        self.scheme = scheme
        if packed.zeros is None:
            self.weight_zeros = None

    @property
    def weight(self) -> torch.Tensor:
        """The weight as floats [Co, C, *kernel]."""
        packed = Packed(self.weight_words, self.weight_scales, self.weight_zeros)  # type: ignore[arg-type]
        columns = self.in_channels // self.groups * prod(self.kernel_size)
        return self.shaped(packed.floats(self.scheme, columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolve(x, self.weight, self.bias)


class ScaledConvolution(_OwnWeight):
    """A convolution of 8-bit floats: x [N, C, *image] (or without N) is rounded to e4m3 by a scale of each image, the
    weight has one for each output channel; sums in f32, the scales behind them; the result has x's dtype."""

    def __init__(self, weight: Rounded, like: Convolution):
        super().__init__(weight.parts(), like)

    @property
    def weight(self) -> torch.Tensor:
        """The weight as floats [Co, C, *kernel], in f32."""
        return self.shaped(self.weight_numbers.float() * self.weight_scales)  # type: ignore[operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = len(self.kernel_size)
        # Pixels first, whose channels lie together, then images: the largest of an image at once takes more launches.
        pixels = x.abs().amax(-1 - rank, keepdim=True)
        scale = fp8_scales(pixels, list(range(x.dim() - rank - 1, x.dim())))
        numbers = self.shaped(self.weight_numbers)  # type: ignore[arg-type]
        y = self.convolve(to_fp8(x, scale).float(), numbers.float(), None)
        y = y * scale * self.weight_scales.reshape(-1, *[1] * rank)  # type: ignore[operator]
        y = y if self.bias is None else y + self.bias.float().reshape(-1, *[1] * rank)
        return y.to(x.dtype)
