"""Arguments of the API that cannot be meant: one line that says what to give, and never an exception from inside."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlirc
from mlirc.errors import MlircError
from mlirc.runtime import load_text
from mlirc.runtime.plan_file import embed
from support.devices.fake_gpu import FakeDriver
from support.plans.tiny import KERNELS, PTX, N, W, make_plan, write_weights

LIN, X = torch.nn.Linear(8, 4).eval(), torch.zeros(2, 8)
Dim = torch.export.Dim("b", max=8)


class Nested(torch.nn.Module):
    def forward(self, pair, named, flag=None):
        return pair[0] + pair[1] * named["scale"]


NESTED = ((torch.ones(3, 5), torch.ones(3, 5)), {"scale": torch.ones(5)})


def refused(call, why: str) -> None:
    with pytest.raises(MlircError, match=why) as caught:
        call()
    assert "\n" not in str(caught.value) and "internal error" not in str(caught.value)


@pytest.mark.parametrize("options, why", [
    ({"sizes": {"input": 5}}, "sizes of an input is 5, of type int: give them as 'b<=8, 7'"),
    ({"sizes": "b<=8, 7"}, "sizes is 'b<=8, 7', of type str: give them by the inputs' names"),
    ({"sizes": {"x": "b<=8, 8"}}, r"sizes\['x'\]: there is no such input: those are input"),
    ({"kwargs": {"input": X}}, "forward cannot be called with these example inputs: multiple values for argument 'input'"),
    ({"kwargs": {"other": X}}, "unexpected keyword argument 'other'"),
    ({"kwargs": 5}, "kwargs is 5, of type int: give example inputs by name"),
    ({"args": ()}, "missing a required argument: 'input'"),
    ({"schedule": "matmul:block_m=64"}, "schedule is 'matmul:block_m=64', of type str: give a list of texts"),
    ({"schedule": [5]}, "schedule, one of it, is 5, of type int: give a text"),
    ({"scalars": "input"}, "scalars is 'input', of type str: give a list of texts"),
    ({"name": 5}, "name is 5, of type int: give a text"),
    ({"target": 90}, "target is 90, of type int: give a text"),
    ({"quantize": 4}, "quantize is 4, of type int: give a text"),
    ({"dynamic_shapes": 5}, "dynamic_shapes is 5, of type int"),
    ({"dynamic_shapes": {"input": {5: Dim}}}, "dynamic_shapes of 'input': there is no dimension 5: the input has 2"),
    ({"dynamic_shapes": {"input": {-3: Dim}}}, "there is no dimension -3: the input has 2"),
    ({"dynamic_shapes": {"input": {"0": Dim}}}, "there is no dimension '0': the input has 2"),
    ({"dynamic_shapes": {"input": (Dim,)}}, "dynamic_shapes of 'input': 1 are given, and there are 2"),
    ({"dynamic_shapes": {"input": Dim}}, "dynamic_shapes of 'input' is of type"),
    ({"dynamic_shapes": {"other": {0: Dim}}}, "dynamic_shapes: there is no 'other': those are input"),
    ({"dynamic_shapes": ({0: Dim}, None)}, "dynamic_shapes: 2 are given, and there are 1"),
])  # fmt: skip
def test_compile(options, why):
    given = {"args": (X,), "device": "host"} | options
    refused(lambda: mlirc.compile(LIN, given.pop("args"), **given), why)


@pytest.mark.parametrize("shapes, why", [
    ({"pair": ({0: Dim},), "named": None}, r"dynamic_shapes\['pair'\]: 1 are given, and there are 2"),
    ({"pair": {0: Dim}, "named": None}, r"dynamic_shapes\['pair'\] is of type dict: give a list of 2, or None"),
    ({"pair": None, "named": {"scal": {0: Dim}}}, r"dynamic_shapes\['named'\]: there is no 'scal': those are scale"),
    ({"pair": None, "named": [None]}, r"dynamic_shapes\['named'\] is of type list: give dimensions by name"),
])  # fmt: skip
def test_dynamic_shapes_of_nested_inputs(shapes, why):
    refused(lambda: mlirc.compile(Nested(), NESTED, device="host", dynamic_shapes=shapes), why)


def test_one_example_input_need_be_no_tuple():
    x = torch.randn(2, 8)
    torch.testing.assert_close(mlirc.compile(LIN, x, device="host")(x), LIN(x), rtol=1e-4, atol=1e-5)


def test_dynamic_shapes_that_are_right():
    shapes = {"pair": ({0: Dim}, {0: Dim}), "named": {"scale": None}}
    model = mlirc.compile(Nested(), NESTED, device="host", dynamic_shapes=shapes)
    pair = torch.randn(2, 5), torch.randn(2, 5)
    torch.testing.assert_close(model(pair, {"scale": torch.ones(5)}), pair[0] + pair[1])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.ptx"
    path.write_text(embed(PTX, make_plan()))
    write_weights(path.with_suffix(".safetensors"), {"m.w": W})
    return path


@pytest.mark.parametrize("options, why", [
    ({"weights": 5}, "weights is 5, of type int: give a safetensors file, or tensors by name"),
    ({"weights": [W]}, "weights is of type list"),
    ({"weights": {"m.w": 5}}, "'m.w': a int is no tensor"),
    ({"weights": {"m.w": torch.empty(1, N, device="meta")}}, "'m.w': lies on a device that is neither"),
    ({"share": 5}, r"share is 5, of type int: give a loaded model"),
    ({"device": "cpu"}, "device 'cpu': give a GPU's number, or 'host'"),
    ({"path": b"x.ptx"}, "path is b'x.ptx', of type bytes: give the name of a file"),
    ({"path": None}, "path is of type NoneType"),
])  # fmt: skip
def test_load(file, options, why):
    refused(lambda: mlirc.load(**{"path": file, "driver": FakeDriver(KERNELS), **options}), why)


def test_sharing_with_a_model_that_is_closed_or_elsewhere(file):
    other = mlirc.load(file, driver=FakeDriver(KERNELS))
    refused(
        lambda: mlirc.load(file, device="host", share=other), "share is on device 0, and the model is loaded onto host"
    )
    other.close()
    refused(lambda: mlirc.load(file, driver=FakeDriver(KERNELS), share=other), "the model is closed: load it again")


@pytest.mark.parametrize("value, why", [
    (torch.empty(N, device="meta"), "'x': lies on a device that is neither"),
    (torch.zeros(N).to_sparse(), "'x': cannot be shared through DLPack"),
    ("x", "'x': a str is no tensor"), (None, "'x': a NoneType is no tensor"), ([0.0] * N, "'x': a list is no tensor"),
    (np.array(["a"] * N), "NumPy dtype <U1 is not supported"),
])  # fmt: skip
def test_calls(value, why):
    model = load_text(embed(PTX, make_plan()), {"m.w": W}, driver=FakeDriver(KERNELS))
    host = mlirc.compile(torch.nn.ReLU(), (torch.zeros(N),), device="host", name="relu")
    refused(lambda: model(value), why)
    refused(lambda: host(value), why.replace("'x'", "'input'"))
    for name in ("bind", "start"):
        refused(lambda name=name: getattr(model, name)(value), why)


def test_a_closed_model():
    model = load_text(embed(PTX, make_plan()), {"m.w": W}, driver=FakeDriver(KERNELS))
    host = mlirc.compile(torch.nn.ReLU(), (torch.zeros(N),), device="host")
    x = np.zeros(N, np.float32)
    for loaded in (model, host):
        loaded.close()
        loaded.close()
        calls = [lambda m=loaded: m(x), lambda m=loaded: m.bind(x), lambda m=loaded: m.launch(),
                 lambda m=loaded: m.manual_seed(0), lambda m=loaded: m.state.reset()]  # fmt: skip
        for call in calls:
            refused(call, "the model is closed: load it again")
