"""Runs that are started with inputs of their own, on a fake GPU that does nothing before somebody waits for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mlirc.errors import MlircError
from mlirc.runtime import load_text
from mlirc.runtime.plan import TensorSpec
from mlirc.runtime.plan_file import embed
from support.devices.fake_gpu import CudaArray, LateDriver
from support.plans.stateful import stateful_plan
from support.plans.tiny import KERNELS, PTX, N, W, make_plan, randn, ref


def sum_of_inputs() -> str:
    """A model of y = (a + b) * 2, z = a."""
    plan = make_plan()
    first, *others = plan.steps
    a, b = TensorSpec("a", "f32", (N,), "input"), TensorSpec("b", "f32", (N,), "input")
    summed = replace(first, args=(ref("input"), ref("input", index=1), ref("arena", 256)))
    return embed(PTX, replace(plan, inputs=[a, b], weights=[], steps=[summed, *others]))


@pytest.fixture
def driver():
    return LateDriver(KERNELS)


@pytest.mark.parametrize("graph", [True, False])
def test_each_run_has_its_own_inputs_whatever_becomes_of_the_callers(driver, graph):
    with load_text(sum_of_inputs(), {}, driver=driver, graph=graph) as model:
        pairs = [(randn(2 * i), randn(2 * i + 1)) for i in range(5)]
        runs = []
        for a, b in pairs:
            given = a.copy(), torch.from_numpy(b.copy())
            runs.append(model.start(given[0], b=given[1]))
            given[0][...] = given[1][...] = 0  # the caller's again
        assert driver.queue and driver.copies_in == len(pairs), "one copy for all inputs of a run"
        for i in (0, 1, 3, 2, 4):
            a, b = pairs[i]
            y, z = runs[i].result()
            np.testing.assert_array_equal(y.reshape(N), (a + b) * 2)
            np.testing.assert_array_equal(z, a)
        again = model.start(*pairs[1])  # in memory of a run that was read
        np.testing.assert_array_equal(again.result()[1], pairs[1][0])
        np.testing.assert_array_equal(model.start().result()[1], pairs[1][0])
        np.testing.assert_array_equal(model(*pairs[2])[1], pairs[2][0])
    assert not driver.memory and not driver.events


def test_inputs_on_the_gpu_are_used_in_place(driver):
    with load_text(sum_of_inputs(), {}, driver=driver) as model:
        a, b = CudaArray(randn(1)), randn(2)
        run = model.start(a, b)
        np.testing.assert_array_equal(run.result()[0].reshape(N), (a.array + b) * 2)
        model.start(a, b).result()
        assert driver.graphs[0].updates == 0, "the addresses are those of the run before"
        model.start(b, a).result()
        assert driver.graphs[0].updates > 0


def test_what_cannot_be_started(driver):
    with load_text(sum_of_inputs(), {}, driver=driver) as model:
        with pytest.raises(MlircError, match="start: the inputs are not bound yet"):
            model.start()
        with pytest.raises(MlircError, match="input 'b' .* is missing"):
            model.start(randn())
        y, _ = model.start(randn(1), randn(2)).result()
        np.testing.assert_array_equal(y.reshape(N), (randn(1) + randn(2)) * 2)
    with load_text(embed(PTX, stateful_plan()), {"m.w": W.copy()}, driver=LateDriver(KERNELS)) as model:
        with pytest.raises(MlircError, match="start: the model changes input 'x', which lies on the host"):
            model.start(randn())
        x = CudaArray(randn(3))
        run = model.start(x)
        np.testing.assert_array_equal(run.result(), (randn(3) + W[0]) * 2)
        np.testing.assert_array_equal(x.array, randn(3) + W[0])
