"""Loads of what is added to a row's sum: they stand in front of the sum's shuffles, where LLVM and ptxas leave them."""

from __future__ import annotations

import re

import pytest
import torch

from mlirc.backend.ptx import check_ptxas, find_ptxas
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target


class Added(torch.nn.Module):
    """A product of rows with a bias, and a residual behind it."""

    def __init__(self, width: int, outputs: int, bias: bool):
        super().__init__()
        self.product = torch.nn.Linear(width, outputs, bias=bias)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y + self.product(x)


def ptx_of(rows: int, width: int, outputs: int, bias: bool, *schedules: str) -> str:
    job = Compilation("m", get_target("sm_90a"), schedules, helpers=0)
    module = Added(width, outputs, bias).bfloat16()
    job.import_module(module, (torch.zeros(rows, width).bfloat16(), torch.zeros(rows, outputs).bfloat16()), {})
    job.lower("ptx")
    return job.ptx


@pytest.mark.parametrize(
    "width, outputs, bias, held, schedules",
    [
        (72, 61, False, 1, ()),
        (1160, 134, True, 2, ()),  # several warps to a row
        (144, 67, True, 4, ("matvec:rows=2,warps=1",)),
    ],
)
def test_what_is_added_to_a_sum_is_read_before_it(width, outputs, bias, held, schedules):
    ptx = ptx_of(1, width, outputs, bias, *schedules)
    before, behind = ptx.split("shfl.sync.bfly", 1)
    assert len(re.findall(r"ld\.volatile\.global\.b16", before)) == held
    assert not re.search(r"ld(\.volatile)?\.global", behind)


def test_what_sums_are_made_of_is_read_as_ever():
    ptx = ptx_of(1, 73, 64, False)  # rows of odd length: one element a load
    assert "ld.global.nc.b16" in ptx.split("shfl.sync.bfly", 1)[0]
    assert ptx.count("ld.volatile") == 1


def test_other_kernels_have_no_such_loads():
    assert "ld.volatile" not in ptx_of(67, 72, 64, True)


def test_what_scales_a_sum_is_an_ordinary_load():
    """The angles of a rotation are the same few lines of the L2 cache for all blocks."""

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.product = torch.nn.Linear(1160, 134, bias=False)

        def forward(self, x, y, z):
            return z + y * self.product(x)

    job = Compilation("m", get_target("sm_90a"), (), helpers=0)
    rows = torch.zeros(1, 134).bfloat16()
    job.import_module(Scaled().bfloat16(), (torch.zeros(1, 1160).bfloat16(), rows, rows), {})
    job.lower("ptx")
    assert job.ptx.count("ld.volatile") == 1


class Windows(torch.nn.Module):
    """A depthwise convolution of 5x5 and stride 2 over 120 channels, which leave lanes of a warp without any."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(120, 1, 5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        convolved = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), self.weight, None, 2, 2, groups=120)
        return convolved.permute(0, 2, 3, 1)


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
def test_sums_are_not_sunk_below_all_loads():
    """What a guarded store stores is computed where it stands: sunk to the guard, it took 1,200 bytes of stack."""
    target = get_target("sm_90a")
    job = Compilation("m", target, (), helpers=0)
    job.import_module(Windows().bfloat16(), (torch.zeros(32, 56, 56, 120).bfloat16(),), {})
    job.lower("ptx")
    assert set(re.findall(r"(\d+) bytes spill stores", check_ptxas(job.ptx, target))) == {"0"}
