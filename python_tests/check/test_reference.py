"""The reference of a check where FP64 differs from the model's dtype by more than rounding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.check import check_torch
from mlirc.check.compare import Reference, compare
from mlirc.check.wide import in_float64, remember
from support.models.together import Calls, check_together, randn

HALF = [torch.float16, torch.bfloat16]


def test_what_cancels_but_for_rounding_is_no_false_alarm():
    cases = [(lambda x, t=t: x - x.to(t).float(), (randn(5, 7),)) for t in HALF]
    cases += [(lambda x: (x + 1 - x).var(1), (randn(5, 7, dtype=torch.bfloat16),))]
    cases += [(lambda x: F.group_norm(x, 7).mean(), (randn(1, 7, 8, dtype=torch.float16),))]
    check_together(cases, levels=["tiles"], kinds=["plain"])


def test_more_than_rounding_leaves_is_wrong():
    left = randn(5, 7) * 1e-3
    zero = torch.zeros(5, 7, dtype=torch.float64)
    assert not compare(left.flip(0), Reference(left, zero)).wrong
    assert compare(left * 5, Reference(left, zero)).wrong
    assert compare(left, Reference(torch.zeros(5, 7), zero)).wrong


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("eps", [None, 1e-8])
def test_rms_norm_has_the_eps_of_its_arithmetic(dtype, eps):
    x = torch.cat([randn(2, 5), torch.zeros(1, 5), torch.full((1, 5), 1e-4)]).to(dtype)
    with in_float64(torch.float32):
        wide = F.rms_norm(remember(x.double(), dtype), [5], eps=eps)
    right = F.rms_norm(x.double(), [5], eps=eps or torch.finfo(torch.float32).eps)
    torch.testing.assert_close(wide, right, rtol=1e-7, atol=0)
    norm = Calls(lambda x: F.rms_norm(x, [5], eps=eps))
    assert check_torch(norm, (x,), levels=["tiles"], kinds=["plain", "zeros", "tiny floats"]).ok


def test_neighbours_are_those_of_the_dtype():
    x = randn(31)
    with in_float64(torch.float32):
        wide = torch.nextafter(remember(x.double(), torch.float32), remember(x.double() * 0, torch.float32))
    assert torch.equal(wide.float(), torch.nextafter(x, x * 0))
    check_together([(lambda x: (torch.nextafter(x, -x) - x) * 1e6, (x,))], levels=["tiles"], kinds=["plain", "one NaN"])


def test_numbers_of_finfo_are_those_of_the_dtype():
    def function(x):
        info = torch.finfo(x.dtype)
        return (x * 0).clamp(min=info.eps), x * 0 + info.tiny, (x * 0).masked_fill(x > 0, info.max)

    check_together([(function, (randn(3, 5, dtype=t),)) for t in (*HALF, torch.float32)], levels=["tiles"])


class Sign(torch.nn.Module):
    """NaN's sign is whatever a machine makes of it; other signs are compared."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong

    def forward(self, x):
        nan = x * float("nan")
        signs = torch.signbit(torch.cat([x, nan])), torch.copysign(x.abs(), nan)
        flipped = self.wrong and torch.compiler.is_compiling()
        return (~signs[0] if flipped else signs[0]), *signs[1:]


@pytest.mark.parametrize("wrong", [False, True])
def test_the_sign_of_a_nan_is_undefined(wrong):
    assert check_torch(Sign(wrong), (randn(3, 5),), levels=["linalg"]).ok != wrong


class Bins(torch.nn.Module):
    """Transforms of each row, and what follows from them. One row has an infinity: others are compared."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong

    def forward(self, x):
        bins = torch.fft.rfft(x)
        other = 2.0 if self.wrong and torch.compiler.is_compiling() else 1.0
        return bins.abs() * other, bins.angle(), torch.fft.irfft(bins), torch.fft.fft2(x).real, (bins.abs() > 1).sum(-1)


@pytest.mark.parametrize("wrong", [False, True])
def test_transforms_of_infinities_are_undefined(wrong):
    kinds = ["one infinity", "one NaN"]
    assert check_torch(Bins(wrong), (randn(3, 9),), levels=["tiles"], kinds=kinds).ok != wrong
