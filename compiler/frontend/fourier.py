"""Discrete Fourier transforms of pairs of real tensors, as products with constant matrices.

A length up to `DIRECT` is one product. A longer one is split into two lengths (Cooley and Tukey, 1965): transforms of
the one, a product with roots of unity, transforms of the other. What cannot be split is refused beyond `LARGEST`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from mlirc.errors import MlircError

aten = torch.ops.aten
DIRECT = 256
LARGEST = 4096

Value = Any  # what `Build` makes: a node of the graph
Build = Callable[..., Value]  # (op, *arguments): a call of a PyTorch op
Constant = Callable[[torch.Tensor], Value]


class Fourier:
    """Builds transforms with `build`, and their matrices with `constant`; `shape_of` and `dtype` describe values."""

    def __init__(self, build: Build, constant: Constant, shape_of: Callable[[Value], list[int]], dtype: torch.dtype):
        self.build, self.constant, self.shape_of, self.dtype = build, constant, shape_of, dtype

    def along(
        self, re: Value, im: Value | None, dim: int, forward: bool, count: int | None = None
    ) -> tuple[Value, Value]:
        """The transform along one dimension, without a factor: its first `count` results, or all. `im` is None where it
        is zero."""
        rank = len(self.shape_of(re))
        order = [d for d in range(rank) if d != dim % rank] + [dim % rank]
        back = [order.index(d) for d in range(rank)]
        moved = [x if x is None else self.build(aten.permute.default, x, order) for x in (re, im)]
        n = self.shape_of(re)[dim]
        out_re, out_im = self._last(moved[0], moved[1], -1 if forward else 1, count or n)
        if im is None:
            out_im = self._without_real_bins(out_im, n)
        return self.build(aten.permute.default, out_re, back), self.build(aten.permute.default, out_im, back)

    def _without_real_bins(self, im: Value, n: int) -> Value:
        """Imaginary parts [..., count] of n real numbers' transform: exactly 0 for the mean and the highest frequency,
        whose phases are 0 or pi and nothing else."""
        bins = torch.arange(self.shape_of(im)[-1])
        is_real = self.constant(2 * bins % n == 0)
        return self.build(aten.where.self, is_real, self.constant(torch.zeros((), dtype=self.dtype)), im)

    def _last(self, re: Value, im: Value | None, sign: int, count: int) -> tuple[Value, Value]:
        *lead, n = self.shape_of(re)
        first = next((d for d in range(math.isqrt(n), 1, -1) if n % d == 0), 1)
        if n <= DIRECT or (first == 1 and n <= LARGEST):
            return self._product(re, im, _products(n, count), n, sign)
        if first == 1:
            raise MlircError(
                f"a Fourier transform of {n} elements, which is a prime number above {LARGEST}, is not supported: pad "
                "to a length that has small factors"
            )
        second = n // first
        # element i * second + j; result k + first * l
        re, im = (x if x is None else self.build(aten.view.default, x, [*lead, first, second]) for x in (re, im))
        rank = len(lead) + 2
        order = [*range(len(lead)), rank - 1, rank - 2]
        re, im = (x if x is None else self.build(aten.permute.default, x, order) for x in (re, im))
        re, im = self._last(re, im, sign, first)
        re, im = (self.build(aten.permute.default, x, order) for x in (re, im))
        re, im = self._turned(re, im, _products(first, second), n, sign)
        re, im = self._last(re, im, sign, second)
        re, im = (self.build(aten.permute.default, x, order) for x in (re, im))
        re, im = (self.build(aten.reshape.default, x, [*lead, n]) for x in (re, im))
        if count < n:
            re, im = (self.build(aten.slice.Tensor, x, len(lead), 0, count) for x in (re, im))
        return re, im

    def _tables(self, parts: torch.Tensor, n: int, sign: int) -> tuple[Value, Value]:
        cos, sin = roots_of_unity(parts, n)
        return self.constant(cos.to(self.dtype)), self.constant((sign * sin).to(self.dtype))

    def _product(self, re: Value, im: Value | None, parts: torch.Tensor, n: int, sign: int) -> tuple[Value, Value]:
        cos, sin = self._tables(parts, n, sign)
        out_re, out_im = self.matmul(re, cos), self.matmul(re, sin)
        if im is not None:
            out_re = self.build(aten.sub.Tensor, out_re, self.matmul(im, sin))
            out_im = self.build(aten.add.Tensor, out_im, self.matmul(im, cos))
        return out_re, out_im

    def _turned(self, re: Value, im: Value, parts: torch.Tensor, n: int, sign: int) -> tuple[Value, Value]:
        cos, sin = self._tables(parts, n, sign)

        def mul(x: Value, y: Value) -> Value:
            return self.build(aten.mul.Tensor, x, y)

        out_re = self.build(aten.sub.Tensor, mul(re, cos), mul(im, sin))
        return out_re, self.build(aten.add.Tensor, mul(re, sin), mul(im, cos))

    def matmul(self, x: Value, table: Value) -> Value:
        """x [..., n] times table [n, m]."""
        *lead, n = self.shape_of(x)
        rows = self.build(aten.reshape.default, x, [math.prod(lead), n])
        out = self.build(aten.mm.default, rows, table)
        return self.build(aten.view.default, out, [*lead, self.shape_of(table)[1]])


def _products(rows: int, columns: int) -> torch.Tensor:
    """i * j for i below `rows` and j below `columns`."""
    return torch.arange(rows)[:, None] * torch.arange(columns)[None, :]


def roots_of_unity(parts: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(cosines, sines) in f64 of `parts` (integers) of a turn's n: exact where they are 0, 1 or a half, and equal up to
    sign in every octant."""
    quarters, rest = (4 * (parts % n)) // n, (4 * (parts % n)) % n  # the angle is (quarters + rest / n) pi / 2
    mirrored = 2 * rest > n
    near = torch.where(mirrored, n - rest, rest)  # at most an eighth of a turn
    cos, sin = (near * (math.pi / 2 / n)).cos(), (near * (math.pi / 2 / n)).sin()
    sin = torch.where(3 * near == n, 0.5, sin)
    cos, sin = torch.where(mirrored, sin, cos), torch.where(mirrored, cos, sin)
    odd = quarters % 2 == 1
    cos, sin = torch.where(odd, -sin, cos), torch.where(odd, cos, sin)
    sign = torch.where(quarters >= 2, -1.0, 1.0).double()
    return cos * sign, sin * sign


def scale(normalization: int, count: int) -> float:
    """The factor of a transform of `count` elements; PyTorch's normalizations are 0 (none), 1 (by the root), 2."""
    return {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[normalization]
