"""Numbers that a module keeps as tensors outside of its state dict decide shapes and branches, as EnCodec's strides."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.check import check_torch
from mlirc.errors import MlircError


class Padded(nn.Module):
    """A strided convolution that pads as much as a tensor of its own says, and a branch by it."""

    def __init__(self, persistent: bool = False):
        super().__init__()
        self.stride = nn.Buffer(torch.tensor(3), persistent=persistent)
        self.kernel = nn.Buffer(torch.tensor(5), persistent=False)
        self.table = nn.Buffer(torch.randn(4, 1), persistent=False)
        self.conv = nn.Conv1d(2, 4, 5, 3)

    def forward(self, x):
        left = self.kernel - self.stride
        steps = torch.ceil((x.shape[-1] - self.kernel + left) / self.stride + 1).to(torch.int64)
        right = (steps - 1) * self.stride + self.kernel - left - x.shape[-1]
        if x.shape[-1] <= max(left, right):
            x = F.pad(x, (0, right))
        return self.conv(F.pad(x, (left, right), "reflect")) + self.table


class Counting(Padded):
    """The same, which counts its calls in such a tensor."""

    def forward(self, x):
        self.stride.add_(1)
        return super().forward(x)


def test_shapes_and_branches_by_numbers_of_a_module():
    module = Padded().eval()
    result = check_torch(module, (torch.randn(2, 2, 22),), levels=("tiles",), kinds=("plain",))
    assert result.ok, result.table()
    assert type(module) is Padded and list(module._buffers) == ["stride", "kernel", "table"]


@pytest.mark.parametrize("module", [Padded(persistent=True), Counting()], ids=["of a state dict", "written"])
def test_what_may_change_is_no_known_number(module):
    with pytest.raises(MlircError, match="depends on the values of a tensor"):
        check_torch(module.eval(), (torch.randn(2, 2, 22),), levels=("tiles",), kinds=("plain",))
