"""Eight threads at each public call: nothing crashes, nobody gets another's result, no step of a state is lost."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import mlirc
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.kernel import kernel
from mlirc.runtime import load_text
from mlirc.runtime.plan_file import embed
from support import randomness
from support.devices.fake_gpu import FakeDriver
from support.plans.tiny import KERNELS, PTX, N, W, expected, make_plan
from support.threads import COUNT, at_once

FIRST = """
import sys, time
import numpy as np
from mlirc import dialects, load, mlir
from support.threads import at_once

ready, load_all = [], dialects.load_all
dialects.load_all = lambda ctx: (time.sleep(0.5), load_all(ctx), ready.append(True))
assert at_once(lambda _: (mlir.context(), list(ready))[1]) == [[True]] * 8
x, y = np.load(sys.argv[2]), np.load(sys.argv[3])
for result in at_once(lambda _: load(sys.argv[1], device="host")(x)):
    np.testing.assert_allclose(result, y, rtol=1e-4, atol=1e-5)
"""


class Counts(torch.nn.Module):
    """Counts its calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, first):
        self.steps += 1
        return first * 2 + 1


def small() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)).eval()


def arrays(*shape: int) -> list[np.ndarray]:
    return [randomness.generator().standard_normal(shape).astype(np.float32) for _ in range(COUNT)]


