"""What a loaded model keeps from call to call, and inputs that it changes, on a fake GPU."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from mlirc.errors import MlircError
from mlirc.runtime import load_text
from mlirc.runtime.plan_file import embed
from support.devices.fake_gpu import CudaArray, FakeDriver, LateDriver
from support.plans.stateful import stateful_plan, sums
from support.plans.tiny import KERNELS, PTX, N, W, randn

TEXT = embed(PTX, stateful_plan())


def loaded(graph: bool = True, weights: dict | None = None):
    return load_text(TEXT, weights or {"m.w": W.copy()}, driver=FakeDriver(KERNELS), graph=graph)


@pytest.mark.parametrize("graph", [True, False])
def test_calls_change_the_state_and_the_input(graph):
    x = randn()
    right = sums(x, 3)
    with loaded(graph) as model:
        assert list(model.state) == ["m.w"] and np.array_equal(np.asarray(model.state["m.w"]), W)
        for want in right:
            given = x.copy()
            np.testing.assert_array_equal(model(given), want * 2)
            np.testing.assert_array_equal(given, want)
            np.testing.assert_array_equal(model.state["m.w"].numpy(), want.reshape(1, N))


def test_a_state_is_set_and_reset():
    x = randn(1)
    with loaded() as model:
        model(x.copy())
        model.state["m.w"] = np.ones((1, N), np.float32)
        np.testing.assert_array_equal(model(x.copy()), (x + 1) * 2)
        model.state.reset("m.w")
        np.testing.assert_array_equal(model(x.copy()), (x + W[0]) * 2)
        model.state.reset()
        kept = model.state.snapshot()
        model(x.copy())
        model.state.restore(kept)
        np.testing.assert_array_equal(model(x.copy()), (x + W[0]) * 2)


def test_what_is_no_state_is_named():
    with loaded() as model:
        with pytest.raises(MlircError, match="no state is called 'k': the model has m.w"):
            model.state["k"]
        with pytest.raises(MlircError, match="no state is called 'x'"):
            model.state.reset("x")
        with pytest.raises(MlircError, match=r"state 'm.w': got f32\[37\], but the model was compiled for f32\[1,37\]"):
            model.state["m.w"] = randn()
        np.testing.assert_array_equal(np.asarray(model.state["m.w"]), W)


def test_a_state_is_the_models_own():
    """Neither the caller's tensor, though it lies on the GPU, nor that of another model."""
    given = CudaArray(W)
    with loaded(weights={"m.w": given}) as one, loaded(weights={"m.w": given}) as other:
        one(randn())
        given.array[...] = 7
        one.state.reset()
        assert np.array_equal(np.asarray(one.state["m.w"]), W)
        assert np.array_equal(np.asarray(other.state["m.w"]), W)


def test_the_model_goes_with_its_last_reference():
    gc.disable()
    try:
        model = loaded()
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("skew", [0, 4])
def test_an_input_on_the_gpu_is_changed_where_it_is(skew):
    x = randn(2)
    with loaded() as model:
        given = CudaArray(x, skew)
        model(given)
        np.testing.assert_array_equal(given.array, x + W[0])


def test_an_input_on_the_host_is_changed_whatever_its_strides_and_library():
    x = randn(3)
    wide = np.stack([x, x], 1)
    with loaded() as model:
        model(wide[:, 1])
        np.testing.assert_array_equal(wide, np.stack([x, x + W[0]], 1))
        model.state.reset()
        tensor = torch.from_numpy(x.copy())
        model(tensor)
        np.testing.assert_array_equal(tensor.numpy(), x + W[0])


def test_launches_change_it_in_place():
    x = CudaArray(randn(4))
    want = x.array.copy() + W[0]
    with loaded() as model:
        model.bind(x)
        model.launch()
        np.testing.assert_array_equal(x.array, want)
        model.launch()
        np.testing.assert_array_equal(x.array, want + want)
        np.testing.assert_array_equal(model.outputs[0].numpy(), 4 * want)


def test_what_may_not_be_changed():
    x = randn()
    x.flags.writeable = False
    with loaded() as model:
        with pytest.raises(MlircError, match="input 'x': is read-only, but the model writes into it: give a copy"):
            model(x)
        state = model.state["m.w"]
        with pytest.raises(MlircError, match="input 'x' shares memory with state 'm.w', and the model writes into"):
            model(Shared(state.pointer))


class Shared:
    """N floats at an address of the GPU."""

    def __init__(self, pointer: int):
        self.__cuda_array_interface__ = {
            "shape": (N,), "typestr": "<f4", "data": (pointer, False), "version": 3, "strides": None
        }  # fmt: skip


def test_models_share_what_they_write():
    """The second one has no memory of its own for it, and closes first."""
    x = randn()
    with loaded() as one:
        other = load_text(TEXT, {}, driver=FakeDriver(KERNELS), share=one)
        want = sums(x, 2)
        np.testing.assert_array_equal(one(x.copy()), want[0] * 2)
        given = x.copy()
        other(given)
        assert other.state["m.w"].pointer == one.state["m.w"].pointer
        np.testing.assert_array_equal(np.asarray(one.state["m.w"]), np.asarray(other.state["m.w"]))
        assert not np.array_equal(np.asarray(one.state["m.w"]), W)
        other.state.reset()
        np.testing.assert_array_equal(np.asarray(one.state["m.w"]), W)
        with pytest.raises(MlircError, match="1 other models share its memory: close those first"):
            one.close()
        other.close()


def test_what_does_not_fit_is_not_shared():
    with loaded() as one:
        one._places["m.w"] = one._places["m.w"]._replace(spec=one.plan.inputs[0])
        with pytest.raises(
            MlircError, match=r"state 'm.w' \(f32\[1,37\]\) is inout f32\[37\] in the model to share with"
        ):
            load_text(TEXT, {}, driver=FakeDriver(KERNELS), share=one)


@pytest.mark.parametrize("graph", [True, False])
def test_started_runs_follow_each_other_and_are_waited_for_one_by_one(graph):
    x, fresh = CudaArray(randn(5)), randn(6).reshape(1, N)
    first = x.array + W[0]
    driver = LateDriver(KERNELS)
    with load_text(TEXT, {"m.w": W.copy()}, driver=driver, graph=graph) as model:
        model.bind(x)
        one, two = model.start(), model.start()
        written = fresh.copy()
        model.write_state("m.w", written)
        written[...] = 0  # the caller's again
        three = model.start()
        np.testing.assert_array_equal(one.result(), first * 2)
        assert driver.queue, "the runs behind it are not waited for"
        np.testing.assert_array_equal(three.result(), (first + first + fresh[0]) * 2)
        assert not driver.queue
        for _ in range(2):
            np.testing.assert_array_equal(two.result(), (first + first) * 2)
        four = model.start()
        np.testing.assert_array_equal(np.asarray(model.state["m.w"])[0] * 2, four.result())
        with pytest.raises(MlircError, match=r"state 'm.w': got f32\[37\], but the model was compiled for f32\[1,37\]"):
            model.write_state("m.w", randn())
    assert not driver.memory and not driver.events


def test_models_that_share_states_run_one_after_the_other():
    drivers = FakeDriver(KERNELS), FakeDriver(KERNELS)
    model = load_text(TEXT, {"m.w": W.copy()}, driver=drivers[0])
    other = load_text(TEXT, {}, driver=drivers[1], share=model)
    model(randn()), other(randn())
    other.start().result()
    assert {stream for d in drivers for _, stream in d.launched} == drivers[0].streams and not drivers[1].streams
    other.close(), model.close()
