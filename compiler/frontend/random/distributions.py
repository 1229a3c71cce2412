"""PyTorch's random ops as arithmetic on a generator's raw numbers, in the order that PyTorch's CUDA kernels use them.

Each function takes a `Generator` and the arguments of its op. What is the same as PyTorch's on CUDA, and to how many
bits, is in docs/random.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from mlirc.errors import MlircError
from mlirc.frontend.random.layout import Layout, dropout, side_by_side, strided
from mlirc.frontend.random.philox import KINDS, exact_normal

aten = torch.ops.aten
Tensor = torch.Tensor

DISTRIBUTIONS: dict[Any, Callable] = {}
_WIDE_RANGE = 1 << 28  # from here on, integers are made of 64 bits each
_NUMPY = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}


NORMAL = (aten.randn.default, aten.randn.generator, aten.randn_like.default, aten.normal_functional.default)


class Generator:
    """A seed and a position in its sequence, which draws move on. `seed` and what `offset_at(words)` gives are int64
    tensors of no dimension: offsets count words from where the sequence stands before the first draw. An `exact` one,
    on the CPU, computes the normal numbers for FP32 and below in FP64."""

    def __init__(self, seed: Tensor, offset_at: Callable[[int], Tensor], position: int = 0, exact: bool = False):
        self.seed, self.offset_at, self.position, self.exact = seed, offset_at, position, exact

    def draw(self, kind: str, shape: Sequence[int], layout: Layout | None = None, below: int = 0) -> Tensor:
        """Raw numbers of a kind of `philox.KINDS`; of 64 bits go two to a call, others four."""
        count = math.prod(shape)
        if count == 0:
            return torch.empty(tuple(shape), dtype=KINDS[kind])
        layout = layout or strided(count, 2 if kind.endswith("64") or kind == "double_word" else 4)
        offset = self.offset_at(self.position)
        self.position += layout.advance
        below = below - (1 << 64) if below >= 1 << 63 else below
        return torch.ops.mlirc.draw(
            self.seed, offset, list(shape), kind, layout.threads, layout.per, layout.vector, below
        )

    def skip(self, words: int) -> Tensor:
        """The offset here, and moves on: PyTorch asks for words, and gets whole blocks of them."""
        offset = self.offset_at(self.position)
        self.position += -(-words // 4) * 4
        return offset

    def real(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """`uniform` or `normal` raw numbers for results of a dtype: of FP64 for FP64, else of FP32."""
        if dtype.is_complex:
            raise MlircError(f"random numbers of {str(dtype).removeprefix('torch.')} are not supported: draw real ones")
        if self.exact and name == "normal":
            layout = strided(math.prod(shape), 4)
            offset = self.offset_at(self.position)
            return exact_normal(self.seed, offset, shape, layout.threads, layout.per, layout.vector)
        return self.draw(f"{name}64" if dtype == torch.float64 else name, shape)


def _distribution(*ops: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        for op in ops:
            DISTRIBUTIONS[op] = function
        return function

    return add


def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(_NUMPY[dtype](value)) if dtype in _NUMPY else float(value)


def _in_memory_order(like: Tensor) -> list[int]:
    """The dimensions of a tensor from the outermost in memory to the innermost: PyTorch draws for a tensor without gaps
    in the order of its memory."""
    strides = like.stride()
    order = sorted(range(like.dim()), key=lambda d: (-strides[d] if like.shape[d] > 1 else -math.inf, d))
    expected = 1
    for d in reversed(order):
        if like.shape[d] > 1 and strides[d] != expected:
            return list(range(like.dim()))
        expected *= like.shape[d]
    return order


def _drawn_like(like: Tensor, draw: Callable[[list[int]], Tensor]) -> Tensor:
    """`draw` of the tensor's shape in memory order, with the dimensions back in their places."""
    order = _in_memory_order(like)
    found = draw([like.shape[d] for d in order])
    if order == list(range(like.dim())):
        return found
    return found.permute([order.index(d) for d in range(like.dim())])


