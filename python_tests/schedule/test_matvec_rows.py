"""Products with one row by `matvec`: how many warps take a row, and that they are right, beside PyTorch."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support import randomness


class Product(torch.nn.Module):
    """A product with a residual, behind a norm or not."""

    def __init__(self, width: int, outputs: int, norm: bool, dtype: torch.dtype):
        super().__init__()
        self.product = torch.nn.Linear(width, outputs, bias=False, dtype=dtype)
        self.norm = torch.nn.RMSNorm(width, dtype=dtype) if norm else torch.nn.Identity()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y + self.product(self.norm(x))


@pytest.mark.parametrize(
    ("width", "outputs", "norm", "dtype", "warps"),
    [
        (4616, 5, False, torch.bfloat16, 1),
        (4609, 3, False, torch.float32, 1),
        (2048, 3, True, torch.float32, 4),
        (9480, 2, False, torch.float32, None),  # too long for the lanes of one warp
    ],
)
def test_a_long_row_is_one_warps(width: int, outputs: int, norm: bool, dtype: torch.dtype, warps: int | None) -> None:
    draw = randomness.generator()
    module = Product(width, outputs, norm, dtype)
    x, y = (torch.from_numpy(draw.standard_normal((1, n), "float32")).to(dtype) for n in (width, outputs))
    job = Compilation("m", get_target("sm_90a"), (), helpers=0)
    job.import_module(module, (x, y), {})
    job.lower("ptx")
    (launch,) = job.plan.launches
    assert launch.block[0] == 32 * warps if warps else launch.block[0] > 32
    got = mlirc.compile(module, (x, y), device="host")(x, y)
    with torch.no_grad():
        want = module.double()(x.double(), y.double())
    error = float((torch.as_tensor(got).double() - want).norm() / want.norm())
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(
    ("width", "norm", "dtype", "rows"),
    [
        (576, False, torch.bfloat16, 8),
        (517, True, torch.bfloat16, 8),
        (257, True, torch.float32, 8),
        (3, False, torch.float32, 32),  # tiny rows: more of them to a block, as ever
    ],
)
def test_blocks_take_eight_of_many_short_rows(width: int, norm: bool, dtype: torch.dtype, rows: int) -> None:
    outputs = 32003  # not a multiple of a block's rows
    draw = randomness.generator()
    module = Product(width, outputs, norm, dtype)
    x, y = (torch.from_numpy(draw.standard_normal((1, n), "float32")).to(dtype) for n in (width, outputs))
    job = Compilation("m", get_target("sm_90a"), (), helpers=0)
    job.import_module(module, (x, y), {})
    job.lower("ptx")
    launch = job.plan.launches[-1]
    assert launch.grid[0] == -(-outputs // rows)
    got = mlirc.compile(module, (x, y), device="host")(x, y)
    with torch.no_grad():
        want = module.double()(x.double(), y.double())
    error = float((torch.as_tensor(got).double() - want).norm() / want.norm())
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)
