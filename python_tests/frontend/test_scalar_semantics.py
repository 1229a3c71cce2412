"""Scalars, 16-bit arithmetic, NaN and signs of zero as eager PyTorch has them, to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from support.models.exact import differences
from support.models.levels import outputs
from support.randomness import generator

NAN, INF = math.nan, math.inf
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, INF, -INF, NAN, 3.0]
HALF = [torch.float16, torch.bfloat16]


def normal(dtype, *shape):
    """Several sizes of numbers; a multiple of 64 elements, since PyTorch's own loops round otherwise in what is left."""
    rng = generator()
    values = rng.standard_normal(shape) * np.exp(rng.standard_normal(shape) * 2)
    return torch.from_numpy(values).to(dtype)


def special_pairs(dtype):
    pairs = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor(SPECIAL)).to(dtype)
    return pairs[:, 0].contiguous(), pairs[:, 1].contiguous()


def compared(x, c):
    return x == c, x != c, x < c, x <= c, x > c, x >= c


COMPARISONS = {
    "a scalar's ties": lambda x, y, n: compared(x, 0.1),
    "clamp to a tie": lambda x, y, n: x.clamp(max=0.7) >= 0.7,
    "full": lambda x, y, n: torch.full((3,), 0.1, dtype=x.dtype) == 0.1,
    "where": lambda x, y, n: torch.where(x > 0.3, x, 0),
    "where of a scalar": lambda x, y, n: torch.where(x >= 0.7, x, 0.3),
    "hardshrink": lambda x, y, n: F.hardshrink(x, 0.7),
    "softshrink": lambda x, y, n: F.softshrink(x, 0.7),
    "threshold": lambda x, y, n: F.threshold(x, 0.7, 20.0),
    "integers beside a float": lambda x, y, n: compared(n, 16777216.0),
    "integers beside floats": lambda x, y, n: compared(n, y[:5].float()),
    "masked": lambda x, y, n: x.masked_fill(x >= 0.1, 0.3),
    "isclose": lambda x, y, n: torch.isclose(x, y, rtol=0.1),
}


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_a_scalar_is_compared_in_the_dtype_of_the_tensor(dtype):
    ties = torch.tensor([0.1, 0.3, 0.7, 0.9] * 8).to(dtype)  # 16-bit floats: 32 a vector
    others = torch.tensor([2.0**24, 0.3, 0.7, 0.6, 2.0**24] + [0.1] * 27).to(dtype)
    integers = torch.tensor([2**24, 2**24 + 1, 2**24 - 1, -1, 2**24 + 2])
    assert not differences(COMPARISONS, (ties, others, integers), ["linalg", "gpu"])


OF_SCALARS = {
    "mul": lambda x, y, c: x * c,
    "scalar first": lambda x, y, c: c * x,
    "div": lambda x, y, c: x / c,
    "reciprocal": lambda x, y, c: c / x,
    "add": lambda x, y, c: x + c,
    "rsub": lambda x, y, c: c - x,
    "add's alpha": lambda x, y, c: torch.add(x, y, alpha=c),
    "sub's alpha": lambda x, y, c: torch.sub(x, y, alpha=c),
    "addcmul": lambda x, y, c: torch.addcmul(x, y, x, value=c),
    "addcdiv": lambda x, y, c: torch.addcdiv(x, x, y, value=c),
    "leaky_relu": lambda x, y, c: F.leaky_relu(x, c),
    "hardtanh": lambda x, y, c: F.hardtanh(x, -c, c),
    "softshrink": lambda x, y, c: F.softshrink(x, c),
    "floor_divide": lambda x, y, c: x // c,
    "scalar // tensor": lambda x, y, c: c // x,
    "div trunc": lambda x, y, c: torch.div(x, c, rounding_mode="trunc"),
    "remainder": lambda x, y, c: x % c,
    "scalar % tensor": lambda x, y, c: c % x,
    "threshold": lambda x, y, c: F.threshold(x, c, c * 3),
}
OF_TENSORS = {
    "floor_divide": lambda x, y: x // y,
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "round": lambda x, y: [torch.round(x, decimals=d) for d in (-1, 1, 3)],
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "a tensor of no dimension": lambda x, y: (x * y[0].float(), x / y[1].double(), x + y[2].float()),
    "prelu": lambda x, y: F.prelu(x, y[:1]),
}

