"""A small classifier, for docs/schedules.md: `mlirc examples.mlp:make -o mlp.ptx`."""

from __future__ import annotations

import torch


class Classifier(torch.nn.Module):
    """Two linear layers and a softmax over 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(256, 1024)
        self.down = torch.nn.Linear(1024, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.down(torch.nn.functional.gelu(self.up(x))), dim=-1)


def make() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """The module, with weights from a fixed seed, and example inputs: 64 rows."""
    torch.manual_seed(0)
    return Classifier().eval(), (torch.randn(64, 256),)
