"""NaN and infinities go through operations as in PyTorch, on the host device."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import mlirc

OTHER = torch.tensor([[torch.nan, -torch.inf, torch.inf, torch.nan, 0.5, 0.0, -torch.inf]])
VALUES = torch.tensor([[1.0, torch.nan, torch.inf, -torch.inf, 0.0, torch.nan, -2.5], [3, 1, 2, 1, 3, 0, -1]])

ELEMENTWISE = {
    "minimum": lambda x, y: torch.minimum(x, y),
    "minimum, other order": lambda x, y: torch.minimum(y, x),
    "maximum": lambda x, y: torch.maximum(x, y),
    "maximum, other order": lambda x, y: torch.maximum(y, x),
    "fmax": lambda x, y: torch.fmax(x, y),
    "fmin": lambda x, y: torch.fmin(x, y),
    "clamp": lambda x, y: x.clamp(-1, 1),
    "clamp to NaN": lambda x, y: x.clamp(float("nan"), 1),
    "clamp from below": lambda x, y: x.clamp_min(0.5),
    "clamp from above": lambda x, y: x.clamp_max(0.5),
    "clamp to tensors": lambda x, y: x.clamp(y, y + 1),
    "hardtanh": lambda x, y: F.hardtanh(x),
    "relu6": lambda x, y: F.relu6(x),
    "relu": lambda x, y: F.relu(x),
    "hardsigmoid": lambda x, y: F.hardsigmoid(x),
    "hardswish": lambda x, y: F.hardswish(x),
    "leaky_relu": lambda x, y: F.leaky_relu(x),
    "threshold": lambda x, y: F.threshold(x, 0.5, 3.0),
    "logaddexp": lambda x, y: torch.logaddexp(x, y),
    "logaddexp2": lambda x, y: torch.logaddexp2(x, y),
    "isfinite": lambda x, y: x.isfinite(),
    "isinf": lambda x, y: x.isinf(),
    "isnan": lambda x, y: x.isnan(),
    "equal": lambda x, y: x == y,
    "unequal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "at least": lambda x, y: x >= y,
    "as a boolean": lambda x, y: x.bool(),
    "nan_to_num": lambda x, y: torch.nan_to_num(x, 5.0, 7.0, -7.0),
    "close": lambda x, y: torch.isclose(x, y, equal_nan=True),
}
ALONG_ROWS = {
    "maximum": lambda x, y: x.max(1),
    "minimum": lambda x, y: x.min(1),
    "argmax": lambda x, y: x.argmax(1),
    "argmin": lambda x, y: x.argmin(1),
    "both": lambda x, y: torch.aminmax(x, dim=1),
    "largest": lambda x, y: x.topk(7)[0],
    "upwards": lambda x, y: x.sort(dim=1, stable=True),
    "downwards": lambda x, y: x.sort(dim=1, descending=True, stable=True),
    "argmax, all alike": lambda x, y: (x * 0 - torch.inf).argmax(1),
}


class _All(torch.nn.Module):
    def __init__(self, functions) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x, y):
        return tuple(f(x, y) for f in self.functions)


@pytest.mark.parametrize("functions", [ELEMENTWISE, ALONG_ROWS], ids=["elementwise", "along rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_as_pytorch_does(functions, dtype):
    x, y = VALUES.to(dtype), OTHER.to(dtype)
    module = _All(list(functions.values()))
    found = iter(mlirc.compile(module, (x, y), device="host").flat(x, y))
    for name, want in zip(functions, module(x, y), strict=True):
        for b in want if isinstance(want, tuple) else (want,):
            a = next(found)
            assert torch.allclose(a.double(), b.double(), equal_nan=True, rtol=1e-2), f"{name}: {a}, PyTorch {b}"
    assert next(found, None) is None
