"""Scans of few long rows whose blocks hand on what is before them, on the host device."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc.errors import MlircError
from support.models.together import Calls

KNOBS = "scan:chain=true,warps=1,vector=1,step=128"


def run(function, x, knobs=KNOBS, input_sets="none"):
    """What the one kernel of a function computes on the host device."""
    model = mlirc.compile(Calls(function), (x,), device="host", schedule=[knobs])
    model.input_sets = input_sets
    assert len(model.plan.steps) == 1
    return [torch.as_tensor(r) for r in model.flat(x)]


# Steps of one group of 32 blocks, the last one full or not; of two groups; of several warps, and several rows.
CASES = [((1, 5 * 128), KNOBS), ((3, 331), KNOBS), ((1, 4300), KNOBS), ((2, 3001), KNOBS.replace("warps=1", "warps=2"))]


@pytest.mark.parametrize(("shape", "knobs"), [(s, k.replace("128", "256") if "=2" in k else k) for s, k in CASES])
def test_sums(shape, knobs):
    x = torch.randn(shape)
    (got,) = run(lambda x: x.cumsum(-1), x, knobs, "quick" if shape[0] == 3 else "none")
    torch.testing.assert_close(got.double(), x.double().cumsum(-1), rtol=2e-6, atol=5e-5)


def test_what_does_not_commute_and_what_comes_from_behind():
    x = torch.randn(2, 400)
    x[0, 300], x[1, 350] = torch.nan, torch.inf
    for function in (lambda x: x.cummax(-1), lambda x: x.logcumsumexp(-1), lambda x: x.flip(1).cumsum(1).flip(1)):
        got, want = run(function, x), function(x)
        for a, b in zip(got, want if isinstance(want, tuple) else [want], strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-5, equal_nan=True)


def test_integers_are_exact():
    x = torch.randint(-(2**40), 2**40, (1, 900))
    (got,) = run(lambda x: x.cumsum(-1), x)
    assert torch.equal(got, x.cumsum(-1))


def test_long_rows_are_chained_unless_there_are_many():
    def grid(rows):
        x = torch.zeros(rows, 1 << 17)
        return mlirc.compile(Calls(lambda x: x.cumsum(1)), (x,), device="host").plan.steps[0].grid[0]

    assert grid(1) > 16 and grid(2) == 2 * grid(1) and grid(200) == 200


def test_steps_must_be_whole_warps():
    with pytest.raises(MlircError, match="no whole warps"):
        run(lambda x: x.cumsum(-1), torch.zeros(1, 1000), KNOBS.replace("step=128", "step=100"))
