"""Linear layers of one input as one product: which are joined, and that the results are those of PyTorch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mlirc.driver.compilation import Compilation
from mlirc.frontend import from_torch, packed_as
from mlirc.frontend.importer import export
from mlirc.frontend.join_linears import JoinedWeights, joined_linears, joined_name
from mlirc.frontend.source import SourceModel
from mlirc.host.level_code import LevelCode
from mlirc.host.level_model import LevelModel
from mlirc.targets import DEFAULT_TARGET, get_target
from support.models.together import randn


class Block(nn.Module):
    """Queries, keys and values, cut into heads; two more layers of the same input that meet in a map, and one whose
    weight is read twice."""

    def __init__(self, width: int, sizes: tuple[int, int, int], bias: tuple[bool, bool, bool]):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, n, bias=b) for n, b in zip(sizes, bias, strict=True))
        self.gate, self.up, self.twice = (nn.Linear(width, 11, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:-1], -1, 2).transpose(-2, -1) for f in (self.q, self.k, self.v))
        mixed = q.sum(-1) + k.amax(-1) * v.amin(-1)
        again = self.twice(x).view(-1, 11) + self.twice(x + 1).view(-1, 11)
        return mixed, F.silu(self.gate(x)) * self.up(x), again, v


def joined(module: nn.Module, x: torch.Tensor, scheme: str | None = None) -> tuple[SourceModel, nn.Module]:
    source = from_torch(module.eval().requires_grad_(False), (x,))
    source = source if scheme is None else packed_as(source, scheme)
    with torch.no_grad():
        return joined_linears(replace(source, program=export(source))), source.module


def outputs(source: SourceModel, x: torch.Tensor) -> list[np.ndarray]:
    """At the `kernels` level on the CPU."""
    job = Compilation("block", get_target(DEFAULT_TARGET), (), None)
    job.import_source(source)
    job.lower("kernels")
    weights = {**job.imported.constants, **job.imported.weights}
    arrays = {name: tensor.detach().numpy() for name, tensor in weights.items()}
    return LevelModel(LevelCode.compiled(job.modules["kernels"]), arrays)(x=x.numpy())


@pytest.mark.parametrize(
    ("shape", "bias", "names"),
    [
        ((1, 33), (False, False, False), ["q+k+v.weight"]),
        ((7, 33), (True, True, True), ["q+k+v.weight", "q+k+v.bias"]),
        ((2, 3, 17), (True, False, True), ["q+v.weight", "q+v.bias"]),
    ],
)
def test_results_are_those_of_pytorch(shape, bias, names):
    module, x = Block(shape[-1], (10, 6, 2), bias), randn(*shape)
    source, _ = joined(module, x)
    assert [n for n in source.weights if "+" in n] == names
    with torch.no_grad():
        wanted = module(x)
    for found, tensor in zip(outputs(source, x), wanted, strict=True):
        np.testing.assert_allclose(found, tensor.numpy(), rtol=1e-4, atol=1e-5)


def test_packed_weights_are_joined():
    module, x = Block(64, (16, 8, 24), (False,) * 3), randn(3, 64)
    source, packed = joined(module, x, "int4:group=32")
    assert {n for n in source.weights if n.startswith("q+")} == {"q+k+v.weight_words", "q+k+v.weight_scales"}
    with torch.no_grad():
        wanted = packed(x)
    for found, tensor in zip(outputs(source, x), wanted, strict=True):
        np.testing.assert_allclose(found, tensor.numpy(), rtol=1e-4, atol=1e-5)


def test_packed_weights_of_rows_that_fill_no_panel_stay_apart():
    module, x = Block(64, (16, 12, 8), (False,) * 3), randn(3, 64)
    source, packed = joined(module, x, "int4:group=32")
    assert {n for n in source.weights if "+" in n} == {"q+v.weight_words", "q+v.weight_scales"}
    with torch.no_grad():
        wanted = packed(x)
    for found, tensor in zip(outputs(source, x), wanted, strict=True):
        np.testing.assert_allclose(found, tensor.numpy(), rtol=1e-4, atol=1e-5)


def test_a_joined_weight_is_made_when_it_is_asked_for_and_kept_while_it_is_used():
    asked = []

    class Source(dict):
        def __getitem__(self, name):
            asked.append(name)
            return super().__getitem__(name)

    weights = JoinedWeights(Source(a=randn(2, 3), b=randn(1, 3)), {"a+b": ["a", "b"]}, {})
    assert list(weights) == ["a+b"] and not asked
    first = weights["a+b"]
    assert first.shape == (3, 3) and weights["a+b"] is first and asked == ["a", "b"]
    del first
    assert weights["a+b"].shape == (3, 3) and asked == ["a", "b"] * 2


def test_names():
    assert joined_name(["layers.0.q.weight", "layers.0.k.weight"]) == "layers.0.q+k.weight"
    assert joined_name(["q.weight", "deep.k.weight"]) == "q.weight+deep.k.weight"
