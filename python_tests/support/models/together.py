"""Many small functions as one model, so that a test imports and compiles once."""

from __future__ import annotations

import torch
from torch import nn

from mlirc.check import check_torch
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target


class Together(nn.Module):
    """Calls each function of `cases`, (function, its inputs), on its share of the inputs, and returns all results."""

    def __init__(self, cases):
        super().__init__()
        self.cases = cases

    def forward(self, *inputs):
        left = list(inputs)
        return [function(*[left.pop(0) for _ in args]) for function, args in self.cases]


def check_together(cases, levels=("tiles", "gpu"), kinds=("plain", "one NaN")) -> None:
    """Compares every function with PyTorch; inputs are the check's, in the shapes and ranges of the examples."""
    result = check_torch(Together(cases), tuple(x for _, args in cases for x in args), levels=levels, kinds=kinds)
    assert result.ok, result.table()


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def below(n, *shape):
    """Integers from 0 to n - 1; both occur where there is room."""
    return torch.arange(torch.Size(shape).numel()).flip(0).mul(7).remainder(n).reshape(shape)


class Calls(nn.Module):
    """A module that calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def linalg_of(function, inputs) -> str:
    """The `linalg` level of a model that is one function."""
    job = Compilation("model", get_target("sm_90a"), (), helpers=0)
    job.import_module(Calls(function).eval(), tuple(inputs), {})
    job.lower("linalg")
    return job.text("linalg")
