"""Integers computed from positions: 64-bit ones are not computed as indices, which have 32 bits on a GPU."""

from __future__ import annotations

import re

import pytest
import torch

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target


class _Hash(torch.nn.Module):
    """A position by a factor, with something read, so that it is not folded."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        place = torch.cumsum(torch.ones_like(x), 0) + torch.arange(x.shape[0])
        return x + torch.arange(x.shape[0]) * self.factor, (place * self.factor) >> 20


@pytest.mark.parametrize("factor", [3, 3449720151, -(1 << 40) + 7])
def test_products_of_positions(factor):
    x = torch.arange(-500, 523)
    model = mlirc.compile(_Hash(factor), (x,), device="host")
    for got, want in zip(model(x), _Hash(factor)(x), strict=True):
        assert torch.equal(got, want)


def test_random_numbers_do_not_wrap_at_32_bits():
    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.rand(x.shape) + x

    job = Compilation("model", get_target("sm_90a"), helpers=0)
    job.import_module(Net(), (torch.zeros(1023),), {})
    job.lower("kernels")
    text = job.text("kernels")
    assert "linalg.index" in text
    constants = [int(n) for n in re.findall(r"arith.constant (-?\d+) : index", text)]
    assert all(-(1 << 31) <= n < 1 << 31 for n in constants), constants
