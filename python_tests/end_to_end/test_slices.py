"""Parts of a tensor that lie in one piece: products read them where they are, whatever their rows begin with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mlirc
from mlirc.runtime.plan import KernelLaunch


class Stacked(nn.Module):
    """Two layers' weights in one tensor."""

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w[0].t()) * (x @ w[1].t())


class Rows(nn.Module):
    """Some rows of a result, and of a weight that an elementwise op reads, too."""

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        part = w[1, 2:]
        return torch.relu(x @ part.t())[1:4] + part.sum()


class Pair(nn.Module):
    """Keys and values in one tensor."""

    def forward(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, kv[0], kv[1])


@pytest.mark.parametrize(
    ("model", "shapes", "kinds"),
    [
        (Stacked(), [(7, 24), (2, 9, 24)], ["matmul"]),
        (Stacked(), [(5, 5), (3, 3, 5)], ["matmul"]),  # 60 bytes: the plan copies what begins between 16 bytes
        (Rows(), [(6, 16), (3, 11, 16)], ["elementwise", "matmul", "reduction", "elementwise"]),
        (Pair(), [(2, 3, 9, 8), (2, 2, 3, 9, 8)], ["attention"]),
    ],
)
def test_slices_are_read_where_they_are(model: nn.Module, shapes: list, kinds: list[str]) -> None:
    generator = torch.Generator().manual_seed(3)
    inputs = tuple(torch.randn(s, generator=generator) for s in shapes)
    compiled = mlirc.compile(model.eval(), inputs, device="host")
    with torch.no_grad():
        want = model(*inputs)
    torch.testing.assert_close(torch.as_tensor(compiled(*inputs)), want, rtol=1e-4, atol=1e-5)
    called = [step.kernel.rsplit("_", 1)[0] for step in compiled.plan.steps if isinstance(step, KernelLaunch)]
    assert called == kinds
