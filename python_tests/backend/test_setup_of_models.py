"""What compiled models compute of their weights alone runs once, and again where the weights may have changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlirc.runtime import load_text
from support.devices.fake_gpu import CudaArray, FakeDriver
from support.models.planned import Launches, run_plan
from support.models.recurrent import compiled


class Block(torch.nn.Module):
    """Two convolutions with batch norms by fixed statistics."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.Conv2d(8, 5, 3, bias=False), torch.nn.BatchNorm2d(5),
        )  # fmt: skip
        for layer in self.layers:
            if isinstance(layer, torch.nn.BatchNorm2d):
                for tensor in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
                    tensor.uniform_(0.5, 1.5)

    def forward(self, x):
        return self.layers(x)


@pytest.fixture(scope="module")
def block():
    torch.manual_seed(7)
    module, x = Block().eval(), torch.randn(2, 3, 7, 9)
    return module, x, compiled(module, (x,))


def drawn(tensors):
    """Other tensors of the same shapes, all positive."""
    return {n: torch.rand(t.shape) + 0.5 for n, t in tensors.items()}


def right(module, weights, x):
    with torch.no_grad():
        return torch.func.functional_call(module, {n: torch.as_tensor(w) for n, w in weights.items()}, (x,)).numpy()


def test_norms_of_fixed_statistics_are_computed_at_load(block):
    module, x, job = block
    at_load, run = job.plan.steps[: job.plan.setup], job.plan.steps[job.plan.setup :]
    assert len(at_load) >= 2 and {r.space for s in at_load for r in s.args} == {"weight", "arena"}
    made = {(r.space, r.offset) for s in at_load for r in s.args if r.space == "arena"}
    assert sum(any((r.space, r.offset) in made for r in s.args) for s in run) >= 2
    np.testing.assert_allclose(run_plan(job, [x], 3)[0], module(x).detach(), rtol=1e-4, atol=1e-5)


def test_other_weights_give_other_results(block):
    module, x, job = block
    for _ in range(2):
        weights = drawn(job.tensors())
        got = run_plan(job, [x], weights={n: w.numpy() for n, w in weights.items()})[0]
        np.testing.assert_allclose(got, right(module, weights, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_change_of_weights_in_place_shows_unless_they_are_frozen(block, frozen):
    module, x, job = block
    live = {n: CudaArray(w.numpy()) for n, w in drawn(job.tensors()).items()}
    driver = FakeDriver(Launches(job))
    counts = []
    with load_text(job.ptx, live, driver=driver, frozen=frozen) as model:
        before = len(driver.launched)
        for _ in range(2):
            wanted = right(module, {n: w.array for n, w in live.items()}, x)
            np.testing.assert_allclose(model(x.numpy()), wanted, rtol=1e-4, atol=1e-5)
            counts.append(len(driver.launched) - before)
            before = len(driver.launched)
            if not frozen:
                for name, weight in drawn(job.tensors()).items():
                    live[name].array[...] = weight.numpy()
    assert counts == [len(job.plan.steps) - (job.plan.setup if frozen else 0)] * 2
