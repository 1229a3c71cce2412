"""Gradients of parameters behind ops that PyTorch has whole: bags of embeddings, and weight norm."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from mlirc.errors import MlircError

INDICES = torch.tensor([1, 2, 4, 1, 0, 3, 1, 1])
OFFSETS = torch.tensor([0, 3, 3, 5])


def gradients(module, call, inputs):
    call(*inputs).square().sum().backward()
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    return found


def check(compiled, module, *inputs):
    got, wanted = gradients(module, compiled(module), inputs), gradients(module, module, inputs)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


class Weighted(nn.Module):
    def __init__(self, indices, **options):
        super().__init__()
        self.bags = nn.EmbeddingBag(5, 3, mode="sum", **options)
        self.weights = nn.Parameter(torch.linspace(-1, 2, indices.numel()).reshape(indices.shape))

    def forward(self, *inputs):
        return self.bags(*inputs, per_sample_weights=self.weights)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    "options",
    [{}, {"padding_idx": 1}, {"include_last_offset": True}, {"scale_grad_by_freq": True}],
    ids=["plain", "padding", "last offset", "frequency"],
)
def test_bags_of_embeddings(compiled, mode, options):
    if mode == "max" and "scale_grad_by_freq" in options:
        pytest.skip("PyTorch has no such gradient")
    offsets = torch.cat([OFFSETS, torch.tensor([8])]) if "include_last_offset" in options else OFFSETS
    # On a CPU, PyTorch takes the frequency of another row.
    indices = torch.tensor([1, 2, 4, 1, 0, 2, 4, 0]) if "scale_grad_by_freq" in options else INDICES
    check(compiled, nn.EmbeddingBag(5, 3, mode=mode, **options), indices, offsets)


@pytest.mark.parametrize("mode", ["sum", "max"])
def test_bags_of_one_size(compiled, mode):
    check(compiled, nn.EmbeddingBag(5, 3, mode=mode), INDICES.reshape(2, 4))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}])
def test_weights_of_a_bags_rows(compiled, options):
    check(compiled, Weighted(INDICES, **options), INDICES, OFFSETS)
    check(compiled, Weighted(INDICES.reshape(2, 4), **options), INDICES.reshape(2, 4))


def test_the_largest_rows_of_ties_and_nan(compiled):
    """The gradient goes to the first of equal rows, and to a NaN where a bag begins with it."""
    module = nn.EmbeddingBag(5, 3, mode="max")
    with torch.no_grad():
        module.weight.copy_(module.weight.round())
        module.weight[2, 1] = module.weight[3, 0] = float("nan")
    (got,), (wanted,) = (gradients(module, call, (INDICES, OFFSETS)) for call in (compiled(module), module))
    assert bool(wanted.isnan().any())
    torch.testing.assert_close(got, wanted, equal_nan=True)


def test_a_sparse_gradient_is_refused(compiled):
    module = nn.EmbeddingBag(5, 3, mode="sum", sparse=True)
    with pytest.raises(MlircError, match="layout torch.sparse_coo: only dense tensors can be outputs .*sparse=False"):
        gradients(module, compiled(module), (INDICES, OFFSETS))


@pytest.mark.parametrize("made, shape, dim", [
    (nn.Linear(5, 3), (2, 5), 0), (nn.Linear(5, 3), (2, 5), 1), (nn.Conv1d(4, 6, 3), (2, 4, 9), 0),
    (nn.ConvTranspose1d(4, 6, 3), (2, 4, 9), 1),
])  # fmt: skip
def test_weight_norm(compiled, made, shape, dim):
    check(compiled, weight_norm(made, dim=dim), torch.randn(shape))
