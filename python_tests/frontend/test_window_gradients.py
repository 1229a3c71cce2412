"""Gradients of averages and maxima over windows, and of padding by the border, beside PyTorch."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from mlirc.frontend.decompositions_window_gradients import WINDOW_GRADIENTS
from support.models.together import randn

aten = torch.ops.aten


def an_average(r, rank):
    kernel = [r.randint(1, 3) for _ in range(rank)]
    padding = [r.randint(0, k // 2) for k in kernel]
    stride = [] if r.random() < 0.2 else [r.randint(1, 3) for _ in range(rank)]
    settings = (kernel, stride, padding, r.random() < 0.5, r.random() < 0.5, r.choice([None, None, 5]))
    return f"avg_pool{rank}d", settings, settings


def an_adaptive_average(r, rank):
    return f"_adaptive_avg_pool{rank}d", ([r.randint(1, 4) for _ in range(rank)],), ()


def an_adaptive_maximum(r, rank):
    return f"adaptive_max_pool{rank}d", ([r.randint(1, 4) for _ in range(rank)],), ()


def a_padding(r, rank):
    settings = ([r.randint(0, 3) for _ in range(2 * rank)],)
    return f"replication_pad{rank}d", settings, settings


@pytest.mark.parametrize("draw", [an_average, an_adaptive_average, an_adaptive_maximum, a_padding])
def test_sums_are_those_of_pytorch(draw):
    """By the decompositions alone."""
    r = random.Random(5)
    torch.manual_seed(5)
    for rank in (2, 3):
        for _ in range(25):
            shape = [*r.choice([[], [2]]), 3, *[r.randint(3, 9) for _ in range(rank)]]
            x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            name, settings, again = draw(r, rank)
            results = getattr(aten, name).default(x, *settings)
            y, *indices = results if isinstance(results, tuple) else (results,)
            gradient = torch.randn_like(y)
            found = WINDOW_GRADIENTS[getattr(aten, f"{name}_backward").default](gradient, x, *indices, *again)
            torch.testing.assert_close(found, torch.autograd.grad(y, x, gradient)[0])


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([
            nn.Sequential(nn.ReplicationPad2d((1, 2, 0, 1)), nn.AvgPool2d(3, 2, 1, ceil_mode=True)),
            nn.AvgPool2d(2, count_include_pad=False),
            nn.AdaptiveAvgPool2d((2, 3)),
            nn.AdaptiveMaxPool2d((2, 3)),
            nn.Sequential(nn.Flatten(2), nn.ReplicationPad1d(3), nn.AvgPool1d(3, 2, 1), nn.AdaptiveAvgPool1d(5)),
            nn.Sequential(nn.Unflatten(1, (1, 3)), nn.ReplicationPad3d(1), nn.AvgPool3d(2), nn.AdaptiveMaxPool3d(2)),
            nn.Sequential(nn.Upsample(scale_factor=1.7, mode="bilinear"), nn.Upsample(scale_factor=2)),
        ])  # fmt: skip

    def forward(self, x):
        return [layer(x) for layer in self.layers]


def gradients(module, x):
    x = x.clone().requires_grad_()
    outputs = module(x)
    loss = sum((y * torch.linspace(-1, 2, y.numel()).reshape(y.shape)).square().mean() for y in outputs)
    return torch.autograd.grad(loss, x)[0]


def test_layers():
    module, x = Layers(), randn(2, 3, 6, 7)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="mlirc", options={"fallback": False})
    torch.testing.assert_close(gradients(compiled, x), gradients(module, x), rtol=2e-5, atol=2e-6)
