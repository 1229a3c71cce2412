"""Kinds of kernels that PyTorch operators become, small ones, for mutants of what they compute."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

BF16, F16 = torch.bfloat16, torch.float16


def _floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


def _line(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, b) + r


Kind = tuple[Callable[..., object], tuple[torch.Tensor, ...]]
_X, _Y = _floats(297), _floats(300)[:297].contiguous()
KINDS: dict[str, Kind] = {
    "argmax": (lambda x: x.argmax(-1), (_floats(5, 70),)),
    "argmin of integers": (lambda x: x.argmin(-1), (_integers(90, 4, 40),)),
    "comparisons": (lambda x, y: torch.where(x > y, x, -y).clamp_min(0.1), (_X, _Y + 1)),
    "heaviside": (torch.heaviside, (_X, _Y)),
    "tests of floats": (lambda x: (x.isinf(), x.isnan(), x.sign(), x == 0), (_X,)),
    "roundings": (lambda x: (x.round(), x.floor(), x.trunc(), x.ceil()), (_X,)),
    "sort": (lambda x: x.sort(dim=-1, stable=True), (_floats(3, 17),)),
    "integer division": (lambda x, y: (x // y, x % y), (_integers(90, 297), _integers(9, 297) + 1)),
    "shifts": (lambda x: (x >> 2) << 2, (_integers(90, 297).int(),)),
    "variance": (lambda x: x.var(-1), (_floats(2, 1031),)),
    "cumsum": (lambda x: x.cumsum(-1), (_floats(3, 37),)),
    "index_add": (lambda p, i, x: p.index_add(0, i, x), (_floats(20, 8), _integers(20, 5), _floats(5, 8))),
    "scatter": (lambda p, i, x: p.scatter(1, i, x), (_floats(3, 11), _integers(11, 3, 4), _floats(3, 4))),
    "functions": (lambda x: (x.expm1(), x.erf(), x.tanh(), x.sigmoid()), (_X,)),
    "functions of positive numbers": (lambda x: (x.abs().log1p(), x.abs().sqrt(), x.abs().log()), (_X,)),
    "waves": (lambda x: (x.sin(), x.cos()), (_X,)),
    "activation, bf16": (lambda x, y: F.silu(x) * y, (_floats(297, dtype=BF16), _floats(297, dtype=BF16))),
    "activation, f16": (lambda x, y: F.gelu(x) + y, (_floats(297, dtype=F16), _floats(297, dtype=F16))),
    "embedding bag": (
        lambda i, w: F.embedding(i, w).mean(1), (_integers(31, 5, 4), _floats(31, 6)),
    ),
    "maximum pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), (_floats(1, 2, 9, 9),)),
    "mean pooling": (lambda x: F.avg_pool2d(x, 3, 2, 1), (_floats(1, 2, 9, 9),)),
    "resize": (
        lambda x: F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=False), (_floats(1, 2, 4, 4),),
    ),
    "gather": (lambda x, i: x.gather(1, i), (_floats(4, 19), _integers(19, 4, 6))),
    "log-softmax": (lambda x: x.log_softmax(-1), (_floats(4, 70),)),
    "logaddexp": (torch.logaddexp, (_X, _Y * 2)),
    "RMS norm, bf16": (lambda x, w: F.rms_norm(x, (67,), w), (_floats(4, 67, dtype=BF16), _floats(67, dtype=BF16))),
    "linear, bf16": (_line, (_floats(17, 50, dtype=BF16), _floats(24, 50, dtype=BF16), _floats(24, dtype=BF16),
                             _floats(17, 24, dtype=BF16))),
    "linear, f16": (_line, (_floats(17, 50, dtype=F16), _floats(24, 50, dtype=F16), _floats(24, dtype=F16),
                            _floats(17, 24, dtype=F16))),
    "attention, bf16": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (_floats(1, 2, 33, 16, dtype=BF16), _floats(1, 2, 33, 16, dtype=BF16), _floats(1, 2, 33, 16, dtype=BF16)),
    ),
}  # fmt: skip


class Calls(torch.nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> object:
        return self.function(*tensors)
