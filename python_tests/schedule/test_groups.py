"""Blocks that are visited group by group: every block once, whatever is left over."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc import mlir
from mlirc.driver.compilation import Compilation
from mlirc.scripts._matmul_tiles import default_group
from mlirc.scripts._tensor_copy_tiles import ARRIVALS, arrivals
from mlirc.targets import get_target
from support.kernels import payloads
from support.models.together import Calls


@pytest.mark.parametrize(("n", "group"), [(5, 2), (7, 3), (4, 4), (7, 4), (3, 1)])
def test_every_block_is_computed_once(n, group):
    """The host device reports an element that two blocks write, and one that none does is not PyTorch's."""
    x, w = torch.randn(3 * 16 - 1, 16), torch.randn(16, n * 16 - 3)
    schedule = [f"matmul:block_m=16,block_n=16,mma=fma,group={group}"]
    model = mlirc.compile(Calls(torch.matmul), (x, w), target="sm_90a", schedule=schedule, device="host")
    torch.testing.assert_close(model(x, w), x @ w)


@pytest.mark.parametrize(("columns", "group"), [(1, 1), (4, 4), (5, 5), (7, 7), (9, 3), (10, 2), (11, 1), (16, 8)])
def test_columns_are_visited_in_whole_groups(columns, group):
    assert default_group(25, columns) == group
    assert default_group(8, columns) == 1


def test_multiprocessors_without_a_block_leave_their_share_of_l2():
    assert arrivals(132, 132) == arrivals(1000, 132) == ARRIVALS < arrivals(100, 132)
    assert arrivals(100, 132) * 100 == pytest.approx(ARRIVALS * 132)
    assert arrivals(1, 132) == arrivals(10, 132)


def test_fewer_blocks_of_whole_columns_are_preferred_to_more():
    """1568 x 512: 100 tiles of 64 x 128, each of which gets its slices sooner, not 125 of 64 x 112."""
    job = Compilation("kernel", get_target("sm_90a"), [], helpers=0)
    job.modules["kernels"] = mlir.parse(payloads.matmul(m=1568, n=512, k=4608, dtype="bf16"))
    job.lower("tiles")
    assert "tensor<128x64xbf16>" in str(job.modules["tiles"])  # a slice of the right operand
