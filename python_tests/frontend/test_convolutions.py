"""Convolutions, transposed ones, and their gradients: groups, strides, dilations and ranks, beside PyTorch."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support.models.together import check_together, randn

TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SIZES, KERNELS = (7, 5, 6), (3, 2, 4)


def transposed(rank, channels, outputs, groups, dtype=torch.float32, **how):
    """A call, and its inputs: batch 2, or none with `unbatched`."""
    batch = () if how.pop("unbatched", False) else (2,)
    x, w = randn(*batch, channels, *SIZES[:rank]), randn(channels, outputs // groups, *KERNELS[:rank])
    return partial(TRANSPOSED[rank], groups=groups, **how), tuple(v.to(dtype) for v in (x, w, randn(outputs)))


def test_transposed_at_every_level():
    vocoder = nn.ConvTranspose1d(4, 4, 4, 2, 1, groups=4)
    sized = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    check_together([
        (vocoder, (randn(2, 4, 9),)),
        (lambda x: sized(x, output_size=[10, 13]), (randn(4, 5, 7),)),
        (nn.ConvTranspose2d(4, 4, 1, stride=2, output_padding=1, groups=4), (randn(1, 4, 3, 5),)),
        transposed(1, 4, 8, 4, stride=3, padding=2, output_padding=2),
        transposed(1, 4, 4, 4, stride=2, padding=4, unbatched=True),
        transposed(1, 4, 4, 4, torch.bfloat16, dilation=2),
        transposed(2, 4, 4, 4, stride=(3, 2), padding=(0, 1), output_padding=(2, 1), dilation=(1, 2)),
        transposed(2, 4, 6, 2, stride=2, padding=1, output_padding=1, dilation=2),
        transposed(2, 4, 3, 1, stride=2, padding=1),
        transposed(3, 2, 4, 2, stride=(2, 1, 2), padding=1, output_padding=(1, 0, 1)),
        (partial(F.conv3d, groups=3, stride=(1, 2, 1), padding=(2, 0, 1), dilation=(2, 1, 1)), (randn(2, 3, 4, 5, 6), randn(3, 1, 3, 2, 2), randn(3))),
        (partial(F.conv3d, groups=3), (randn(1, 3, 4, 4, 4).half(), randn(3, 1, 3, 2, 2).half())),
    ])  # fmt: skip


def test_integers():
    def integers(*shape):
        return (randn(*shape) * 5).to(torch.int64)

    x = integers(2, 4, 4, 5, 6)
    check_together([
        (partial(F.conv3d, groups=2, stride=2, padding=1), (x, integers(6, 2, 3, 2, 1), integers(6))),
        (partial(F.conv_transpose3d, groups=2, stride=2, padding=1), (x, integers(4, 3, 3, 2, 1))),
        (partial(F.conv2d, groups=2), (x[:, :, 0], integers(6, 2, 3, 2))),
    ], kinds=["plain"])  # fmt: skip


GRADIENTS = {  # the layer, and the channels of its input
    1: [
        (nn.Conv1d, 4, 6, 3, {"dilation": 2, "padding": 2, "groups": 2}),
        (nn.ConvTranspose1d, 4, 4, 4, {"stride": 2, "padding": 1, "groups": 4}),
        (nn.ConvTranspose1d, 4, 3, 3, {"stride": 3, "output_padding": 2}),
    ],
    2: [
        (nn.Conv2d, 4, 6, 3, {"stride": 2, "padding": 1, "groups": 2}),
        (nn.Conv2d, 4, 8, (2, 3), {"stride": (2, 1), "dilation": (1, 2), "groups": 4}),
        (nn.Conv2d, 4, 4, 3, {"padding": "same", "groups": 4, "bias": False}),
        (nn.ConvTranspose2d, 4, 3, 3, {"stride": 2, "padding": 1, "output_padding": 1}),
        (nn.ConvTranspose2d, 4, 6, 2, {"dilation": 2, "groups": 2}),
    ],
    3: [
        (nn.Conv3d, 2, 4, (1, 2, 3), {"groups": 2}),
        (nn.ConvTranspose3d, 2, 3, (1, 2, 3), {"stride": (1, 2, 1), "padding": (0, 1, 1)}),
    ],
}


class Layers(nn.Module):
    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(rank)
        self.layers = nn.ModuleList([layer(c, o, k, **how) for layer, c, o, k, how in GRADIENTS[rank]])

    def forward(self, x):
        return [layer(x) for layer in self.layers]


def gradients(module, layers, x):
    """Of a loss that differs for every element."""
    x = x.clone().requires_grad_()
    outputs = module(x)
    loss = sum((y * torch.linspace(-1, 2, y.numel()).reshape(y.shape)).square().mean() for y in outputs)
    return torch.autograd.grad(loss, [x, *layers.parameters()])


@pytest.mark.parametrize("rank", GRADIENTS)
def test_gradients(rank):
    module = Layers(rank)
    x = randn(2, 2 if rank == 3 else 4, *SIZES[:rank])
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="mlirc", options={"fallback": False})
    for found, expected in zip(gradients(compiled, module, x), gradients(module, module, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
