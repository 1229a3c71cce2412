"""Blocks that are visited group by group: every block once, whatever is left over."""

from __future__ import annotations

import pytest
import torch

import mlirc
from support.models.together import Calls


@pytest.mark.parametrize(("n", "group"), [(5, 2), (7, 3), (4, 4), (7, 4), (3, 1)])
def test_every_block_is_computed_once(n, group):
    """The host device reports an element that two blocks write, and one that none does is not PyTorch's."""
    x, w = torch.randn(3 * 16 - 1, 16), torch.randn(16, n * 16 - 3)
    schedule = [f"matmul:block_m=16,block_n=16,mma=fma,group={group}"]
    model = mlirc.compile(Calls(torch.matmul), (x, w), target="sm_90a", schedule=schedule, device="host")
    torch.testing.assert_close(model(x, w), x @ w)