def test_the_first_models_of_a_process_are_loaded_by_several_threads(tmp_path):
    """Dialects are loaded at first use, here slowly: nobody may see a context that has some of them."""
    net, x = small(), torch.randn(2, 7)
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "m.pt2")
    compile_model(str(tmp_path / "m.pt2"), tmp_path / "m.ptx")
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", net(x).detach().numpy())
    words = [tmp_path / name for name in ("m.ptx", "x.npy", "y.npy")]
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run([sys.executable, "-c", FIRST, *words], env=os.environ | {"PYTHONPATH": paths},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_models_are_compiled_by_several_threads():
    nets, x = [small() for _ in range(COUNT)], torch.randn(2, 7)
    for net, y in zip(nets, at_once(lambda i: mlirc.compile(nets[i], (x,), device="host")(x)), strict=True):
        torch.testing.assert_close(y, net(x), rtol=1e-4, atol=1e-5)


def test_calls_of_one_model_on_the_host_device():
    net, xs = small(), arrays(2, 7)
    model = mlirc.compile(net, (torch.from_numpy(xs[0]),), device="host")
    for _ in range(3):
        for x, y in zip(xs, at_once(lambda i: model(xs[i])), strict=True):
            np.testing.assert_allclose(y, net(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_no_step_of_a_state_is_lost():
    xs = arrays(3)
    model = mlirc.compile(Counts(), (torch.from_numpy(xs[0]),), device="host")
    results = at_once(lambda i: [model(xs[i]), model(first=xs[i]), model.flat(first=xs[i])[0]])
    for x, found in zip(xs, results, strict=True):
        np.testing.assert_array_equal(found, [x * 2 + 1] * 3)
    np.testing.assert_array_equal(model.state["steps"], [3 * COUNT] * 3)

    def use(number: int) -> dict[str, np.ndarray]:
        kept = model.state.snapshot()
        model.state["steps"] = np.full(3, number, np.float32)
        model.bind(xs[number])
        model.launch()
        model.state.restore(kept) if number % 2 else model.state.reset("steps")
        return kept

    for kept in at_once(use):
        assert len(np.unique(kept["steps"])) == 1


def slow(function):
    """The kernel, which lets other threads come before it and after it."""

    def run(*addresses):
        time.sleep(0.001)
        function(*addresses)
        time.sleep(0.001)

    return run


@pytest.mark.parametrize("graph", [True, False])
def test_calls_of_one_model_on_a_gpu(graph):
    """Its sum goes through an arena that all calls share."""
    driver = FakeDriver({name: slow(function) for name, function in KERNELS.items()})
    model = load_text(embed(PTX, make_plan()), {"m.w": W}, driver=driver, graph=graph)
    xs = arrays(N)

    def use(number: int) -> list:
        return [model(xs[number]), model.start(xs[number]).result() if number % 2 else model(xs[number])]

    for x, results in zip(xs, at_once(use), strict=True):
        for found in results:
            for got, wanted in zip(found, expected(x), strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_models_that_share_are_called_in_turn():
    kernels = {name: slow(function) for name, function in KERNELS.items()}
    text, xs = embed(PTX, make_plan()), arrays(N)
    first = load_text(text, {"m.w": W}, driver=FakeDriver(kernels))
    second = load_text(text, {}, driver=FakeDriver(kernels), share=first)
    for x, found in zip(xs, at_once(lambda i: (first, second)[i % 2](xs[i])), strict=True):
        np.testing.assert_array_equal(found[0], expected(x)[0])


@pytest.mark.parametrize("load", [lambda: load_text(embed(PTX, make_plan()), {"m.w": W}, driver=FakeDriver(KERNELS)),
                                  lambda: mlirc.compile(small(), (torch.zeros(2, 7),), device="host")],
                         ids=["gpu", "host"])  # fmt: skip
def test_a_model_is_closed_between_calls(load):
    model = load()
    x = np.zeros(model.plan.asked[0].shape, np.float32)
    model(x)
    for found in at_once(lambda i: model.close() if i == COUNT // 2 else model(x)):
        assert not isinstance(found, BaseException) or "the model is closed: load it again" in str(found), found
    with pytest.raises(MlircError, match="closed"):
        model(x)


@pytest.mark.parametrize("options", [{"level": "tiles"}, {"device": "host"}], ids=["tiles", "host"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_of_torch_compile(options, dynamic):
    net, xs = small(), [torch.from_numpy(x) for x in arrays(4, 7)]
    xs = [x[: 2 + i % 3] for i, x in enumerate(xs)] if dynamic else xs
    model = torch.compile(net, backend="mlirc", dynamic=dynamic, options={"fallback": False, **options})
    with torch.no_grad():
        for x, y in zip(xs, at_once(lambda i: model(xs[i])), strict=True):
            assert isinstance(y, torch.Tensor), y
            torch.testing.assert_close(y, net(x), rtol=1e-4, atol=1e-5)


def test_torch_compile_and_compile_at_once():
    """Dynamo's lock and MLIR's are taken in one order."""
    nets, x = [small() for _ in range(COUNT)], torch.randn(2, 7)
    loaded = mlirc.compile(nets[0], (x,), device="host")

    def use(number: int) -> torch.Tensor:
        with torch.no_grad():
            if number % 3 == 0:
                return torch.compile(nets[number], backend="mlirc", options={"fallback": False, "level": "kernels"})(x)
        return mlirc.compile(nets[number], (x,), device="host")(x) if number % 3 == 1 else loaded(x)

    for number, y in enumerate(at_once(use)):
        torch.testing.assert_close(y, nets[number if number % 3 < 2 else 0](x), rtol=1e-4, atol=1e-5)


@kernel
def shifted(x: "f32[M,N]") -> "f32[M,N]":  # noqa: F722, F821, UP037
    return x * 3 + 1


def test_a_kernel_of_ones_own():
    xs = [torch.from_numpy(x)[: 1 + i % 2] for i, x in enumerate(arrays(2, 5))]
    for x, y in zip(xs, at_once(lambda i: shifted(xs[i])), strict=True):
        torch.testing.assert_close(y, x * 3 + 1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loaded_model_is_not_copied(copied):
    model = mlirc.compile(small(), (torch.zeros(2, 7),), device="host")
    on_gpu = load_text(embed(PTX, make_plan()), {"m.w": W}, driver=FakeDriver(KERNELS))
    for loaded in (model, on_gpu):
        with pytest.raises(MlircError, match=r"neither copied nor pickled: load its file again \(mlirc.load\)"):
            copied(loaded)
