"""Modules and factories (`support.models.factories:net`) for the tests of the frontend."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """A small CNN."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.register_buffer("shift", torch.randn(4, 1, 1), persistent=False)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        return self.fc((F.relu(self.bn(self.conv(x))) + self.shift).mean((2, 3)))


class Encoder(nn.Module):
    """PyTorch's own encoder layer: attention through F.scaled_dot_product_attention."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


class Bessel(nn.Module):
    """An op that torch-mlir does not know, inside a module."""

    def __init__(self):
        super().__init__()
        self.inner = Unknown()

    def forward(self, x):
        return self.inner(x)


class Unknown(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Several(nn.Module):
    def forward(self, x, scale=None):
        return {"double": x * 2, "pair": (x + 1, x if scale is None else x * scale)}


class Found(nn.Module):
    def forward(self, x):
        return x.nonzero()


def net():
    torch.manual_seed(0)
    return Net(), (torch.randn(1, 3, 6, 5),)


def encoder():
    torch.manual_seed(0)
    return Encoder(), torch.randn(2, 5, 16)


def branching():
    return Branching(), torch.randn(3)


def bessel():
    return Bessel(), torch.randn(7)


def found():
    return Found(), torch.randn(7)


def several():
    return Several(), dict(x=torch.randn(3), scale=torch.randn(3))


def failing():
    raise RuntimeError("no\nluck")


def wrong():
    return 3
