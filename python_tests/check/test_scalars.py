"""The reference of a check has the scalars, the integers and the constants that the model's dtype gives them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.check.reference import TorchModel
from mlirc.frontend import from_torch
from support.models.together import Calls

PROGRAMS = {
    "comparison": lambda x: (x == 0.1, x.clamp(max=0.7) >= 0.7, x < 0.3, x >= x * 1),
    "full": lambda x: (torch.full((3,), 0.1, dtype=x.dtype) == 0.1, torch.full_like(x, 0.3) >= 0.3),
    "constant": lambda x: torch.tensor([0.1, 0.7], dtype=x.dtype) == 0.1,
    "where": lambda x: torch.where(x > 0.3, x, 0.7) == 0.7,
    "activations": lambda x: (F.hardshrink(x, 0.7) == 0, F.threshold(x, 0.1, 20.0) == 20),
    "casts": lambda x: (x.float() == 0.1, x.to(torch.float32) >= 0.7, x.double() == 0.1),
    "integers": lambda x: (torch.tensor([2**24 + 1]) == 16777216.0, torch.tensor([2**24 + 1]).float() == 16777216.0),
    "NaN": lambda x: (x / 0 != x / 0, (x - x) / 0 == 0, torch.isclose(x, x)),
    "in place": lambda x: (x + 0).fill_(0.1) == 0.1,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_ties_with_scalars_are_eager_ones(dtype):
    x = torch.tensor([0.1, 0.3, 0.7, 0.9, 0.0, 2.0] * 16).to(dtype)
    model = TorchModel(from_torch(Calls(lambda x: [f(x) for f in PROGRAMS.values()]), (x,)))
    references = model.references([x])
    assert model.is_wide
    for i, reference in enumerate(references):
        assert torch.equal(reference.eager, reference.wide), i


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("scale", torch.tensor([0.5, 0.1]))

    def forward(self, x, counts):
        out = self.layer(x) * self.scale + counts / 3
        return out.to(torch.float32) * 70000, self.scale == 0.1, F.leaky_relu(out, 1e-8), x * 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_numbers_are_still_in_float64(dtype):
    torch.manual_seed(0)
    module, x, counts = Scaled().to(dtype), torch.randn(4, 3).to(dtype), torch.tensor([1, 2])
    model = TorchModel(from_torch(module, (x, counts)))
    scaled, ties, leaky, tenth = model.references([x, counts])
    assert model.is_wide and all(r.wide.dtype == torch.float64 for r in (scaled, leaky, tenth))
    assert torch.equal(tenth.wide, x.double() * float(torch.tensor(0.1)))
    assert ties.wide.tolist() == [False, True]
    inner = model.module.layer
    products = F.linear(x.double(), inner.weight.double(), inner.bias.double()) * module.scale.double()
    torch.testing.assert_close(scaled.wide, (products + counts.double() / 3) * 70000, rtol=1e-3, atol=1e-3)
    assert not torch.equal(scaled.wide, scaled.eager.double())
