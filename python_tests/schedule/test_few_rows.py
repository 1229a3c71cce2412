"""Products of a few rows of 16-bit floats by `few_rows`: which take it, and that they are right, beside PyTorch."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.scripts.few_rows import MOST_WARPS, shares_of
from mlirc.targets import get_target
from support import randomness


class Product(torch.nn.Module):
    """A product with a bias, a function and a residual."""

    def __init__(self, width: int, outputs: int, dtype: torch.dtype):
        super().__init__()
        self.product = torch.nn.Linear(width, outputs, dtype=dtype)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y + torch.nn.functional.silu(self.product(x))


def given(rows: int, width: int, outputs: int, dtype: torch.dtype) -> tuple[Product, tuple[torch.Tensor, ...]]:
    draw = randomness.generator()
    module = Product(width, outputs, dtype)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.from_numpy(draw.standard_normal(tuple(p.shape), "float32") / width**0.5))
    inputs = [torch.from_numpy(draw.standard_normal((rows, n), "float32")).to(dtype) for n in (width, outputs)]
    return module, tuple(inputs)


def script_of(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], *schedule: str) -> str:
    """A module's one kernel as a block program, as text."""
    job = Compilation("m", get_target("sm_90a"), schedule, helpers=0)
    job.import_module(module, inputs, {})
    job.lower("tiles")
    return str(job.modules["tiles"])


@pytest.mark.parametrize(
    ("rows", "width", "outputs", "dtype", "schedule"),
    [
        (2, 64, 3, torch.bfloat16, ()),
        (5, 192, 37, torch.bfloat16, ()),
        (8, 576, 131, torch.float16, ()),
        (11, 1536, 67, torch.bfloat16, ()),
        (16, 4480, 40, torch.bfloat16, ()),  # more than a step for each warp, and no power of two of them
        (3, 8768, 19, torch.bfloat16, ()),  # two steps, of which the last is cut
        (7, 320, 130, torch.float16, ("few_rows:block_n=16,warps=2,block_k=128",)),
        (16, 320, 24, torch.bfloat16, ("few_rows:block_n=8,warps=5",)),
    ],
)
def test_few_rows_are_right(rows, width, outputs, dtype, schedule):
    module, inputs = given(rows, width, outputs, dtype)
    assert "mma_direct" in script_of(module, inputs, *schedule)
    got = mlirc.compile(module, inputs, device="host", schedule=list(schedule))(*inputs)
    with torch.no_grad():
        eager = module(*inputs).double()
        want = module.double()(*(x.double() for x in inputs))
    error, own = (float((torch.as_tensor(t).double() - want).norm() / want.norm()) for t in (got, eager))
    assert error < max(2 * own, 2e-3)


@pytest.mark.parametrize(
    ("rows", "width", "outputs", "dtype"),
    [
        (1, 256, 40, torch.bfloat16),  # a row: `matvec`
        (17, 256, 40, torch.bfloat16),
        (8, 200, 40, torch.bfloat16),  # no whole steps of the instruction
        (8, 256, 40, torch.float32),
        (8, 4224, 2576, torch.bfloat16),  # many blocks with long rows
        (8, 256, 3600, torch.bfloat16),
    ],
)
def test_what_takes_another_script(rows, width, outputs, dtype):
    assert "mma_direct" not in script_of(*given(rows, width, outputs, dtype))


def test_warps_share_out_all_of_k():
    for k in range(64, 20000, 64):
        warps, step = shares_of(k)
        assert 1 <= warps <= MOST_WARPS and step % (64 * warps) == 0
        assert step == k or step < k or step - k < 64 * warps