ROUNDED_IN_STEPS = {  # at the gpu level a product and its sum are one fma
    "addr": lambda x, y: torch.addr(x.view(16, 8), y[:16], x[:8], beta=0.7, alpha=0.3),
    "xlogy": lambda x, y: (torch.xlogy(x, y.abs()), torch.xlogy(x, 0.7), torch.xlogy(0.7, y.abs())),
    "logit": lambda x, y: (torch.logit(x.abs().clamp(max=1), 1e-3), torch.logit(x.abs().clamp(max=1))),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(
        x.abs().clamp(max=1), y.abs().clamp(max=1), reduction="none"
    ),
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, y, reduction="none"),
}


@pytest.mark.parametrize("dtype", HALF)
def test_16_bit_arithmetic_is_rounded_as_in_eager(dtype):
    x, y = normal(dtype, 128), normal(dtype, 128)
    for c in (0.1, 3.3):
        programs = {f"{n} {c}": lambda x, y, f=f, c=c: f(x, y, c) for n, f in OF_SCALARS.items()}
        programs |= OF_TENSORS if c == 0.1 else ROUNDED_IN_STEPS
        assert not differences(programs, (x, y), ["linalg", "gpu"] if c == 0.1 else ["linalg"])


def test_scalars_of_doubles_keep_their_bits():
    """An f32 number on the way is off by 1e-9 and more."""
    x, y = normal(torch.float64, 128), normal(torch.float64, 128)
    programs = {f"{n} {c}": lambda x, y, f=f, c=c: f(x, y, c) for n, f in OF_SCALARS.items() for c in (0.1, 1 / 3)}
    functions = list(programs.values())
    results = outputs(lambda x, y: [f(x, y) for f in functions], (x, y), "tiles")
    for name, function, got in zip(programs, functions, results, strict=True):
        torch.testing.assert_close(got, function(x, y), rtol=1e-14, atol=1e-14, msg=name)


def test_scalars_that_16_bits_cannot_hold():
    x = torch.tensor([0.0, 0.5, 1.0, 5.0078, 7000.0, 65504.0, 1.25, -1.0] * 8, dtype=torch.float16)
    programs = {
        "products": lambda x: (x / 70000, x * 70000, x * 1e-8, F.leaky_relu(-x, 1e-8), x / 1e-9),
        "comparisons": lambda x: compared(x, 70000.0),
        "to decimals": lambda x: torch.round(x, decimals=1),
        "ldexp": lambda x: [torch.ldexp(x, torch.full((1,), n)) for n in (20, -30)],
    }
    assert not differences(programs, (x,), ["linalg", "gpu"])


