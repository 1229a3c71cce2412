"""Caches: rows written into a state where they belong, without a copy of the rest where that is safe."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlirc.runtime.plan import CopyStep
from support.models.together import randn
from support.models.written import Writes, together

B, H, N, D = 1, 3, 7, 5


def copies(compiled) -> int:
    return sum(isinstance(step, CopyStep) for step in compiled.plan.steps)


def calls(shape: tuple[int, ...], *positions) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(randn(*shape), torch.tensor(p)) for p in positions]


def copied(m, x, at):
    m.k.index_copy_(2, at, x)
    return m.k.sum(2)


def assigned(m, x, at):
    m.k[:, :, at] = x
    return m.k.sum(2)


def assigned_to_a_part(m, x, at):
    m.k[0, ..., at, 1:3] = x[..., 1:3]
    return m.k + 1


def with_a_number(m, x, at):
    m.k[:, 1, at] = 2
    return m.k + x[..., None, :]


def put(m, x, at):
    torch.ops.aten.index_put_(m.k, [None, None, at], x)
    return m.k[:, :, 2]


def twice(m, x, at):
    m.k.index_copy_(2, at, x)
    m.k.index_copy_(2, (at + 1) % N, x * 2)
    return m.k.sum(2)


@pytest.mark.parametrize(
    ("function", "shape", "positions", "expected"),
    [
        (copied, (B, H, 1, D), ([3], [0], [6]), 0),
        (copied, (B, H, 2, D), ([3, 1], [0, 6]), 0),
        (copied, (B, H, 3, D), ([4, 4, 1], [2, 2, 2]), 0),  # the last one stays, as in PyTorch on a CPU
        (assigned, (B, H, D), (3, 0, -1), 0),
        (assigned, (B, H, 1, D), ([3], [5]), 0),
        (put, (B, H, 1, D), ([3], [2]), 0),
        (twice, (B, H, 1, D), ([3], [6]), 0),
        (assigned_to_a_part, (H, D), (3, 0), None),
        (with_a_number, (B, H, D), (3, 6), None),
    ],
)
def test_writes_of_rows(function, shape, positions, expected):
    compiled = together(Writes(function, k=randn(B, H, N, D)), *calls(shape, *positions))
    assert expected is None or copies(compiled) == expected


def returns_the_old(m, x, at):
    old = m.k.clone()
    m.k.index_copy_(2, at, x)
    return old.sum(2), m.k.sum(2)


def reads_what_it_writes(m, x, at):
    m.k.index_copy_(2, at, m.k[:, :, :1] + 0 * x)
    return m.k + 1


def moves_a_row(m, x, at):
    m.k.index_copy_(2, at, m.k[:, :, 2:3])
    return x + m.k.sum(2)[:, :, None]


def another_value(m, x, at):
    """The copy with the row is not what stays."""
    tried = m.k.index_copy(2, at, x)
    m.k.mul_(0.5)
    return tried + m.k


def into_both(m, x, at):
    new = m.k.index_copy(2, at, x)
    m.k.copy_(new)
    m.v.copy_(new * 1)
    return m.k + m.v


def crosswise(m, x, at):
    k = m.k.clone()
    m.k.copy_(m.v.index_copy(2, at, x))
    m.v.copy_(k.index_copy(2, at, x * 2))
    return m.k - m.v


def through_another(m, x, at):
    m.k.index_copy_(2, at, x)
    m.v.copy_(m.k * 2)
    m.k.index_copy_(2, (at + 2) % N, x)
    return m.v


def ends_as_it_was(m, x, at):
    old = m.k.clone()
    m.k.index_copy_(2, at, x)
    y = m.k.sum(2)
    m.k.copy_(old)
    return y


def from_nothing(m, x, at):
    m.k.copy_(torch.zeros(B, H, N, D).index_copy(2, at, x))
    return m.k + m.v


@pytest.mark.parametrize(
    "function",
    [returns_the_old, reads_what_it_writes, moves_a_row, another_value, into_both, crosswise, through_another,
     ends_as_it_was, from_nothing],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_hazards(function):
    module = Writes(function, k=randn(B, H, N, D), v=randn(B, H, N, D))
    together(module, *calls((B, H, 1, D), [3], [0]))


def test_a_cache_that_is_an_input():
    module = Writes(lambda m, cache, x, at: (cache.index_copy_(2, at, x), cache.sum(2))[1])
    compiled = together(module, *[(randn(B, H, N, D), *call) for call in calls((B, H, 1, D), [3], [0])])
    assert copies(compiled) == 0


def test_an_intermediate_result_is_changed_in_place():
    def scattered(m, x, at):
        return (x * 2).index_copy(1, at, x[:, :1] + 1).exp()

    compiled = together(Writes(scattered), *calls((4, 5), [3], [0]))
    assert copies(compiled) == 0


class Decoder(nn.Module):
    """Attention over a cache, one token a call."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D * H, D * H) for _ in range(3))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(B, H, N, D), persistent=name == "keys")

    def forward(self, x, at):
        q, k, v = (f(x).reshape(B, 1, H, D).transpose(1, 2) for f in (self.q, self.k, self.v))
        self.keys[:, :, at] = k[:, :, 0]
        self.values[:, :, at] = v[:, :, 0]
        visible = (torch.arange(N) <= at)[None, None, None, :]
        return nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=visible)


def test_decoding_token_by_token():
    module = Decoder().requires_grad_(False)
    compiled = together(module, *calls((B, 1, D * H), 0, 1, 2))
    assert copies(compiled) == 0 and list(compiled.state) == ["keys", "values"]
