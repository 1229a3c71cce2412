"""Views, copies that change the order in memory, and `as_strided`: what an element's place in memory must not decide
below the import, and what it does decide in PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.host.tensors import run_level
from support.models.integer_ops import compiled, differences, together

Step = Callable[[torch.Tensor], torch.Tensor]


def chain(r: random.Random, x: torch.Tensor) -> list[Step]:
    """Random steps that PyTorch can take on a tensor like `x`: its strides decide what they may be."""
    steps: list[Step] = []
    for _ in range(r.randint(2, 6)):
        step = next_step(r, x)
        steps.append(step)
        x = step(x)
    return steps


def next_step(r: random.Random, x: torch.Tensor) -> Step:
    kind, rank = r.choice("permute slice flatten view copy format strided expand compute flip unfold".split()), x.dim()
    if kind == "permute":
        order = r.sample(range(rank), rank)
        return lambda t: t.permute(order)
    if kind in ("slice", "flip") and rank and max(x.shape) > 1:
        dim = r.choice([d for d in range(rank) if x.shape[d] > 1])
        first, step = r.randrange(x.shape[dim] - 1), r.choice([1, 2])
        part = tuple([slice(None)] * dim + [slice(first, None, step)])
        return (lambda t: t[part]) if kind == "slice" else (lambda t: t.flip(dim))
    if kind == "flatten":
        return lambda t: t.flatten()
    if kind == "view" and rank == 1 and x.numel() % 2 == 0 and x.is_contiguous():
        return lambda t: t.view(2, -1)
    if kind == "format" and rank == 4:
        return lambda t: t.contiguous(memory_format=torch.channels_last)
    if kind == "strided":  # on whatever order the storage has
        room = x.untyped_storage().nbytes() // x.element_size()
        first, across, along = r.randrange(min(3, room)), r.choice([0, 1, 2, 5]), r.choice([1, 2, 3])
        count = max(1, min(4, (room - first - 1 - 2 * across) // along + 1))
        if first + 2 * across + (count - 1) * along < room:
            return lambda t: t.as_strided((3, count), (across, along), first)
    if kind == "expand" and rank < 4:
        return lambda t: t[None].expand(2, *[-1] * t.dim())
    if kind == "unfold" and rank and x.shape[-1] > 2 and rank < 4:
        return lambda t: t.unfold(-1, 2, 1)
    if kind == "compute":
        return lambda t: t * 2 + 1
    return lambda t: t.contiguous()


def all_of(steps: list[Step], x: torch.Tensor) -> torch.Tensor:
    for step in steps:
        x = step(x)
    return x


@pytest.mark.parametrize("seed", range(3))
def test_chains_of_views_and_copies(seed):
    r = random.Random(seed)
    found = {}
    for i in range(12):
        x = torch.randn(
            r.choice([(2, 3, 4, 5), (6, 4), (3, 1, 7), (2, 2, 3, 3)]), generator=torch.Generator().manual_seed(i)
        )
        constant = torch.arange(float(x.numel())).reshape(x.shape)
        steps = chain(r, x.clone())
        found[f"{i}"] = (lambda x, steps=steps: all_of(steps, x * 3) - 1, (x,))
        if i % 3 == 0:  # what is computed of constants alone is folded
            found[f"folded {i}"] = (lambda x, steps=steps, c=constant: x.sum() + all_of(steps, c), (x,))
    module, inputs = together(found)
    with torch.no_grad():
        want = module(*inputs)
    job = compiled(module, inputs, "tiles")
    for level in ("linalg", "tiles"):
        got = run_level(job.modules[level], inputs, job.tensors())
        assert [k for (k, a), b in zip(want.items(), got, strict=True) if not torch.allclose(a, b, rtol=1e-5)] == []


COMPOSITES = {
    "cosine similarity": lambda x, y: F.cosine_similarity(x, y),
    "isclose": lambda x, y: torch.isclose(x, torch.where(y > 0, x, y)),
    "isclose with nans": lambda x, y: torch.isclose(x / 0 * 0, y / 0 * 0, equal_nan=True),
    "integers that are close": lambda x, y: torch.isclose(x.long(), y.long()),
    "cosine loss": lambda x, y: F.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1])),
    "triplet loss": lambda x, y: F.triplet_margin_loss(x, y, x * 2),
}


def test_ops_that_pytorch_writes_with_operations_in_place():
    x, y = (torch.randn(3, 5, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    module, inputs = together({name: (function, (x, y)) for name, function in COMPOSITES.items()})
    job = compiled(module, inputs, "linalg")
    assert not differences(module(*inputs), run_level(job.modules["linalg"], inputs, job.tensors()))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3, groups=2, bias=False), (1, 4, 9)),
        (nn.Conv2d(6, 3, 3, groups=3, bias=False, padding=1, dilation=2), (2, 6, 7, 5)),
        (nn.ConvTranspose1d(4, 6, 3, groups=2, bias=False, stride=2, padding=1), (1, 4, 5)),
    ],
)
def test_grouped_convolutions_without_bias(layer, shape):
    """Their sums start from a reshaped empty tensor, which is no kernel."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    job = compiled(layer.eval(), (x,), "ptx")
    with torch.no_grad():
        want = layer(x)
    for level in ("linalg", "tiles"):
        (got,) = run_level(job.modules[level], (x,), job.tensors())
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
