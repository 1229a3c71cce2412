"""Rows that no cluster holds: their reductions are kernels of their own, and what reads the row again is a map; beside
PyTorch on the CPU and on the host device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.frontend import decompositions, moments
from mlirc.host import run_level
from mlirc.ir import levels
from mlirc.passes.graph import demands, grouping
from mlirc.targets import get_target
from support.models.together import Calls
from support.randomness import generator

# Kernels of each: reductions, and one map.
GRAPHS = {
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), 4),
    "softmax": (lambda x: torch.softmax(x, -1), 3),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), 3),
    "frobenius": (lambda x: x / torch.norm(x, p="fro"), 2),
    "product_and_sum": (lambda x: (x * x).sum(-1, keepdim=True) * x.exp(), 2),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_rows_that_no_cluster_holds(name, monkeypatch, tmp_path):
    compute, kernels = GRAPHS[name]
    for module in (demands, grouping):
        monkeypatch.setattr(module, "LONGEST_ROW", 500)
    x = torch.from_numpy(generator().standard_normal((3, 1031), "f4")) * 2
    job = Compilation("longest", get_target("sm_90a"), helpers=0)
    job.import_module(Calls(compute).eval(), (x,), {})
    job.lower("ptx")
    assert str(levels.functions(job.modules["kernels"])["main"]).count(" call @") == kernels
    job.write(tmp_path / "longest.ptx")
    with mlirc.load(tmp_path / "longest.ptx", device="host") as model:
        found = torch.as_tensor(model(x))
    for mine in (found, torch.as_tensor(run_level(job.modules["tiles"], [x], job.tensors())[0])):
        torch.testing.assert_close(mine.double(), compute(x.double()), rtol=2e-5, atol=1e-6)


def test_rows_that_a_cluster_holds_stay_one_kernel():
    job = Compilation("longest", get_target("sm_90a"), helpers=0)
    job.import_module(nn.Softmax(-1), (torch.zeros(2, demands.LONGEST_ROW),), {})
    job.lower("kernels")
    assert str(levels.functions(job.modules["kernels"])["main"]).count(" call @") == 1


@pytest.mark.parametrize("weighted", [True, False])
def test_a_norm_of_such_rows_reads_them_twice(weighted, monkeypatch):
    """Means and squares of parts in one kernel, those of rows in one, and one map."""
    for module in (demands, grouping, decompositions, moments):
        monkeypatch.setattr(module, "LONGEST_ROW", 500)
    monkeypatch.setattr(moments, "LONGEST_PART", 100)
    x = torch.from_numpy(generator().standard_normal((3, 7, 90), "f4")) * 2 + 30
    model = nn.LayerNorm((7, 90), elementwise_affine=weighted)
    job = Compilation("longest", get_target("sm_90a"), helpers=0)
    job.import_module(model.eval(), (x,), {})
    job.lower("tiles")
    assert str(levels.functions(job.modules["kernels"])["main"]).count(" call @") == 3
    found = torch.as_tensor(run_level(job.modules["tiles"], [x], job.tensors())[0])
    torch.testing.assert_close(found.double(), model.double()(x.double()), rtol=2e-5, atol=1e-6)
