"""Rows longer than a block holds: reductions over them are shared by many threads, and stay exact."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.host import run_level
from mlirc.targets import get_target


class Norms(nn.Module):
    """Norms, sums and a softmax over rows of 2 * 211 * 103 numbers, a length with few divisors."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x):
        rows = x.flatten(1)
        return (
            self.norm(x),
            nn.functional.instance_norm(x),
            rows.sum(1),
            x.amax((0, 2, 3)),
            rows.softmax(-1),
            rows.var(1),
        )


def compiled(module, *inputs):
    job = Compilation("long", get_target("sm_90a"), helpers=0)
    job.import_module(module.eval(), inputs, {})
    job.lower("ptx")
    return job


def test_norms_over_long_rows_are_exact():
    x = torch.randn(3, 4, 211, 103, generator=torch.Generator().manual_seed(0)) + 2
    module = Norms()
    job = compiled(module, x)
    results = run_level(job.modules["tiles"], [x], job.tensors())
    with torch.no_grad():
        expected = module.double()(x.double())
    for mine, right in zip(results, expected, strict=True):
        assert torch.linalg.vector_norm(mine - right) <= 3e-6 * torch.linalg.vector_norm(right)


@pytest.mark.parametrize("target, cluster", [("sm_90a", (16, 1, 1)), ("sm_120", None)])
def test_a_large_cluster_takes_a_row_that_eight_blocks_do_not(target, cluster):
    job = Compilation("long", get_target(target), helpers=0)
    job.import_module(nn.Softmax(-1), (torch.zeros(2, 8 * 32 * 1024 + 1),), {})
    job.lower("ptx")
    assert {launch.cluster for launch in job.plan.launches} == {cluster}


@pytest.mark.parametrize("length", [5003, 16 * 32, 100])
def test_sixteen_blocks_share_a_row(length, tmp_path):
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(0))
    job = Compilation("long", get_target("sm_90a"), ("reduction:blocks=16",), helpers=0)
    job.import_module(nn.Softmax(-1), (x,), {})
    job.lower("ptx")
    job.write(tmp_path / "long.ptx")
    with mlirc.load(tmp_path / "long.ptx", device="host") as model:
        found = torch.as_tensor(model(x))
    torch.testing.assert_close(found.double(), x.double().softmax(-1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("rows, length", [(7168, 262144), (1024, 107632), (1, 10_000_019), (65535, 65537)])
def test_a_reduction_of_any_size_is_a_few_launches(rows, length):
    """Fake tensors: the launches are counted, not run."""
    mode = torch._subclasses.FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv(tracked_fakes=[]))
    with mode:
        x = torch.empty(rows, length)
    variance = nn.Identity()
    variance.forward = lambda x: x.var(1)
    assert len(compiled(variance, x).plan.launches) <= 16
