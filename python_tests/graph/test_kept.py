"""Maps that a kernel of rows computes and writes beside its own result: which they are, and that all readers get them;
beside PyTorch on the CPU and on the host device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.host import run_level
from mlirc.ir import levels
from mlirc.scripts.graph import to_kernels
from mlirc.targets import get_target
from support.randomness import generator


def norm(x):
    return F.layer_norm(x, x.shape[-1:])


def two_results(x, y):
    h = x + y
    return h, norm(h)


def of_three_dimensions(x, y):
    h = torch.tanh(x.unflatten(0, (1, -1)) * y)
    return torch.softmax(h, -1), h


def two_norms(x, y):
    """The second one reads the sum from memory."""
    h = x + y
    return norm(h), torch.softmax(h, -1), h


def norm_of_a_norm(x, y):
    h = norm(x + y)
    return h, norm(h * y)


def both_kept(x, y):
    a = x + y
    b = a * y
    return norm(b), a, b


def a_product_in_between(x, y):
    """The norm needs the product, which needs the sum: two kernels cannot wait for each other."""
    h = x + y
    return norm(h + h @ torch.ones(h.shape[-1], h.shape[-1])), h


def read_before(x, y):
    """A product reads the sum in front of the norm's place."""
    h = x + y
    return h @ torch.ones(h.shape[-1], 3), norm(h), h


def other_rows(x, y):
    """The sum is read as another shape than that of the norm."""
    h = x + y
    return norm(h.T.reshape(-1, h.shape[0])), h


def of_half_the_sum(x, y):
    h = x + y
    return norm(h[1:]), h


def row_sums(x, y):
    """A result of one element per row cannot be written beside one of whole rows by maps that read it alike."""
    h = x + y
    return h.sum(-1), h


def row_statistics(x, y):
    """The mean of a row and its spread around it: both have one element per row."""
    h = x + y
    mean = h.mean(-1, keepdim=True)
    return ((h - mean) ** 2).mean(-1), mean[:, 0] * 2, mean[:, 0]


GRAPHS = {
    two_results: 1, of_three_dimensions: 1, two_norms: 2, norm_of_a_norm: 1, both_kept: 1, a_product_in_between: 4,
    read_before: 4, other_rows: 2, of_half_the_sum: 2, row_sums: 2,
    row_statistics: 2,
}  # fmt: skip


class Graph(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x, y):
        return self.compute(x, y)


def built(compute, rows: int, length: int, dtype=torch.float32):
    draw = generator()
    x, y = (torch.from_numpy(draw.standard_normal((rows, length), "f4")).to(dtype) for _ in range(2))
    job = Compilation("kept", get_target("sm_90a"), helpers=0)
    job.import_module(Graph(compute).eval(), (x, y), {})
    return job, (x, y)


def calls(job) -> int:
    return str(levels.functions(job.modules["kernels"])["main"]).count(" call @")


@pytest.mark.parametrize("compute", GRAPHS, ids=lambda f: f.__name__)
def test_all_readers_get_what_is_kept(compute, tmp_path):
    job, inputs = built(compute, 7, 37)
    job.lower("ptx")
    job.write(tmp_path / "kept.ptx")
    assert calls(job) == GRAPHS[compute]
    expected = compute(*inputs)
    with mlirc.load(tmp_path / "kept.ptx", device="host") as model:
        found = model(*inputs)
    for levels_found in (found, run_level(job.modules["tiles"], list(inputs), job.tensors())):
        for mine, right in zip(levels_found, expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(mine).view(right.shape), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows, length", [(5, 1), (3, 1000), (2, 4097), (130, 16)])
def test_rows_of_any_length(rows, length, tmp_path):
    job, inputs = built(two_results, rows, length, torch.bfloat16)
    job.lower("ptx")
    job.write(tmp_path / "kept.ptx")
    with mlirc.load(tmp_path / "kept.ptx", device="host") as model:
        total, normed = (torch.as_tensor(t) for t in model(*inputs))
    right = (inputs[0] + inputs[1]).double()
    assert torch.equal(total.double(), right)
    torch.testing.assert_close(normed.double(), norm(right), rtol=2e-2, atol=2e-2)


def test_one_row_is_left_to_the_products_that_read_it():
    job, _ = built(two_results, 1, 64)
    job.lower("kernels")
    assert calls(job) == 2


def test_kernels_without_fused_maps_keep_nothing():
    job, _ = built(two_results, 4, 64)
    job.lower("linalg")
    kernels = to_kernels(levels.copy(job.modules["linalg"]), get_target("sm_90a"), fuse_maps=False)
    assert str(levels.functions(kernels)["main"]).count(" call @") > 2
