"""Steps of random programs: for each kind of PyTorch operation, a draw of one on values that there are.

A draw takes the drawing `Draw` and gives (function, operands), or None where no value fits. What rounding could decide
(comparisons, rounding, sorting, casts to integers) is drawn on exact values alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
MOST_ELEMENTS = 6000
Step = tuple[Callable[..., Any], list[int]]


@dataclass
class Value:
    """A tensor of the program; `exact` where rounding has no part in it."""

    tensor: torch.Tensor
    exact: bool

    @property
    def is_float(self) -> bool:
        return self.tensor.is_floating_point()


@dataclass
class Draw(random.Random):
    """Random choices among the values that a program has so far."""

    seed_text: str
    values: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.seed_text)

    def pick(self, fits: Callable[[Value], bool]) -> int | None:
        """The number of a value that fits, later ones more often; None where none does."""
        numbers = [i for i, v in enumerate(self.values) if fits(v)]
        return self.choice(numbers[-6:] if self.random() < 0.7 else numbers) if numbers else None

    def tensor(self, number: int) -> torch.Tensor:
        return self.values[number].tensor

    def scalar(self, of: torch.Tensor) -> Any:
        """A Python number of any magnitude that an operand of this dtype may meet."""
        whole = self.choice([0, 1, 2, 3, -1, -2, 5, 7, 100, -13])
        if not of.is_floating_point():
            return whole
        odd = self.choice([0.1, 0.5, -0.3, 1e-8, 70000.0, 1.1, 2.5, -0.0, 3.3e-5, 1 / 3, 1e4, 0.7])
        return odd if self.random() < 0.7 else whole

    def dim(self, of: torch.Tensor) -> int:
        return self.randrange(-of.dim(), of.dim())


KINDS: dict[str, Callable[[Draw], Step | None]] = {}


def kind(draw: Callable[[Draw], Step | None]) -> Callable[[Draw], Step | None]:
    """Adds a kind of step to `KINDS`."""
    KINDS[draw.__name__] = draw
    return draw


def _some(value: Value) -> bool:
    return value.tensor.numel() > 0


def _has_dims(value: Value) -> bool:
    return value.tensor.dim() > 0 and value.tensor.numel() > 0


def _float(value: Value) -> bool:
    return value.is_float


def _exact(value: Value) -> bool:
    return value.exact and value.tensor.numel() > 0


def _integer(value: Value) -> bool:
    return not value.is_float and value.tensor.dtype != torch.bool


SMOOTH: list[Callable] = [
    torch.tanh, torch.sigmoid, F.silu, F.gelu, torch.square, torch.sin, torch.cos, torch.exp, torch.exp2, torch.expm1,
    torch.log1p, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.erf, torch.atan, torch.asinh, torch.sinh, torch.cosh,
    torch.log, torch.log2, torch.log10, F.softplus, F.elu, F.selu, F.celu, F.mish, F.softsign, F.logsigmoid, F.hardswish,
    F.hardsigmoid, F.tanhshrink, torch.sinc, torch.special.entr, torch.logit, torch.acos, torch.asin, torch.atanh,
    torch.deg2rad, lambda x: F.gelu(x, approximate="tanh"), lambda x: x.pow(3), lambda x: x**0.5, lambda x: x.pow(-2),
    lambda x: F.leaky_relu(x, 0.01), lambda x: F.elu(x, 0.3), lambda x: F.softplus(x, 2.0, 5.0), torch.square,
]  # fmt: skip
CONTINUOUS_EXACT: list[Callable] = [
    torch.abs, torch.neg, F.relu, F.relu6, F.hardtanh, torch.clone, torch.positive, lambda x: x.clamp(-1, 2),
    lambda x: x.clamp(min=0.1), lambda x: x.clamp(max=0.7), lambda x: x.contiguous(),
    lambda x: torch.nan_to_num(x, 0.5, 9.0, -9.0),
]  # fmt: skip
JUMPS: list[Callable] = [
    torch.floor, torch.ceil, torch.round, torch.trunc, torch.sign, torch.sgn, torch.isnan, torch.isinf, torch.isfinite,
    torch.signbit, torch.logical_not, F.hardshrink, F.softshrink, torch.frac, lambda x: x.bool(),
    lambda x: F.threshold(x, 0.1, 20.0), lambda x: F.hardshrink(x, 0.3), lambda x: torch.isclose(x, x), lambda x: x == x,
]  # fmt: skip


@kind
def smooth(d: Draw) -> Step | None:
    i = d.pick(_float)
    return None if i is None else (d.choice(SMOOTH), [i])


@kind
def exact_unary(d: Draw) -> Step | None:
    i = d.pick(lambda v: v.tensor.dtype != torch.bool and v.tensor.dtype != torch.uint8)
    return None if i is None else (d.choice(CONTINUOUS_EXACT), [i])


@kind
def jump(d: Draw) -> Step | None:
    i = d.pick(lambda v: _exact(v) and v.is_float)
    return None if i is None else (d.choice(JUMPS), [i])


@kind
def arithmetic(d: Draw) -> Step | None:
    i, j = d.pick(_some), d.pick(_some)
    if i is None or j is None:
        return None
    ops = [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.add, torch.mul]
    if d.values[i].is_float or d.values[j].is_float:
        ops += [torch.div, torch.atan2, torch.hypot, torch.logaddexp, torch.copysign, torch.fmax, torch.fmin]
        alpha = d.scalar(d.tensor(i))
        ops += [lambda x, y: torch.add(x, y, alpha=alpha), lambda x, y: torch.rsub(x, y)]
    return d.choice(ops), [i, j]


@kind
def scalar_arithmetic(d: Draw) -> Step | None:
    i = d.pick(_some)
    if i is None:
        return None
    s = d.scalar(d.tensor(i))
    ops = [lambda x: x + s, lambda x: x - s, lambda x: s - x, lambda x: x * s, lambda x: s + x]
    if d.values[i].is_float:
        ops += [lambda x: x / s, lambda x: s / x, lambda x: x.lerp(-x, 0.3), lambda x: torch.xlogy(x, 1.5)]
        ops += [lambda x: torch.addcmul(x, x, x, value=s), lambda x: torch.addcdiv(x, x, x.abs() + 1, value=s)]
    return d.choice(ops), [i]


@kind
def comparison(d: Draw) -> Step | None:
    i, j = d.pick(_exact), d.pick(_exact)
    if i is None or j is None:
        return None
    compare = d.choice([torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
    if d.random() < 0.5:
        return compare, [i, j]
    s = d.scalar(d.tensor(i))
    return (lambda x: compare(x, s)), [i]


@kind
def selection(d: Draw) -> Step | None:
    c = d.pick(lambda v: v.tensor.dtype == torch.bool)
    i, j = d.pick(_some), d.pick(_some)
    if c is None or i is None or j is None:
        return None
    s = d.scalar(d.tensor(i))
    if d.random() < 0.3:
        return (lambda c, x: torch.where(c, x, s)), [c, i]
    if d.random() < 0.3 and d.tensor(i).dtype != torch.bool:
        return (lambda c, x: x.masked_fill(c, s)), [c, i]
    return torch.where, [c, i, j]


@kind
def logic(d: Draw) -> Step | None:
    i, j = (d.pick(lambda v: _exact(v) and not v.is_float) for _ in range(2))
    if i is None or j is None:
        return None
    ops = [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor, torch.logical_and, torch.logical_xor]
    return d.choice(ops), [i, j]


@kind
def integer(d: Draw) -> Step | None:
    i, j = d.pick(_integer), d.pick(_integer)
    if i is None or j is None:
        return None
    s = d.choice([1, 2, 3, 5, -2, -3, 7])
    ops = [
        lambda x, y: x // (y.abs() % 50 + 1), lambda x, y: x % (y.abs() % 50 + 1), lambda x, y: x & s,
        lambda x, y: torch.div(x, s, rounding_mode="trunc"), lambda x, y: x >> (y & 3), lambda x, y: (x & 15) << 2,
        lambda x, y: x // s, lambda x, y: x % s, lambda x, y: torch.fmod(x, s), lambda x, y: torch.div(x, s, rounding_mode="floor"),
        lambda x, y: ~x, lambda x, y: torch.gcd(x, y), lambda x, y: x.sign(),
    ]  # fmt: skip
    return d.choice(ops), [i, j]


@kind
def remainder(d: Draw) -> Step | None:
    i, j = (d.pick(lambda v: _exact(v) and v.is_float) for _ in range(2))
    if i is None or j is None:
        return None
    s = d.choice([0.1, 0.7, 3.0, -2.5, 1e-3])
    ops = [torch.fmod, torch.remainder, torch.floor_divide, lambda x, y: x % s, lambda x, y: x // s]
    ops += [lambda x, y: torch.fmod(x, s), lambda x, y: torch.div(x, y, rounding_mode="trunc")]
    return d.choice(ops), [i, j]


@kind
def cast(d: Draw) -> Step | None:
    i = d.pick(lambda v: v.exact and v.tensor.numel() > 0)
    if i is None:
        return None
    to = d.choice([*FLOATS, *INTEGERS, torch.bool])
    if d.values[i].is_float and to in INTEGERS:
        return (lambda x: x.nan_to_num(0, 0, 0).clamp(0 if to == torch.uint8 else -99, 99).to(to)), [i]
    return (lambda x: x.to(to)), [i]


@kind
def float_cast(d: Draw) -> Step | None:
    i = d.pick(_float)
    to = d.choice(FLOATS)
    return None if i is None else ((lambda x: x.to(to)), [i])


def _dims(d: Draw, t: torch.Tensor) -> Sequence[int]:
    return d.sample(range(t.dim()), d.randint(1, t.dim()))


@kind
def reduction(d: Draw) -> Step | None:
    i = d.pick(_has_dims)
    if i is None:
        return None
    t = d.tensor(i)
    dims, keep, dim = _dims(d, t), d.random() < 0.5, d.dim(t)
    if not d.values[i].is_float:
        ops = [lambda x: x.sum(dims, keepdim=keep), lambda x: x.any(dim, keep), lambda x: x.all(dim, keep)]
        ops += [lambda x: x.amax(dims, keep), lambda x: x.sum(), lambda x: torch.count_nonzero(x, dim)]
        return d.choice(ops), [i]
    ops = [
        lambda x: x.sum(dims, keepdim=keep), lambda x: x.mean(dims, keepdim=keep), lambda x: x.amax(dims, keep),
        lambda x: x.amin(dims, keep), lambda x: torch.logsumexp(x, dims, keep), lambda x: x.var(dims, correction=0),
        lambda x: x.std(dims, correction=0, keepdim=keep), lambda x: x.softmax(dim), lambda x: x.log_softmax(dim),
        lambda x: x.sum(), lambda x: x.mean(), lambda x: torch.linalg.vector_norm(x, 2, dims), lambda x: x.norm(1, dim),
        lambda x: x.prod(dim, keep), lambda x: x.nansum(dims, keep), lambda x: F.normalize(x, dim=dim),
        lambda x: x.cumsum(dim), lambda x: torch.logcumsumexp(x, dim), lambda x: torch.std_mean(x, dim, correction=0)[0],
    ]  # fmt: skip
    return d.choice(ops), [i]


@kind
def search(d: Draw) -> Step | None:
    i = d.pick(lambda v: v.exact and _has_dims(v) and v.tensor.dtype != torch.bool)
    if i is None:
        return None
    t = d.tensor(i)
    dim, down = d.dim(t), d.random() < 0.5
    k = d.randint(1, t.shape[dim])
    ops = [
        lambda x: x.argmax(dim), lambda x: x.argmin(dim, keepdim=True), lambda x: x.max(dim)[0], lambda x: x.min(dim)[1],
        lambda x: x.sort(dim, descending=down, stable=True)[0], lambda x: torch.argsort(x, dim, down, stable=True),
        lambda x: x.sort(dim, descending=down, stable=True)[1], lambda x: x.topk(k, dim, down)[0],
        lambda x: x.kthvalue(k, dim)[0], lambda x: x.cummax(dim)[0], lambda x: x.cummin(dim)[0],
        lambda x: x.median(dim)[0], lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5, 2.0])),
    ]  # fmt: skip
    return d.choice(ops), [i]
