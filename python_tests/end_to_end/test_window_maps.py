"""Depthwise convolutions and poolings of small windows are maps: one kernel, right beside PyTorch at every level."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.host.tensors import run_level
from mlirc.ir import levels
from mlirc.mlir import context
from support.models.recurrent import compiled


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


CONVOLUTIONS = {
    "3x3": (nn.Conv2d(5, 5, 3, padding=1, groups=5), (2, 5, 7, 9)),
    "strided": (nn.Conv2d(6, 6, (5, 3), (2, 1), (2, 0), groups=6, bias=False), (1, 6, 8, 7)),
    "dilated": (nn.Conv2d(3, 3, 3, padding=2, dilation=2, groups=3), (2, 3, 6, 9)),
    "of one dimension": (nn.Conv1d(4, 4, 4, padding=3, groups=4), (2, 4, 11)),
    "two results a channel": (nn.Conv2d(3, 6, 3, padding=1, groups=3), (1, 3, 5, 4)),
}
POOLINGS = {
    "max": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 9, 7)),
    "max, the last window cut": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (1, 3, 8, 10)),
    "max, dilated": (lambda x: F.max_pool2d(x, (3, 2), 1, (1, 0), (2, 3)), (1, 2, 7, 8)),
    "max of one dimension": (lambda x: F.max_pool1d(x, 3, 2, 1), (2, 3, 11)),
    "max of three": (lambda x: F.max_pool3d(x, 3, 2, 1), (1, 2, 7, 5, 6)),
    "max of three, cut": (lambda x: F.max_pool3d(x, (2, 3, 2), 2, (1, 1, 0), ceil_mode=True), (3, 6, 7, 5)),
    "mean": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 9, 7)),
    "mean of what is there": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (1, 2, 9, 12)
    ),
    "mean by a divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), (1, 3, 6, 8)),
    "mean of three": (lambda x: F.avg_pool3d(x, 2, 1, 1), (1, 3, 4, 5, 3)),
}  # fmt: skip


def kinds(job):
    with context():
        module = job.modules["kernels"]
        return [f.attributes["mlirc.kind"].value for f in levels.kernels(module).values()]


def hostile(shape):
    """NaNs, infinities and the lowest numbers among others."""
    x = torch.randn(shape)
    for number in (math.nan, -math.inf, math.inf, torch.finfo(torch.float32).min):
        x.view(-1)[torch.randint(x.numel(), (2,))] = number
    return x


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_depthwise_convolutions(name, dtype, tolerance):
    module, shape = CONVOLUTIONS[name]
    module, x = module.to(dtype).eval(), torch.randn(shape).to(dtype)
    job = compiled(nn.Sequential(module, nn.ReLU6()), (x,), "tiles")
    assert "generic" not in kinds(job)
    wanted = F.relu6(module.double()(x.double())).to(dtype)
    module.to(dtype)
    for level in ("kernels", "tiles"):
        (got,) = run_level(job.modules[level], [x], job.tensors())
        torch.testing.assert_close(got, wanted.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", POOLINGS)
def test_poolings(name):
    function, shape = POOLINGS[name]
    job = compiled(Calls(function), (torch.randn(shape),), "tiles")
    assert set(kinds(job)) == {"elementwise"}
    for x in (torch.randn(shape), hostile(shape)):
        for level in ("kernels", "tiles"):
            (got,) = run_level(job.modules[level], [x], job.tensors())
            torch.testing.assert_close(got, function(x), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_what_is_widened_in_front_of_a_pooling_is_no_tensor_in_memory():
    job = compiled(Calls(lambda x: F.avg_pool2d(x, 3, 1, 1)), (torch.randn(1, 3, 5, 6).bfloat16(),), "tiles")
    x = torch.randn(1, 3, 5, 6).bfloat16()
    (got,) = run_level(job.modules["tiles"], [x], job.tensors())
    torch.testing.assert_close(got, F.avg_pool2d(x.float(), 3, 1, 1).bfloat16(), rtol=1e-2, atol=1e-2)
    assert kinds(job) == ["elementwise"]


def test_large_windows_stay_reductions():
    job = compiled(Calls(lambda x: F.max_pool2d(x, 9, 1, 4)), (torch.randn(1, 2, 10, 11),), "kernels")
    assert "generic" in kinds(job)


def test_a_window_is_not_computed_again_for_each_of_its_readers_windows():
    def function(x):
        return F.max_pool2d(F.max_pool2d(x, 3, 1, 1), (1, 2), 1)

    job = compiled(Calls(function), (torch.randn(1, 2, 6, 7),), "tiles")
    assert kinds(job) == ["elementwise"] * 2
    x = torch.randn(1, 2, 6, 7)
    torch.testing.assert_close(run_level(job.modules["tiles"], [x], job.tensors())[0], function(x))


def test_windows_do_not_join_a_norm_of_their_results():
    depthwise = nn.Conv2d(16, 16, 7, padding=3, groups=16)

    def function(x):
        return F.layer_norm(depthwise(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), (16,))

    module, x = Calls(function).eval(), torch.randn(1, 8, 8, 16)
    module.depthwise = depthwise
    job = compiled(module, (x,))
    run = [step.kernel.split("_")[0] for step in job.plan.steps[job.plan.setup :]]
    assert run == ["elementwise", "reduction"]
    (got,) = run_level(job.modules["tiles"], [x], job.tensors())
    torch.testing.assert_close(got, function(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_depthwise_convolution_of_an_image_that_is_channels_first_stays_so():
    """Nothing is transposed, and threads have neighbours of a row."""
    module, x = nn.Conv2d(6, 6, 3, groups=6).eval(), torch.randn(2, 6, 11, 34)
    job = compiled(module, (x,))
    assert (job.plan.setup, len(job.plan.steps)) == (0, 1)
    (got,) = run_level(job.modules["tiles"], [x], job.tensors())
    torch.testing.assert_close(got, module(x).detach(), rtol=1e-5, atol=1e-5)


LAST = {
    "depthwise": (nn.Conv2d(16, 16, 3, padding=1, groups=16), 1),
    "max": (nn.MaxPool2d(3, 2, 1), 0),
    "mean": (nn.AvgPool2d(2), 0),
    "max of three": (nn.MaxPool3d(2), 0),
    "mean of three": (nn.AvgPool3d((1, 2, 2)), 0),
}


@pytest.mark.parametrize("name", LAST)
def test_tensors_that_are_channels_last_stay_so(name):
    """One launch a run, which reads 16 bytes of neighbouring channels at a time."""
    layer, setup = LAST[name]
    rank = 3 if name.endswith("three") else 2
    x = torch.randn(2, *[4, 6, 8][-rank:], 16)

    def function(x):
        return layer(x.permute(0, rank + 1, *range(1, rank + 1))).permute(0, *range(2, rank + 2), 1).contiguous()

    module = Calls(function)
    module.layer = layer
    job = compiled(module.eval(), (x,))
    assert (job.plan.setup, len(job.plan.steps)) == (setup, setup + 1)
    (got,) = run_level(job.modules["tiles"], [x], job.tensors())
    torch.testing.assert_close(got, function(x).detach(), rtol=1e-5, atol=1e-5)
    entry = job.ptx.split(f".entry {job.plan.steps[-1].symbol}(")[1]
    loads = [line for line in entry.split(".entry")[0].splitlines() if "ld.global" in line and ".nc" in line]
    assert sum(".v4." in line for line in loads) >= 2 and not any(".b16" in line for line in loads)
