"""Layers of experts of transformers' models, on the host device: only what the router chose is computed, for any number
of tokens and any choice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlirc
from support.models.experts import layer
from support.randomness import generator


def choice(kind: str, tokens: int, chosen: int, experts: int) -> torch.Tensor:
    """Which experts each token goes to, int64 [T,K]: `random`, `one` pair for all, or `few` of all experts."""
    g = generator()
    if kind == "one":
        return torch.arange(experts - chosen, experts).expand(tokens, chosen).contiguous()
    among = experts if kind == "random" else chosen + 1
    return torch.from_numpy(np.stack([g.permutation(among)[:chosen] for _ in range(tokens)]))


def run(module: torch.nn.Module, dtype: torch.dtype, index: torch.Tensor, allowed: float) -> None:
    """The compiled layer's kernels beside transformers' loop over experts in FP64."""
    g, width = generator(), module.hidden_dim
    x = torch.from_numpy(g.standard_normal((index.shape[0], width))).to(dtype)
    weights = torch.from_numpy(g.random(index.shape)).to(dtype)
    got = torch.as_tensor(mlirc.compile(module, (x, index, weights), device="host")(x, index, weights))
    want = module.double()(x.double(), index, weights.double())
    error = (got.double() - want).norm() / want.norm()
    assert got.dtype == dtype and error <= allowed, f"{error:.2e}"


@pytest.mark.parametrize(
    "name, tokens, kind, dtype",
    [
        ("olmoe", 1, "random", torch.bfloat16),
        ("qwen2-moe", 33, "random", torch.bfloat16),
        ("qwen3-moe", 300, "few", torch.bfloat16),
        ("mixtral", 7, "one", torch.float32),
    ],
)
def test_layers_of_experts(name, tokens, kind, dtype):
    module, experts, chosen = layer(name, dtype)
    allowed = 1e-5 if dtype == torch.float32 else 2e-2
    run(module, dtype, choice(kind, tokens, chosen, experts), allowed)