def _dtype(dtype: torch.dtype | None, like: Tensor | None = None) -> torch.dtype:
    return dtype or (like.dtype if like is not None else torch.get_default_dtype())


# Uniform


def _uniform_of(g: Generator, shape: Sequence[int], dtype: torch.dtype, low: float, high: float) -> Tensor:
    raw = g.real("uniform", shape, dtype)
    low, high = _rounded(low, dtype), _rounded(high, dtype)
    size = _rounded(high - low, dtype)
    value = raw if (low, size) == (0.0, 1.0) else raw * size + low
    value = value.to(dtype)
    return torch.where(value == high, low, value).to(dtype)  # raw numbers are in (0, 1], results in [low, high)


@_distribution(aten.rand.default, aten.rand.generator)
def _rand(g: Generator, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _uniform_of(g, size, _dtype(dtype), 0, 1)


@_distribution(aten.rand_like.default)
def _rand_like(g: Generator, x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _drawn_like(x, lambda shape: _uniform_of(g, shape, _dtype(dtype, x), 0, 1))


@_distribution(aten.uniform.default)
def _uniform(g: Generator, x: Tensor, low: float = 0, high: float = 1, **_: Any) -> Tensor:
    return _drawn_like(x, lambda shape: _uniform_of(g, shape, x.dtype, low, high))


# Normal


def _normal_of(g: Generator, shape: Sequence[int], dtype: torch.dtype, mean: float, std: float) -> Tensor:
    raw = g.real("normal", shape, dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    mean, std = _rounded(mean, wide), _rounded(std, wide)
    raw = raw if std == 1 else raw * std
    return (raw if mean == 0 else raw + mean).to(dtype)


@_distribution(aten.randn.default, aten.randn.generator)
def _randn(g: Generator, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _normal_of(g, size, _dtype(dtype), 0, 1)


@_distribution(aten.randn_like.default)
def _randn_like(g: Generator, x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _drawn_like(x, lambda shape: _normal_of(g, shape, _dtype(dtype, x), 0, 1))


@_distribution(aten.normal_functional.default)
def _normal(g: Generator, x: Tensor, mean: float = 0, std: float = 1, **_: Any) -> Tensor:
    return _drawn_like(x, lambda shape: _normal_of(g, shape, x.dtype, mean, std))


@_distribution(aten.normal.float_float)
def _normal_floats(
    g: Generator, mean: float, std: float, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return _normal_of(g, size, _dtype(dtype), mean, std)


@_distribution(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor)
def _normal_tensors(g: Generator, mean: Any, std: Any = 1.0, **_: Any) -> Tensor:
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    dtype = torch.result_type(tensors[0], tensors[-1])
    if isinstance(std, float):
        return _normal_of(g, shape, dtype, 0, std) + mean
    return _normal_of(g, shape, dtype, 0, 1) * std + mean


@_distribution(aten.log_normal.default)
def _log_normal(g: Generator, x: Tensor, mean: float = 1, std: float = 2, **_: Any) -> Tensor:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return _drawn_like(x, lambda shape: torch.exp(_normal_of(g, shape, wide, mean, std)).to(x.dtype))


# Made of uniform numbers


def _exponential_of(g: Generator, shape: Sequence[int], dtype: torch.dtype, rate: float) -> Tensor:
    raw = g.real("uniform", shape, dtype)
    half = torch.finfo(raw.dtype).eps / 2
    logarithm = torch.where(raw >= 1 - half, -half, torch.log(raw))
    return (logarithm * (-1.0 / rate)).to(dtype)


@_distribution(aten.exponential.default)
def _exponential(g: Generator, x: Tensor, rate: float = 1, **_: Any) -> Tensor:
    return _drawn_like(x, lambda shape: _exponential_of(g, shape, x.dtype, rate))


@_distribution(aten.geometric.default)
def _geometric(g: Generator, x: Tensor, p: float, **_: Any) -> Tensor:
    def draw(shape: list[int]) -> Tensor:
        raw = g.real("uniform", shape, x.dtype)
        return torch.ceil(torch.log(raw) * (1 / math.log1p(-p))).to(x.dtype)

    return _drawn_like(x, draw)


@_distribution(aten.cauchy.default)
def _cauchy(g: Generator, x: Tensor, median: float = 0, sigma: float = 1, **_: Any) -> Tensor:
    def draw(shape: list[int]) -> Tensor:
        raw = g.real("uniform", shape, x.dtype)
        if raw.dtype != torch.float64:
            eps = torch.finfo(raw.dtype).eps
            raw = torch.clamp(raw, eps, 1 - eps)
        angle = (raw - 0.5) * math.pi
        return (torch.sin(angle) / torch.cos(angle) * sigma + median).to(x.dtype)

    return _drawn_like(x, draw)


@_distribution(aten.bernoulli.p)
def _bernoulli_p(g: Generator, x: Tensor, p: float = 0.5, **_: Any) -> Tensor:
    def draw(shape: list[int]) -> Tensor:
        raw = g.real("uniform", shape, x.dtype)
        return (raw < _rounded(p, raw.dtype)).to(x.dtype)

    return _drawn_like(x, draw)


@_distribution(aten.bernoulli.default)
def _bernoulli(g: Generator, p: Tensor, **_: Any) -> Tensor:
    return _bernoulli_tensor(g, p, p)


@_distribution(aten.bernoulli.Tensor)
def _bernoulli_tensor(g: Generator, x: Tensor, p: Tensor, **_: Any) -> Tensor:
    if not x.numel():
        return x.clone()
    raw = g.draw("uniform", x.shape, side_by_side(x.numel()))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return (raw.to(wide) <= p.to(wide)).to(x.dtype)


def drop_mask(g: Generator, x: Tensor, p: float) -> Tensor:
    """Of bools: what dropout with probability p keeps of a tensor."""
    order = _in_memory_order(x)
    dense = order != list(range(x.dim())) or x.is_contiguous()

    def draw(shape: list[int]) -> Tensor:
        layout = dropout(x.numel(), x.element_size(), dense) if x.numel() else None
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return g.draw("uniform", shape, layout).to(wide) < _rounded(1.0 - p, wide)

    return _drawn_like(x, draw)


@_distribution(aten.native_dropout.default)
def _native_dropout(g: Generator, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or not x.numel():
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = drop_mask(g, x, p)
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * mask.to(wide.dtype) * _rounded(1 / _rounded(1.0 - p, wide.dtype), wide.dtype)).to(x.dtype), mask


@_distribution(aten.rrelu_with_noise_functional.default)
def _rrelu_with_noise(
    g: Generator, x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, *_: Any
) -> tuple[Tensor, Tensor]:
    """The result, and the slopes: 1 for what is above 0."""
    if not training:
        return aten.leaky_relu.default(x, (lower + upper) / 2), noise.clone()
    slope = _drawn_like(x, lambda shape: _uniform_of(g, shape, x.dtype, 0, 1)) * (upper - lower) + lower
    slope = torch.where(x <= 0, slope, 1.0).to(x.dtype)
    return x * slope, slope


# Integers


def _integers(g: Generator, shape: Sequence[int], low: int, high: int, dtype: torch.dtype) -> Tensor:
    """From low to high - 1."""
    count = high - low
    if count <= 0:
        raise MlircError(f"random integers from {low} to {high}: the first must be less than the second")
    raw = g.draw("double_word" if count >= _WIDE_RANGE else "word", shape, below=count if count < 1 << 64 else 0)
    return (raw + low).to(dtype) if low else raw.to(dtype)


@_distribution(aten.randint.default, aten.randint.generator)
def _randint(
    g: Generator, high: int, size: Sequence[int], *, dtype: torch.dtype | None = torch.int64, **_: Any
) -> Tensor:
    return _integers(g, size, 0, high, dtype or torch.int64)


@_distribution(aten.randint.low, aten.randint.low_generator)
def _randint_low(
    g: Generator, low: int, high: int, size: Sequence[int], *, dtype: torch.dtype | None = torch.int64, **_: Any
) -> Tensor:
    return _integers(g, size, low, high, dtype or torch.int64)


@_distribution(aten.randint_like.default)
def _randint_like(g: Generator, x: Tensor, high: int, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _drawn_like(x, lambda shape: _integers(g, shape, 0, high, _dtype(dtype, x)))


@_distribution(aten.randint_like.low_dtype)
def _randint_like_low(
    g: Generator, x: Tensor, low: int, high: int, *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return _drawn_like(x, lambda shape: _integers(g, shape, low, high, _dtype(dtype, x)))


@_distribution(aten.random.to)
def _random_to(g: Generator, x: Tensor, high: int, **_: Any) -> Tensor:
    return _randint_like(g, x, high)


@_distribution(getattr(aten.random, "from"))
def _random_from(g: Generator, x: Tensor, low: int, high: int | None, **_: Any) -> Tensor:
    return _randint_like_low(g, x, low, _largest(x.dtype) + 1 if high is None else high)


@_distribution(aten.random.default)
def _random(g: Generator, x: Tensor, **_: Any) -> Tensor:
    count = 2 if x.dtype == torch.bool else _largest(x.dtype) + 1
    kind = "double_word" if x.dtype in (torch.int64, torch.float64) else "word"
    return _drawn_like(x, lambda shape: g.draw(kind, shape, below=count).to(x.dtype))


def _largest(dtype: torch.dtype) -> int:
    """The largest integer of a dtype; of floats the largest up to which all are there."""
    if dtype.is_floating_point:
        return int(2 / torch.finfo(dtype).eps)
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max


# Choices


@_distribution(aten.randperm.default, aten.randperm.generator)
def _randperm(g: Generator, n: int, *, dtype: torch.dtype | None = torch.int64, **_: Any) -> Tensor:
    """0 to n - 1 sorted by random keys, which are as long as makes two equal ones improbable; two neighbours with equal
    keys are exchanged by chance."""
    dtype = dtype or torch.int64
    if n < 2:
        g.skip(4 + n) if n else None
        return torch.zeros(n, dtype=dtype)
    bits = min(64, math.ceil(math.log2(n - (6.0 * n * n + 1) / (12 * math.log(0.9)))))
    width = 32 if bits <= 32 else 64
    raw = g.draw("double_word", [n], below=(1 << width) - 1) + -(1 << (width - 1))
    keys, order = torch.sort(raw & ((1 << bits) - 1) if bits < width else raw, stable=True)
    threads = Layout(n, 1, False, -(-n // 4) * 4)
    swap = g.draw("word", [n - 1], threads, below=2) == 0
    same = keys[1:] == keys[:-1]
    first = torch.cat([same[:1], same[1:] & ~same[:-1]]) & swap  # of a pair that changes places
    no = torch.zeros(1, dtype=torch.bool)
    here, before = torch.cat([first, no]), torch.cat([no, first])
    after = torch.cat([order[1:], order[-1:]])
    earlier = torch.cat([order[:1], order[:-1]])
    return torch.where(here, after, torch.where(before, earlier, order)).to(dtype)


@_distribution(aten.multinomial.default)
def _multinomial(g: Generator, p: Tensor, samples: int, replacement: bool = False, **_: Any) -> Tensor:
    """Without replacement the largest of p / q, with q exponential; with it, the place of a uniform number in the
    cumulated probabilities."""
    if not replacement or samples == 1:
        quotient = p / _exponential_of(g, p.shape, p.dtype, 1.0)
        if samples == 1:
            return torch.argmax(quotient, -1, keepdim=True)
        return torch.topk(quotient, samples)[1]
    wide = p.float() if p.dtype in (torch.float16, torch.bfloat16) else p
    limits = torch.cumsum(wide, -1)
    raw = g.real("uniform", [*p.shape[:-1], samples], wide.dtype) * limits[..., -1:]
    below = (limits.unsqueeze(-2) < raw.unsqueeze(-1)).to(torch.int64).sum(-1)
    return torch.clamp(below, max=p.shape[-1] - 1)
