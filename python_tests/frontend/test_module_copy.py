"""Copies of modules that hold what Python cannot copy."""

from __future__ import annotations

import math
import sys
import threading
import weakref

import pytest
import torch
from torch import nn

from mlirc.check import check_torch
from mlirc.errors import MlircError
from mlirc.frontend.module_copy import copied_module


class Holder:
    def __init__(self, module):
        self.lock, self.module = threading.Lock(), module


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.weight_norm(nn.Linear(4, 3))
        self.lock, self.event, self.local = threading.RLock(), threading.Event(), threading.local()
        self.drawing = torch.Generator().manual_seed(3)
        self.steps = (i for i in range(3))
        self.cache = {"keys": [self.linear.weight * 2], "lock": (threading.Lock(), 1)}
        self.library, self.file = math, sys.stdout
        self.holder, self.reference = Holder(self), weakref.ref(self.linear)
        self.register_buffer("sums", self.linear.weight.sum(0))
        self.same, self.method = (self.linear.weight,), self.linear.extra_repr

    def forward(self, x):
        with self.lock:
            return self.linear(x)


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_copied_is_shared_and_all_tensors_are_the_copys_own():
    module = Odd()
    found = copied_module(module)
    for name in ("lock", "local", "steps", "library", "file"):
        assert getattr(found, name) is getattr(module, name)
    assert found.holder is not module.holder and found.holder.module is found
    assert found.holder.lock is module.holder.lock and found.cache["lock"][0] is module.cache["lock"][0]
    assert found.same[0] is found.linear.weight and found.method.__self__ is found.linear
    pairs = [(found.linear.weight_g, module.linear.weight_g), (found.linear.weight, module.linear.weight)]
    pairs += [(found.cache["keys"][0], module.cache["keys"][0]), (found.sums, module.sums)]
    for ours, theirs in pairs:
        assert torch.equal(ours, theirs) and ours.data_ptr() != theirs.data_ptr()
    wanted = torch.rand(3, generator=module.drawing)
    assert torch.equal(torch.rand(3, generator=found.drawing), wanted)


class Refusing(nn.Linear):
    def __deepcopy__(self, memo):
        raise TypeError("no copies")


def test_a_module_that_refuses_is_refused_in_one_line():
    with pytest.raises(MlircError, match="Refusing cannot be copied, .*no copies: give it a __deepcopy__"):
        copied_module(Refusing(2, 3))


@pytest.mark.filterwarnings("ignore")
def test_check_of_modules_that_hold_tensors_with_a_history():
    for module in (Odd(), nn.utils.spectral_norm(nn.Linear(4, 3))):
        result = check_torch(module, (torch.randn(2, 4),), levels=["linalg"], kinds=["plain"])
        assert result.ok, result.table()
