"""Loops whose state is a linear recurrence: one scan, and everything else for all steps at once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mlirc
from mlirc.check.live import check_torch


class Averages(nn.Module):
    """Moving averages, each from a decay of its own; the state is given, or zeros."""

    def __init__(self, dim: int, backwards: bool = False):
        super().__init__()
        self.dim, self.backwards = dim, backwards

    def forward(self, decay, x, state):
        rows = []
        places = range(x.shape[self.dim])
        for i in reversed(places) if self.backwards else places:
            state = decay.select(self.dim, i) * state + x.select(self.dim, i)
            rows.append(state)
        return torch.stack(rows[::-1] if self.backwards else rows, self.dim)


class Selective(nn.Module):
    """A selective scan of x [B, L, D], as Mamba's plain path writes it, with what stands around it."""

    def __init__(self, channels: int, state: int):
        super().__init__()
        self.decay = nn.Parameter(torch.randn(channels, state))
        self.skip = nn.Parameter(torch.randn(channels))

    def forward(self, x, steps, b, c):
        a = torch.exp(-torch.exp(self.decay)[None, None] * steps[..., None])
        term = (steps * x)[..., None] * b[:, :, None]
        state = torch.zeros_like(term[:, 0])
        rows = []
        for i in range(x.shape[1]):
            state = a[:, i] * state + term[:, i]
            rows.append(torch.matmul(state.to(x.dtype), c[:, i].unsqueeze(-1))[:, :, 0])
        return torch.stack(rows, 1) + x * self.skip


@pytest.mark.parametrize(
    ("shape", "dim"), [((3, 40, 5), 1), ((33, 7), 0), ((3, 25), 1), ((2, 17, 3, 11), 1)], ids=lambda v: str(v)
)
@pytest.mark.parametrize("backwards", [False, True])
def test_averages(shape, dim, backwards):
    rest = [n for d, n in enumerate(shape) if d != dim]
    inputs = torch.rand(shape), torch.randn(shape), torch.randn(rest)
    result = check_torch(Averages(dim, backwards), inputs, levels=["kernels", "gpu"])
    assert result.ok, result.reason()


def test_factors_above_one_overflow_where_the_steps_do():
    """The products of all factors are infinite; of a state of zeros that nothing is added to nothing comes."""
    inputs = torch.full((40, 5), 100.0), torch.zeros(40, 5), torch.zeros(5)
    model = mlirc.compile(Averages(0), inputs, device="host")
    assert len(model.plan.steps) == 1
    (got,) = model.flat(*inputs)
    assert not torch.as_tensor(got).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_selective_scan(dtype):
    module = Selective(6, 4).to(dtype)
    inputs = torch.randn(2, 19, 6), torch.rand(2, 19, 6), torch.randn(2, 19, 4), torch.randn(2, 19, 4)
    inputs = tuple(x.to(dtype) for x in inputs)
    result = check_torch(module, inputs, levels=["kernels", "gpu"])
    assert result.ok, result.reason()
    plan = mlirc.compile(module, inputs, device="host").plan
    assert len(plan.steps) - plan.setup == 1  # what depends on weights alone is computed at load
