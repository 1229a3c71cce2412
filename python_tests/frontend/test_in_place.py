"""Operations in place: pure where nothing else looks at the memory, and PyTorch's results in any case."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.check import check_torch
from mlirc.frontend.in_place import without_writes


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))

    def forward(self, x):
        return F.relu(self.layers(x[None]), inplace=True)


class Chain(nn.Module):
    """What is read before a write is the old value; the tensor and what the write returns are the new one."""

    def forward(self, x):
        y = x * 2
        before = y * 3
        z = y.clamp_(-1, 1)
        y.add_(1.5).mul_(before)
        return y, z, before


class Half(nn.Module):
    """The pure form would be of another dtype: FP32 for the product, and floats for the integers."""

    def forward(self, x):
        y = x.half() + 1
        y.mul_(x)
        i = (x > 0).int() * 3
        i.add_(2)
        return y, i


class View(nn.Module):
    def forward(self, x):
        y = x * 2
        part = y[:, 1:]
        y.add_(1)
        return part, y


class Late(nn.Module):
    """A view of what a write left, and a write through the view."""

    def forward(self, x):
        y = x * 2
        y.relu_()
        part = y.view(-1)[3:]
        part.sub_(1)
        return y


class Dropout(nn.Module):
    """Outside of training a dropout is its argument."""

    def forward(self, x):
        y = x * 2
        same = F.dropout(y, 0.5, False)
        y.add_(1)
        return same, y


class Input(nn.Module):
    def forward(self, x):
        x.mul_(2)
        return x + 1


@pytest.mark.parametrize("made, pure", [
    (Convolution, True), (Chain, True), (Half, False), (View, False), (Late, False), (Dropout, False), (Input, False),
])  # fmt: skip
def test_writes(made, pure):
    module, x = made().eval(), torch.randn(3, 6, 7, generator=torch.Generator().manual_seed(0))
    graph = without_writes(torch.export.export(module, (x.clone(),)).graph)
    left = [] if graph is None else [n for n in graph.nodes if n.op == "call_function" and n.target._schema.is_mutable]
    assert (graph is not None and not left) == pure
    result = check_torch(module, (x,), levels=["linalg"], kinds=["plain"])
    assert result.ok, result.reason()


class Written(nn.Module):
    """Ops whose decompositions make tensors, of one that is written through a view."""

    def forward(self, x):
        y = x.clone()
        y.diagonal(dim1=-2, dim2=-1).add_(1)
        return F.interpolate(y[None], scale_factor=1.7, mode="bicubic"), torch.linalg.eigh(y[:, :2, :2])[0]


class Constant(nn.Module):
    def forward(self, x):
        return F.interpolate(torch.tensor([1.0, 2, 3, 4, 5, 6, 7]) + x[None], scale_factor=1.7, mode="bicubic")


@pytest.mark.parametrize("made", [Written, Constant])
def test_decompositions_make_tensors(made):
    result = check_torch(
        made(), (torch.randn(3, 6, 7, generator=torch.Generator().manual_seed(0)),), levels=["linalg"], kinds=["plain"]
    )
    assert result.ok, result.reason()
