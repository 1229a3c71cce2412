"""Cumulative sums, products and extrema, along any dimension, on the host device."""

from __future__ import annotations

import pytest
import torch

import mlirc


class _Scan(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class _Masked(torch.nn.Module):
    def forward(self, x, mask):
        return (x.float() * mask).cumsum(1).to(x.dtype) * 2


def run(function, x):
    """What the compiled kernels of a function compute on the host device."""
    return [torch.as_tensor(r) for r in mlirc.compile(_Scan(function), (x,), device="host").flat(x)]


# One element, lanes of one warp, several warps, and several steps of a block, of which the last one is not full.
LENGTHS = [1, 2, 31, 128, 997, 4096, 9001]


@pytest.mark.parametrize("length", LENGTHS)
def test_sums_and_products(length):
    torch.manual_seed(length)
    x = torch.randn(2, length)
    near_one = 1 + x / 100
    for got, want in zip(
        run(lambda x: (x.cumsum(-1), x.t().cumsum(0), (1 + x / 100).cumprod(1)), x),
        (x.double().cumsum(-1), x.double().t().cumsum(0), near_one.double().cumprod(1)),
        strict=True,
    ):
        torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=5e-5)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((7, 31), 1),
        ((40, 33), 1),
        ((300, 5), 0),
        ((2, 70, 3), 1),
        ((3, 33, 130), 1),
        ((2, 17, 4, 5), 2),
        ((1000, 1), 0),
    ],
)
def test_any_dimension(shape, dim):
    x = torch.randn(shape)
    (got,) = run(lambda x: x.cumsum(dim), x)
    torch.testing.assert_close(got.double(), x.double().cumsum(dim), rtol=2e-6, atol=2e-5)
    steps = (x * 3).round()
    for got, want in zip(run(lambda x: x.cummax(dim), steps), steps.cummax(dim), strict=True):
        assert torch.equal(got, want)


def test_integers_are_exact():
    torch.manual_seed(0)
    x = torch.randint(-(2**31), 2**31 - 1, (3, 300), dtype=torch.int32)
    got = run(lambda x: (x.cumsum(1), x.cumprod(1), (x > 0).cumsum(1), x.cumsum(1, dtype=torch.int32)), x)
    want = (x.cumsum(1), x.cumprod(1), (x > 0).cumsum(1), x.cumsum(1, dtype=torch.int32))
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, want, strict=True))


def test_infinities_and_nans_go_on():
    x = torch.zeros(4, 300)
    x[0, 70], x[1, 100], x[2, 10], x[2, 200] = torch.inf, torch.nan, torch.inf, -torch.inf
    (got,) = run(lambda x: x.cumsum(1), x)
    torch.testing.assert_close(got, x.cumsum(1), equal_nan=True)


@pytest.mark.parametrize("length", [1, 70])
def test_extrema_and_log_sums(length):
    torch.manual_seed(length)
    x = torch.randint(-3, 4, (2, length, 3)).float()
    x[0, length // 2, 0], x[1, length // 3, 1], x[1, 0, 2] = torch.nan, torch.inf, -torch.inf
    got = run(lambda x: (*x.cummax(1), *x.cummin(1), x.logcumsumexp(1)), x)
    want = (*x.cummax(1), *x.cummin(1), x.logcumsumexp(1))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=2e-6, atol=2e-6)
    numbers = x.nan_to_num(0, 9, -9).int()
    got = run(lambda x: (*x.cummax(-1), *x.cummin(0)), numbers)
    assert all(torch.equal(a, b) for a, b in zip(got, (*numbers.cummax(-1), *numbers.cummin(0)), strict=True))


@pytest.mark.parametrize(("shape", "dim"), [((3, 1000), 1), ((200, 2001), 1), ((90, 130), 0), ((2, 333, 5), 1)])
def test_from_the_last_element(shape, dim):
    """Flips around a scan are one kernel."""
    x = torch.randn(shape)
    model = mlirc.compile(_Scan(lambda x: x.flip(dim).cumsum(dim).flip(dim)), (x,), device="host")
    assert len(model.plan.steps) == 1
    want = x.double().flip(dim).cumsum(dim).flip(dim)
    torch.testing.assert_close(torch.as_tensor(model.flat(x)[0]).double(), want, rtol=2e-6, atol=5e-5)


def test_few_long_columns_are_cut_into_parts():
    x = torch.randn(16391, 2)
    for got, want in zip(
        run(lambda x: (x.cumsum(0), (1 + x / 1000).cumprod(0), x.round().long().cumsum(0)), x),
        (x.double().cumsum(0), (1 + x.double() / 1000).cumprod(0), x.round().long().cumsum(0)),
        strict=True,
    ):
        torch.testing.assert_close(got.double(), want.double(), rtol=2e-5, atol=1e-4)


def test_maps_around_a_scan_join_its_kernel():
    x, mask = torch.randn(40, 333).bfloat16(), torch.rand(40, 333) < 0.5
    model = mlirc.compile(_Masked(), (x, mask), device="host")
    assert len(model.plan.steps) == 1
    (got,) = model.flat(x, mask)
    want = (x.double() * mask).cumsum(1) * 2
    torch.testing.assert_close(torch.as_tensor(got).double(), want, rtol=2e-2, atol=2e-2)


def test_half_precision_is_summed_in_f32():
    torch.manual_seed(0)
    x = torch.randn(2, 1000).half()
    (got,) = run(lambda x: x.cumsum(1), x)
    torch.testing.assert_close(got, x.double().cumsum(1).half(), rtol=1e-3, atol=1e-3)
