"""Small networks without a library behind them, which reach the compiler as `.pt2` files."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Mlp(nn.Module):
    """784 -> 512 -> 512 -> 10 with GELU and ReLU; input [N, 784]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.nn.functional.gelu(self.first(x))
        return self.last(torch.relu(self.second(x)))


class Cnn(nn.Module):
    """Two convolutions with batch norm and pooling, global average, a classifier; input [N, 3, 32, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


NETWORKS: dict[str, type[nn.Module]] = {"mlp": Mlp, "cnn": Cnn}
