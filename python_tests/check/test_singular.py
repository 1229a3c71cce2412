"""Elements that rounding alone takes across a singularity: what is right there, and what is not."""

from __future__ import annotations

import math

import pytest
import random_cases
import torch
import torch.nn.functional as F

from mlirc.check.compare import Reference, compare
from mlirc.check.reference import TorchModel
from mlirc.frontend.source import from_torch
from support.models.together import Calls, randn

INF, NAN = math.inf, math.nan


def _judged(out: list, eager: list, wide: list, *moved: list) -> bool:
    """Whether numbers of f32 are right beside those of PyTorch."""
    runs = tuple(torch.tensor(m) for m in moved)
    return not compare(
        torch.tensor(out), Reference(torch.tensor(eager), torch.tensor(wide, dtype=torch.float64), runs)
    ).wrong


def test_results_of_another_kind_may_be_any_of_them():
    assert _judged([1.0, 0.0, 2.0], [1.0, 0.0, 2.0], [1.0, -INF, 2.0])  # what is below 0 in FP64 alone
    assert _judged([1.0, -INF, 2.0], [1.0, 0.0, 2.0], [1.0, -INF, 2.0])
    assert _judged([1.0, NAN, 2.0], [1.0, -16.0, 2.0], [1.0, -17.0, 2.0], [1.0, NAN, 2.0])
    assert not _judged([1.0, NAN, 2.0], [1.0, 0.0, 2.0], [1.0, -INF, 2.0])
    assert not _judged([1.0, INF, 2.0], [1.0, 0.0, 2.0], [1.0, -INF, 2.0])
    assert not _judged([1.0, 0.0, 2.5], [1.0, 0.0, 2.0], [1.0, -INF, 2.0])  # the others are compared


def test_what_agrees_is_compared():
    for agreed in (INF, -INF, NAN):
        assert _judged([1.0, agreed, 2.0], [1.0, agreed, 2.0], [1.0, agreed, 2.0], [1.0, agreed, 2.0])
        assert not _judged([1.0, 0.0, 2.0], [1.0, agreed, 2.0], [1.0, agreed, 2.0], [1.0, agreed, 2.0])
    assert not _judged([1.0, INF, 2.0], [1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [1.0, 3.0, 2.0])


def test_near_a_pole_errors_are_those_of_reciprocals():
    eager, wide = [3.0, 2e12, 1.0], [3.0, 1e21, 1.0]
    for right in (INF, -INF, 1e30, -5e13, 2e12):
        assert _judged([3.0, right, 1.0], eager, wide)
    assert not _judged([3.0, NAN, 1.0], eager, wide)
    assert not _judged([3.0, 2e12, 1.5], eager, wide)
    assert not _judged([3.0, INF, 1.0], [3.0, 1.0001e12, 1.0], [3.0, 1e12, 1.0])  # a large number, but a certain one


@pytest.mark.parametrize(("eager", "wide"), [(2e-9, 1e-17), (2e-9, 0.0), (0.0, 1e-17)])
def test_what_a_difference_leaves_is_no_pole(eager, wide):
    for wrong in (INF, 1e5):
        assert not _judged([3.0, wrong, 1.0], [3.0, eager, 1.0], [3.0, wide, 1.0])
        assert not _judged([wrong], [eager], [wide])
    assert _judged([3.0, -1e-9, 1.0], [3.0, eager, 1.0], [3.0, wide, 1.0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_attention_is_also_that_of_pytorch_itself(dtype):
    """Not only by its formula: in f16 fused attention may round weights that decide which side of 0 a result is on."""
    x = randn(5, 2, 5, 17).mul(4).round().div(2).to(dtype)
    model = TorchModel(from_torch(Calls(lambda x: F.scaled_dot_product_attention(x, x, x)), (x,)))
    own = model.moved([x])[0][0]
    assert torch.equal(own, F.scaled_dot_product_attention(x, x, x))
    x[1, 1, 2] = NAN
    own = model.moved([x])[0][0]
    assert bool(own[1, 1, 2].isnan().all())


@pytest.mark.parametrize("seed", [241, 2673, 2986])
def test_programs_that_rounding_decides_are_right(seed):
    """The sign of what attention leaves, poles at what a norm leaves."""
    assert random_cases.run_case(str(seed), "tiles", lambda who: None).outcome == "right"
