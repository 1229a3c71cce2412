"""What cannot be compiled is refused in words that fit the program."""

from __future__ import annotations

import pytest
import torch

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch, lower_to_linalg
from support.models.together import Calls, randn


def branches(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def endless(x):
    return endless(x + 1)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda x: x + 1 if x.sum() > 0 else x - 1,
            "control flow or a shape depends on the values .*test_words",
        ),
        (branches, "torch.cond takes a branch by the values of a tensor: .* torch.where"),
        (lambda x: torch.nonzero(x), "the shape of 'nonzero' .* depends on the values of a tensor"),
        (lambda x: torch.from_numpy(x.numpy() + 1), "calls .numpy"),
        (lambda x: x * float(f"{x.sum():.1f}"), "formats the values of a tensor as text"),
        (lambda x: (x + 1).resize_(5), "op aten::resize in module 'model' cannot be lowered to linalg: write it with"),
        (lambda x: x.resize_(5), "changes the shape or the memory of a tensor in place"),
        (lambda x: x.set_(torch.zeros(5)), "changes the shape or the memory of a tensor in place"),
        (
            lambda x: torch.special.airy_ai(x),
            "op aten::special_airy_ai in module 'model' cannot be imported: .*: write it with",
        ),
        (endless, "calls itself without end, or is nested too deep .*test_words"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), r"quantized tensors \(qint8\)"),
    ],
)
def test_refused(function, words):
    with pytest.raises(MlircError, match=words) as refused:
        lower_to_linalg(import_torch(from_torch(Calls(function), (randn(3),))))
    assert "\n" not in str(refused.value)
