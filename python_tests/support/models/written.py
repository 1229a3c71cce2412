"""Models that change buffers and inputs, over several calls beside PyTorch."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

import mlirc


class Writes(nn.Module):
    """Buffers of its own, and a function of itself and the inputs."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=not name.startswith("_"))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def together(module: nn.Module, *calls: tuple[torch.Tensor, ...]):
    """The compiled model, after calls of it and of PyTorch's whose results, inputs and buffers were the same."""
    compiled = mlirc.compile(module, tuple(t.clone() for t in calls[0]), device="host")
    eager = copy.deepcopy(module)
    before = {name: b.clone() for name, b in module.named_buffers(remove_duplicate=False)}
    for call in calls:
        theirs, ours = [t.clone() for t in call], [t.clone() for t in call]
        wanted, got = eager(*theirs), compiled(*ours)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(ours, theirs)
        for name, tensor in compiled.state.items():
            torch.testing.assert_close(torch.from_numpy(tensor.copy()), eager.get_buffer(name))
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, before[name]), "the caller's module stays as it is"
    compiled.state.reset()
    for name, tensor in compiled.state.items():
        assert np.array_equal(tensor, before[name].numpy())
    return compiled