SIGNS = {
    "itself": lambda x, y: (*compared(x, x), x.clone() == x, torch.isclose(x, x), torch.isclose(x, x, equal_nan=True)),
    "differences": lambda x, y: (x - x, x / x, x * 0, x * torch.zeros_like(x), x - 0, 0 - x),
    "the same twice": lambda x, y: (torch.maximum(x, x), torch.where(x > 0, x, x), torch.fmin(x, x)),
    "sums with zero": lambda x, y: (x + 0, x + 0.0, x - (-0.0), x + (-0.0), x * 1, x / 1, x - torch.zeros_like(x)),
    "rounding": lambda x, y: (x.trunc(), x.frac(), x.floor(), x.ceil(), x.round(), 1 / x.trunc()),
    "activations": lambda x, y: (F.relu(x), F.relu6(x), F.hardtanh(x), x.clamp(min=0), x.clamp(max=-0.0)),
    "slopes": lambda x, y: [F.leaky_relu(x, c) for c in (0.0, -0.0, INF, -0.5)],
    "bounds": lambda x, y: (F.hardshrink(x, 0.6), F.threshold(x, 0.0, 0.0), x.clamp(NAN, 1.0)),
    "xlogy": lambda x, y: (torch.xlogy(0.0, x), torch.xlogy(x, 0.0), torch.xlogy(y, NAN)),
    "copysign": lambda x, y: (torch.copysign(x, y), torch.copysign(x, -0.0)),
    "comparisons": lambda x, y: compared(x, y),
    "of scalars": lambda x, y: (1.0 // x, x // -0.0, x**0, 2.0 * x),
    "tanh": lambda x, y: torch.tanh(torch.where(x.abs() == 0, x, 0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_nan_infinities_and_signs_of_zero(dtype):
    assert not differences(SIGNS, special_pairs(dtype), ["linalg", "gpu"])


def test_ldexp_of_every_power():
    powers = torch.tensor([-300, -160, -149, -127, -126, -30, -1, 0, 1, 100, 127, 128, 130, 250, 300, 2**31 - 1])
    x = torch.tensor([0.0, -0.0, 1.0, -1.5, 1e-30, 1e-45, 1.0000001, 3e38, INF, NAN])[:, None]
    programs = {
        "f32": lambda x, e: torch.ldexp(x, e),
        "int32": lambda x, e: torch.ldexp(x, e.to(torch.int32)),
        "of integers": lambda x, e: torch.ldexp(e, e.clamp(-9, 9)),
        "by floats": lambda x, e: torch.ldexp(x, e.clamp(-7, 7) / 2.0),
    }
    assert not differences(programs, (x, powers), ["linalg", "gpu"])


OVERLOADS = {
    "in place": lambda x, n: [getattr(x + 0, f"{name}_")(2) for name in ("pow", "add", "mul", "div", "fmod", "eq")],
    "power in place": lambda x, n: ((x + 0).pow_(x), (n + 0).pow_(2), (x + 0).pow_(0.5)),
    "power of a scalar": lambda x, n: (2**x, 2.0**n, 2 ** (n % 7)),
    "scalar first": lambda x, n: (1.0 // x, 7 // n, 7 % n, 1.5 % n, 2.0 // n, 100 - n, 3 / n),
    "bits": lambda x, n: (5 & n, 5 | n, 5 ^ n, 3 << (n % 5), 96 >> (n % 5)),
    "comparisons": lambda x, n: (1 < n, 0.5 >= x),
    "xlogy": lambda x, n: (torch.xlogy(0.0, n), torch.special.xlog1py(0, n)),
}


def test_overloads_with_a_scalar():
    x, n = torch.tensor([0.5, 1.0, 4.0, 0.25]), torch.tensor([1, 2, 3, -4])
    assert not differences(OVERLOADS, (x, n), ["linalg", "gpu"])


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_losses_have_the_dtype_that_eager_gives_them(reduction):
    losses = (F.huber_loss, F.smooth_l1_loss, F.mse_loss, F.l1_loss)
    programs = {
        f"{loss.__name__} {a} {b}": lambda x, loss=loss, a=a, b=b: loss(x.to(a), (x > 1).to(b) * 2, reduction=reduction)
        for loss in losses
        for a in FLOATS
        for b in (*FLOATS, torch.int64)
    }
    programs |= {
        f"soft_margin_loss {a} {b}": lambda x, a=a, b=b: F.soft_margin_loss(x.to(a), (x * 0).to(b), reduction=reduction)
        for a in FLOATS
        for b in (*FLOATS, torch.int64)
        if a != torch.float64
    }
    assert not differences(programs, (torch.tensor([0.0, 1.0, 2.0, 3.0]),), ["linalg"])
