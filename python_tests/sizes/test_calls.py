"""One compiled file for every size: through the compiler, the command line, the host device and a fake GPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import mlirc
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.frontend.inputs import parse_input, parse_inputs
from mlirc.runtime.fitting import cut
from mlirc.runtime.loading import load_text, read_model
from mlirc.runtime.plan import SIZES_VERSION, VERSION, KernelLaunch, Plan, Ref, TensorSpec
from mlirc.runtime.plan_file import embed, extract
from mlirc.runtime.plan_json import to_json
from mlirc.runtime.sizes import Sizes, parse_dims, parse_symbol
from mlirc.tools import mlirc_run
from support.devices.fake_gpu import CudaArray, FakeDriver, at
from support.models.together import randn
from support.plans.forged import signed


class Layer(nn.Module):
    """A layer whose rows lie behind each other in one of its results, and a mean over a symbolic size."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(7, 5), nn.LayerNorm(5)

    def forward(self, x):
        y = self.norm(self.linear(x))
        return y.reshape(-1, 5), y.mean(1)


def layer():
    return Layer(), (randn(2, 3, 7),)


def test_compiled_on_the_host_device_for_every_size():
    module, args = layer()
    model = mlirc.compile(module, args, device="host", sizes={"x": "b<=3, s<=6, 7"})
    assert "(x: f32[b<=3,s<=6,7]) -> (output_0: f32[b<=3 ; s<=6,5], output_1: f32[b<=3,5])" in repr(model)
    for b, s in ((1, 1), (2, 5), (3, 6), (3, 2)):
        x = randn(b, s, 7)
        for got, want in zip(model(x), module(x), strict=True):
            torch.testing.assert_close(got, want)
    for shape in ((4, 2, 7), (2, 7, 7), (0, 2, 7), (2, 2, 8), (2, 7)):
        with pytest.raises(MlircError, match="but the model was compiled for"):
            model(torch.zeros(shape))


def test_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "layer.ptx"
    job = compile_model(f"{__name__}:layer", path, inputs=["x=f32[b<=3,s<=6,7]"])
    assert read_model(path)[1] == job.plan and job.plan.sizes is not None
    x = randn(2, 5, 7)
    np.save(tmp_path / "x.npy", x.numpy())
    for level in ("linalg", "tiles"):
        out = tmp_path / f"{level}.npz"
        options = ["--input", str(tmp_path / "x.npy"), "-o", str(out), "--level", level]
        assert mlirc_run.main([str(path), *options]) == 0
        with np.load(out) as found:
            assert found["output_0"].shape == (10, 5) and found["output_1"].shape == (2, 5)
            assert np.isfinite(found["output_0"]).all()
    assert mlirc_run.main([str(path), "--info"]) == 0
    shown = capsys.readouterr().out
    assert "input x: f32[b<=3,s<=6,7]" in shown and "size 1<=b<=3" in shown
    np.save(tmp_path / "long.npy", np.zeros((1, 7, 7), np.float32))
    assert mlirc_run.main([str(path), "--input", str(tmp_path / "long.npy"), "--level", "linalg"]) == 1
    assert "s is 7, but the model was compiled for 1 to 6" in capsys.readouterr().err


def test_sizes_are_written_as_they_are_read():
    assert str(parse_input("x=f32[b<=8,3]")) == "x=f32[b<=8,3]"
    specs = parse_inputs(["mask=i64[b,s]", "ids=i64[b<=8,2<=s<=16]"])
    assert specs["mask"].shape == specs["ids"].shape == (8, 16)
    for text, why in (
        ("x=f32[s]", "'s' has no bound: write s<=2048"),
        ("x=f32[2<=s]", "'2<=s' has no bound"),
        ("x=f32[s<=1]", "from 1 to a bound of at least 2"),
        ("x=f32[4<=s<=4]", "is one size alone: write 4"),
        ("x=f32[s<=4,s<=5]", "'s' has two ranges"),
        ("x=f32[s+1]", "'s\\+1' is no size"),
    ):
        with pytest.raises(MlircError, match=why):
            parse_input(text)


# The runtime, on a fake GPU whose memory holds 0xCD where nothing was written: y = x + s at the bound.

B, S = 3, 5
PTX = """.version 8.0
.target sm_90a
.address_size 64

.visible .entry plus(.param .u64 .ptr .align 16 y, .param .u64 .ptr .align 16 x, .param .u64 s)
{
  ret;
}
"""


def _plus(y: int, x: int, s: bytes) -> None:
    at(y, B * S * 2)[:] = at(x, B * S * 2) + int.from_bytes(s, "little", signed=True)


