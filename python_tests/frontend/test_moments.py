"""Variances and norms of data that is far from 0, or whose squares no f32 holds, beside FP64 at every level."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.check import check_torch
from support.models.levels import outputs
from support.models.together import Calls

FAR = 1e4


def moments(x, y, z):
    return (x.var(-1), *torch.var_mean(x, (0, 2)), x.std(), torch.std(x, 0), y.var(0), *torch.std_mean(z, 1))


def norms(x, y, z):
    weight = torch.linspace(1, 2, y.shape[1], dtype=y.dtype)
    return (
        F.layer_norm(x, x.shape[1:]),
        F.group_norm(y, 2),
        F.group_norm(y, 2, weight, weight),
        F.instance_norm(y),
        F.batch_norm(y, None, None, training=True),
        F.batch_norm(z, None, None, weight[:1].repeat(z.shape[1]), training=True),
    )


@pytest.mark.parametrize("function, gate", [(moments, 2e-6), (norms, 2e-3)])
@pytest.mark.parametrize("level", ["kernels", "tiles", "gpu"])
def test_data_far_from_0(function, gate, level):
    """Norms that read a mean from another kernel have its rounding, 6e-8 of it, as PyTorch's have."""
    args = (torch.randn(3, 5, 67) + FAR, torch.randn(2, 4, 9, 11) - FAR, torch.randn(35, 13) + FAR)
    for got, want in zip(outputs(function, args, level), function(*(x.double() for x in args)), strict=True):
        assert torch.linalg.norm(got.double() - want) <= gate * torch.linalg.norm(want)


@pytest.mark.parametrize("level", ["kernels", "tiles"])
def test_reductions_of_parts(level):
    """Rows that no block holds, and channels whose pixels are rows."""

    def function(x, y):
        return F.group_norm(x, 1, x.new_ones(2)), F.batch_norm(y, None, None, training=True)

    args = (torch.randn(1, 2, 3 << 16) + FAR, torch.randn(5, 3, 13, 17) + FAR)
    for got, want in zip(outputs(function, args, level), function(*(x.double() for x in args)), strict=True):
        assert torch.linalg.norm(got.double() - want) <= 2e-3 * torch.linalg.norm(want)


@pytest.mark.parametrize("level", ["tiles", "gpu"])
def test_deviations_whose_squares_f32_does_not_hold(level):
    nan, inf = float("nan"), float("inf")

    def function(x, y, z):
        return x.std(), y.std(-1), y.var(-1), z.std(-1), z.var(-1), z.std(-1, correction=3), z[0, :1].std()

    z = torch.tensor([[1e5, 1e5, 1e5], [nan, 0, 1], [inf, 0, 1]])
    args = (torch.tensor([1e20, -1e20]), torch.randn(3, 40) * 1e-30, z)
    for got, want in zip(outputs(function, args, level), function(*args), strict=True):
        assert torch.allclose(got, want, rtol=1e-5, atol=0, equal_nan=True)


def test_halves_are_rounded_once():
    def function(x):
        return x.var(-1), x.std(0, keepdim=True), F.layer_norm(x, x.shape[-1:]), F.group_norm(x, 1), torch.std_mean(x)

    for dtype in (torch.float16, torch.bfloat16):
        result = check_torch(Calls(function), (torch.randn(5, 3, 7).to(dtype),), levels=["tiles", "gpu"])
        assert result.ok, result.reason()
