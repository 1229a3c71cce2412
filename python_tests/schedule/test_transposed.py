"""Elementwise kernels that read operands across their rows, which come through shared memory in whole accesses; beside
PyTorch on the host device."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.randomness import generator


class Graph(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, *inputs):
        return self.compute(*inputs)


def built(compute, inputs, path):
    job = Compilation("transposed", get_target("sm_90a"), helpers=0)
    job.import_module(Graph(compute).eval(), inputs, {})
    job.lower("ptx")
    job.write(path)
    with mlirc.load(path, device="host") as model:
        found = torch.as_tensor(model(*inputs))
    return found, path.read_text()


def drawn(shape, dtype):
    x = torch.from_numpy(generator().integers(-100, 100, shape))
    return x.to(dtype)


def global_loads(ptx: str) -> set[str]:
    return set(re.findall(r"ld\.global(?:\.nc)?((?:\.v\d)?\.\w+)", ptx))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (128, 192), (72, 136), (80, 48)])
def test_both_sides_are_accessed_by_16_bytes(shape, dtype, tmp_path):
    if any(n * dtype.itemsize % 16 for n in shape):
        pytest.skip("rows that are no multiple of 16 bytes")
    x = drawn(shape, dtype)
    found, ptx = built(lambda x: x.T.contiguous(), (x,), tmp_path / "t.ptx")
    assert torch.equal(found, x.T)
    assert global_loads(ptx) == {".v2.b64"} if dtype.itemsize == 8 else global_loads(ptx) == {".v4.b32"}


@pytest.mark.parametrize("shape", [(33, 65), (1, 100), (7, 64), (130, 3), (2, 3), (257, 264)])
def test_rows_of_any_length(shape, tmp_path):
    x = drawn(shape, torch.bfloat16)
    found, _ = built(lambda x: x.T.contiguous(), (x,), tmp_path / "t.ptx")
    assert torch.equal(found, x.T)


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0), (0, 3, 1, 2), (0, 2, 3, 1), (3, 2, 1, 0)])
def test_any_order_of_dimensions(order, tmp_path):
    x = drawn((2, 24, 40, 16)[: len(order)], torch.float16)
    found, _ = built(lambda x: x.permute(order).contiguous(), (x,), tmp_path / "t.ptx")
    assert torch.equal(found, x.permute(order))


def test_a_sum_of_both_orders(tmp_path):
    x, y, bias = drawn((96, 64), torch.float32), drawn((64, 96), torch.bfloat16), drawn((96,), torch.float32)
    found, _ = built(lambda x, y, b: x.T * 2 + y + b + y.T.T, (x, y, bias), tmp_path / "t.ptx")
    assert torch.equal(found, x.T * 2 + y + bias + y)


def test_two_operands_across_their_rows(tmp_path):
    x, y = drawn((96, 64), torch.bfloat16), drawn((96, 64), torch.bfloat16)
    found, _ = built(lambda x, y: x.T - y.T, (x, y), tmp_path / "t.ptx")
    assert torch.equal(found, x.T - y.T)
