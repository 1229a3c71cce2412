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

    def along(self, re: Value, im: Value | None, dim: int, forward: bool) -> tuple[Value, Value]:
        """The transform along one dimension, without a factor; `im` is None where it is zero."""
        rank = len(self.shape_of(re))
        order = [d for d in range(rank) if d != dim % rank] + [dim % rank]
        back = [order.index(d) for d in range(rank)]
        moved = [x if x is None else self.build(aten.permute.default, x, order) for x in (re, im)]
        out = self._last(moved[0], moved[1], -1 if forward else 1)
        return self.build(aten.permute.default, out[0], back), self.build(aten.permute.default, out[1], back)

    def _last(self, re: Value, im: Value | None, sign: int) -> tuple[Value, Value]:
        *lead, n = self.shape_of(re)
        first = next((d for d in range(math.isqrt(n), 1, -1) if n % d == 0), 1)
        if n <= DIRECT or (first == 1 and n <= LARGEST):
            return self._product(re, im, _turns(n, n) % n / n, sign)
        if first == 1:
            raise MlircError(
                f"a Fourier transform of {n} elements, which is a prime number above {LARGEST}, is not supported: pad "
                "to a length that has small factors"
            )
        second = n // first
        # element i * second + j; result k + first * l
        re, im = (x if x is None else self.build(aten.view.default, x, [*lead, first, second]) for x in (re, im))
        re, im = self.along(re, im, -2, sign < 0)
        re, im = self._turned(re, im, _turns(first, second) / n, sign)
        re, im = self._last(re, im, sign)
        order = [*range(len(lead)), len(lead) + 1, len(lead)]
        re, im = (self.build(aten.permute.default, x, order) for x in (re, im))
        return self.build(aten.reshape.default, re, [*lead, n]), self.build(aten.reshape.default, im, [*lead, n])

    def _tables(self, turns: torch.Tensor, sign: int) -> tuple[Value, Value]:
        angles = turns * (2 * math.pi)
        return self.constant(angles.cos().to(self.dtype)), self.constant((sign * angles.sin()).to(self.dtype))

    def _product(self, re: Value, im: Value | None, turns: torch.Tensor, sign: int) -> tuple[Value, Value]:
        cos, sin = self._tables(turns, sign)
        out_re, out_im = self.matmul(re, cos), self.matmul(re, sin)
        if im is not None:
            out_re = self.build(aten.sub.Tensor, out_re, self.matmul(im, sin))
            out_im = self.build(aten.add.Tensor, out_im, self.matmul(im, cos))
        return out_re, out_im

    def _turned(self, re: Value, im: Value, turns: torch.Tensor, sign: int) -> tuple[Value, Value]:
        cos, sin = self._tables(turns, sign)

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


def _turns(rows: int, columns: int) -> torch.Tensor:
    """i * j for i below `rows` and j below `columns`, of which the caller takes a fraction of a turn."""
    return (torch.arange(rows)[:, None] * torch.arange(columns)[None, :]).double()


def scale(normalization: int, count: int) -> float:
    """The factor of a transform of `count` elements; PyTorch's normalizations are 0 (none), 1 (by the root), 2."""
    return {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[normalization]
