"""Attention of one's own, for docs/schedules.md: `mlirc examples.own_attention:make -v`. What stands between the two
products is a function of one score, which may be any: the model is one kernel, with no scores in memory."""

from __future__ import annotations

import math

import torch


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal sigmoid attention with ALiBi's distances; q, k, v [B, H, S, D]."""
    slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1)
    place = torch.arange(q.shape[2])
    distance = place[:, None] - place[None, :]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) - slopes[:, None, None] * distance
    weights = torch.sigmoid(scores - math.log(q.shape[2])).masked_fill(distance < 0, 0.0)
    return weights @ v


class Attention(torch.nn.Module):
    """`attend` as a model."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return attend(*inputs)


def make() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The module and example inputs: four heads of 64, 150 places."""
    generator = torch.Generator().manual_seed(0)
    return Attention().eval(), tuple(torch.randn(1, 4, 150, 64, generator=generator) for _ in range(3))
