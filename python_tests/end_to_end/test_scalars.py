"""Inputs that are numbers: by value with `name=dtype`, in device memory with `name=dtype[]`; beside PyTorch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import mlirc
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.frontend.inputs import parse_input
from mlirc.runtime.plan import KernelLaunch
from mlirc.tools import mlirc_run
from support.models.together import randn

H, N, D = 2, 7, 5


class Steps(nn.Module):
    """One row of a cache a call, at a position and times a scale; and a sum that a number is added to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, H, N, D))

    def forward(self, x, position, scale):
        self.k[:, :, position] = x * scale
        return self.k.sum(2) + position


def steps():
    return Steps(), (randn(1, H, D), 3, 0.5)


def by_value(plan) -> set[str]:
    """The inputs that some launch takes by value, and no step by its address."""
    found = {step.args[n] for step in plan.steps if isinstance(step, KernelLaunch) for n in step.values}
    others = {r for s in plan.steps if isinstance(s, KernelLaunch) for i, r in enumerate(s.args) if i not in s.values}
    return {plan.inputs[r.index].name for r in found - others}


@pytest.mark.parametrize("scalars", [["position", "scale"], ["scale"], ["position"]])
def test_numbers_differ_from_call_to_call(scalars):
    module, args = steps()
    fixed = dict(zip(("position", "scale"), args[1:], strict=True))
    compiled = mlirc.compile(module, args, device="host", scalars=scalars)
    assert [s.name for s in compiled.plan.inputs if s.kind == "scalar"] == scalars
    assert by_value(compiled.plan) == set(scalars)
    eager = copy.deepcopy(module)
    for position, scale in ((3, 0.5), (0, -2.0), (6, 1e-3)):
        given = {"position": position, "scale": scale}
        numbers = {name: given[name] if name in scalars else fixed[name] for name in given}
        x = randn(1, H, D)
        got = compiled(x, **{name: numbers[name] for name in scalars})
        torch.testing.assert_close(got, eager(x, torch.tensor(numbers["position"]), numbers["scale"]))


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(torch.int64, -(2**40)), (torch.int32, -7), (torch.int8, -3), (torch.uint8, 200), (torch.bool, True),
     (torch.float64, 0.1), (torch.float32, 0.1), (torch.bfloat16, 0.1)],
)  # fmt: skip
def test_every_dtype(dtype, number):
    class Adds(nn.Module):
        def forward(self, x, n):
            return x + n, n.to(torch.float64) * 2

    x, n = randn(3).double(), torch.tensor(number, dtype=dtype)
    compiled = mlirc.compile(Adds(), (x, torch.zeros_like(n)), device="host", scalars=["n"])
    for given in (n, number):
        got = compiled(x, given)
        for mine, right in zip(got, Adds()(x, n), strict=True):
            torch.testing.assert_close(mine, right)


def test_a_number_by_the_command_line_and_one_in_device_memory(tmp_path, monkeypatch, ran):
    (tmp_path / "counting.py").write_text(
        "import torch\n"
        "class Adds(torch.nn.Module):\n"
        "    def forward(self, x, n, m):\n"
        "        return x * n + m\n"
        "def make():\n"
        "    return Adds(), (torch.ones(5), torch.tensor(2), torch.tensor(3))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    job = compile_model("counting:make", tmp_path / "m.ptx", inputs=["n=i64", "m=i64[]"])
    assert [s.kind for s in job.plan.inputs] == ["input", "scalar", "input"] and by_value(job.plan) == {"n"}
    assert ".param .u64 elementwise_0_param" in job.ptx
    with mlirc.load(tmp_path / "m.ptx", device="host") as model:
        model.execute_ptx = True
        for n, m in ((2, 3), (-5, 1)):
            np.testing.assert_array_equal(model(np.ones(5, np.float32), n, np.array(m)), np.full(5, n + m, np.float32))
            assert "the whole plan executed in its arena" in model.summary()
        with pytest.raises(MlircError, match="'m': a int is no tensor"):
            model(np.ones(5, np.float32), 2, 3)
    np.save(tmp_path / "x.npy", np.ones(5, np.float32))
    np.save(tmp_path / "m.npy", np.array(1))
    files = ["--input", f"x={tmp_path / 'x.npy'}", "--input", f"m={tmp_path / 'm.npy'}", "--level", "kernels"]
    done = ran(mlirc_run.main, tmp_path / "m.ptx", *files, "--input", "n=-4", "-o", tmp_path / "y.npy")
    assert done.status == 0 and np.array_equal(np.load(tmp_path / "y.npy"), np.full(5, -3, np.float32)), done
    assert "scalar 'n': 1.5 is no i64" in ran(mlirc_run.main, tmp_path / "m.ptx", *files, "--input", "n=1.5").err
    assert str(parse_input("n=i64")) == "n=i64" and str(parse_input("n=i64[]")) == "n=i64[]"


@pytest.mark.parametrize(
    ("scalars", "why"),
    [
        (["x"], "'x' is no number among the inputs: those are position, scale"),
        (["other"], "'other' is no number among the inputs"),
    ],
)
def test_what_is_no_number(scalars, why):
    with pytest.raises(MlircError, match=why):
        mlirc.compile(*steps(), device="host", scalars=scalars)


def test_a_number_that_decides_a_shape_is_refused():
    class Cuts(nn.Module):
        def forward(self, x, n):
            return x[:n]

    with pytest.raises(MlircError) as raised:
        mlirc.compile(Cuts(), (randn(5), 3), device="host", scalars=["n"])
    assert "\n" not in str(raised.value)
    assert mlirc.compile(Cuts(), (randn(5), 3), device="host")(randn(5)).shape == (3,)
