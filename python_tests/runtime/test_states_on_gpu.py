"""On the GPU: states, inputs that are changed, numbers by value, tables of pointers, and graphs that keep all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlirc.driver.compilation import Compilation
from mlirc.runtime import load, load_text
from mlirc.runtime.cuda import Driver
from support.devices.gpu_kernel import on_gpu, target_of
from support.kernels import pointer_tables, scalars

pytestmark = on_gpu
GRAPHS = pytest.mark.parametrize("graph", [True, False], ids=["graph", "launches"])


class Steps(nn.Module):
    """One row of a cache a call, and an input that gets the number of calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 2, 7, 5))
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x, at, scale, z):
        self.k[:, :, at] = x * scale
        self.n += 1
        z.add_(self.n)
        return self.k.sum(2) + at


class Scaled(nn.Module):
    """A product, times a number."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x, scale):
        return x @ self.weight.T * scale


def compilation() -> Compilation:
    driver = Driver(0)
    target = target_of(driver)
    driver.close()
    return Compilation("m", target, helpers=1)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).cuda()


@GRAPHS
def test_a_cache_with_numbers_by_value(graph):
    job = compilation()
    job.import_module(Steps(), (torch.zeros(1, 2, 5), 3, 0.5, torch.zeros(3)), {}, False, ["at", "scale"])
    job.lower("ptx")
    eager = Steps().cuda()
    with load_text(job.ptx, job.tensors(), graph=graph) as model:
        for at, scale in ((3, 0.5), (0, 2.0), (6, -1.0), (-1, 0.25)):
            x, z = randn(1, 2, 5), randn(3)
            ours, theirs = z.clone(), z.clone()
            torch.testing.assert_close(model(x, at, scale, ours), eager(x, torch.tensor(at).cuda(), scale, theirs))
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(torch.from_dlpack(model.state["k"]), eager.k)
        assert model.state["n"].numpy() == 4
        model.state.reset("k")
        assert not model.state["k"].numpy().any() and model.state["n"].numpy() == 4


def test_one_captured_graph_for_all_positions():
    job = compilation()
    job.import_module(Steps(), (torch.zeros(1, 2, 5), torch.tensor(3), torch.tensor(0.5), torch.zeros(3)), {}, False)
    job.lower("ptx")
    eager = Steps().cuda()
    x, at, scale, z = randn(1, 2, 5), torch.tensor(1).cuda(), torch.tensor(0.5).cuda(), torch.zeros(3).cuda()
    other = z.clone()
    with load_text(job.ptx, job.tensors(), graph=False) as model:
        model.bind(x, at, scale, z)
        assert model.outputs
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            model.launch(torch.cuda.current_stream())
        for position in (2, 5, 0):
            at.fill_(position)
            captured.replay()
            want = eager(x, at, scale, other)
            torch.testing.assert_close(torch.from_dlpack(model.outputs[0]), want)
            torch.testing.assert_close(torch.from_dlpack(model.state["k"]), eager.k)
            torch.testing.assert_close(z, other)


@GRAPHS
def test_grids_that_numbers_decide_and_tables(graph, tmp_path):
    for name, text in (("scale", scalars.model()), ("tables", pointer_tables.model())):
        (tmp_path / f"{name}.mlir").write_text(text)
        job = compilation()
        job.open(str(tmp_path / f"{name}.mlir"))
        job.lower("ptx")
        job.write(tmp_path / f"{name}.ptx")
    with load(tmp_path / "scale.ptx", graph=graph) as model:
        x = randn(scalars.SIZE)
        for n, s in ((3, 0.5), (32, -1.0), (0, 1.0), (9, 2.0)):
            y = model(x, n, s)
            if n:
                torch.testing.assert_close(y, x * n + s)
    with load(tmp_path / "tables.ptx", graph=graph) as model:
        for _ in range(2):
            xs = [randn(n) for n in pointer_tables.SIZES]
            for i, (mine, x) in enumerate(zip(model(*xs), xs, strict=True)):
                assert torch.equal(mine, x * (i + 2))


@GRAPHS
def test_runs_that_are_started_have_their_own_inputs(graph):
    """As in `test_started_runs.py`: copies out of page-locked memory are under way while the host goes on."""
    weight = torch.randn(96, 64)
    job = compilation()
    job.import_module(Scaled(weight), (torch.zeros(7, 64), torch.zeros(())), {}, False)
    job.lower("ptx")
    with load_text(job.ptx, job.tensors(), graph=graph) as model:
        xs, runs = [torch.randn(7, 64) for _ in range(40)], []
        for i, x in enumerate(xs):
            given = x.clone()
            runs.append(model.start(given, torch.tensor(float(i))))
            given.zero_()
        for i, (x, run) in reversed(list(enumerate(zip(xs, runs, strict=True)))):
            found = torch.from_numpy(run.result())
            torch.testing.assert_close(found, x @ weight.T * i, rtol=1e-4, atol=1e-3)
        again = model.start(xs[0].cuda(), torch.tensor(2.0).cuda())
        torch.testing.assert_close(torch.from_numpy(again.result()), xs[0] @ weight.T * 2, rtol=1e-4, atol=1e-3)