def plus_plan() -> Plan:
    inputs = [TensorSpec("x", "f32", (B, S, 2), "input")] + [TensorSpec(n, "i64", (), "scalar") for n in "bs"]
    size = B * S * 2 * 4
    steps = [KernelLaunch("plus", (1, 1, 1), (64, 1, 1), 0,
                          (Ref("output", 0, 0, size), Ref("input", 0, 0, size), Ref("input", 2, 0, 8)), values=(2,))]  # fmt: skip
    sizes = Sizes(
        (parse_symbol("1<=b<=3"), parse_symbol("1<=s<=5")),
        {"x": parse_dims("b<=3, s<=5, 2")},
        {"y": parse_dims("b<=3 ; s<=5, 2")},
        ("s != 3",),
    )
    outputs = [TensorSpec("y", "f32", (B * S, 2), "output")]
    return Plan("plus", "sm_90a", inputs, outputs, [], 0, steps, sizes=sizes)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "launches"])
def test_the_runtime_takes_every_size(graph):
    with load_text(embed(PTX, plus_plan()), {}, driver=FakeDriver({"plus": _plus}), graph=graph) as model:
        for b, s in ((1, 1), (2, 4), (3, 5), (2, 2), (3, 1), (1, 5)):
            x = randn(b, s, 2).numpy()
            for given in (x, torch.from_numpy(x), CudaArray(x)):
                got = np.asarray(model(given))
                np.testing.assert_array_equal(got, x.reshape(-1, 2) + np.float32(s))
            runs = [model.start(given) for given in (x, torch.from_numpy(x * 2), CudaArray(x * 3))]
            for i, run in enumerate(runs):
                np.testing.assert_array_equal(run.result(), x.reshape(-1, 2) * np.float32(i + 1) + np.float32(s))
        for shape, why in (
            ((4, 1, 2), "b is 4"),
            ((1, 6, 2), "s is 6"),
            ((1, 3, 2), "s != 3"),
            ((1, 2, 3), "\\[1,2,3\\]"),
        ):
            with pytest.raises(MlircError, match=why):
                model(np.zeros(shape, np.float32))
        with pytest.raises(MlircError, match="got f64"):
            model(np.zeros((1, 1, 2)))
        with pytest.raises(MlircError, match="2 inputs given"):
            model(np.zeros((1, 1, 2), np.float32), 1)


def forged(change) -> str:
    data = json.loads(to_json(plus_plan()))
    change(data)
    return signed(json.dumps(data), PTX)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.update(version=VERSION), "sizes"),
        (lambda d: d.pop("sizes"), "an object with"),
        (lambda d: d["sizes"].pop("outputs"), "an object with symbols, inputs, outputs, conditions"),
        (lambda d: d["sizes"].update(symbols="b"), "a list"),
        (lambda d: d["sizes"]["symbols"].append(3), "a text"),
        (lambda d: d["sizes"]["inputs"].append(["x"]), "a name and dimensions"),
        (lambda d: d["sizes"].update(symbols=["1<=b<=3", "1<=s<=6"]), "'s' may be 6, and input 'x' has 5"),
        (lambda d: d["sizes"].update(outputs=[["y", "b<=3 ; s<=6, 2"]]), "output 'y' has not the shape"),
        (lambda d: d["sizes"].update(outputs=[["y", "b.real<=15, 2"]]), "is no term"),
        (lambda d: d["sizes"].update(conditions=["s ** 2 < 3"]), "is no term"),
        (lambda d: d["sizes"].update(inputs=[["x", "b<=3, s<=5, 2"], ["b", ""]]), "has symbolic sizes, and is none"),
        (lambda d: d["inputs"][1].__setitem__(1, "i32"), "size 'b' is no scalar input of i64"),
        (lambda d: d["inputs"][1].__setitem__(0, "c"), "size 'b' is no scalar input of i64"),
    ],
)
def test_a_forged_plan_is_refused(change, why):
    assert extract(forged(lambda d: None)) == plus_plan()
    with pytest.raises(MlircError, match=why):
        extract(forged(change))


def test_plans_without_sizes_are_as_before():
    plan = plus_plan()
    assert json.loads(to_json(plan))["version"] == SIZES_VERSION
    plan.sizes = None
    assert json.loads(to_json(plan))["version"] == VERSION and "sizes" not in json.loads(to_json(plan))


def test_a_result_of_few_rows_has_strides_and_memory_of_its_own():
    room = np.arange(24, dtype=np.float32).reshape(1, 6, 4)
    found = cut(room, parse_dims("1, s<=6, 4"), {"s": 5})
    assert found.strides == (5 * 16, 16, 4) and not np.shares_memory(found, room)
    assert np.array_equal(found, room[:, :5])


class Like(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x, layout=torch.strided) + x.to(torch.float64, copy=True)


def test_ops_that_are_told_a_layout():
    model = mlirc.compile(Like(), (randn(3, 2),), device="host", sizes={"x": "s<=5, 2"})
    x = randn(4, 2)
    torch.testing.assert_close(model(x), x.double())
