"""What a plan computes of weights alone: once at load where they stay as they are, else in every run."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mlirc.runtime import load, load_text
from mlirc.runtime.plan import KernelLaunch, Plan
from mlirc.runtime.plan_file import embed
from support.devices.fake_gpu import CudaArray, FakeDriver
from support.plans.tiny import KERNELS, PTX, N, W, make_plan, randn, ref, write_weights

RUN = ["add", "copy"]


def doubled(kind: str = "weight", again: bool = False) -> Plan:
    """A plan of y = x + 2 w (`again`: y = 2 w + w, so that a run reads w, too) and z = x, of which 2 w is computed at
    load."""
    plan = make_plan(kind=kind)
    first = KernelLaunch("twice", (1, 1, 1), (64, 1, 1), 0, (ref("weight"), ref("arena")))
    second = KernelLaunch(
        "add", (1, 1, 1), (64, 1, 1), 0, (ref("weight" if again else "input"), ref("arena"), ref("output"))
    )
    plan.steps, plan.setup, plan.arena_size = [first, second, plan.steps[2]], 1, 256
    return plan


@pytest.fixture
def driver():
    return FakeDriver(KERNELS)


def symbols(driver: FakeDriver) -> list[str]:
    return [symbol for symbol, _ in driver.launched]


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("kind", ["weight", "constant"])
def test_setup_steps_of_copied_weights_run_once(driver, kind, graph):
    model = load_text(embed(PTX, doubled(kind)), {"m.w": W}, driver=driver, graph=graph)
    for seed in range(3):
        x = randn(seed)
        np.testing.assert_array_equal(model(x)[0], (x + W[0] * 2).reshape(N, 1))
    assert symbols(driver) == ["twice"] + RUN * 3
    assert [len(g.calls) for g in driver.graphs] == [2] * graph and len(model.steps) == 2


@pytest.mark.parametrize(("plan", "stays"), [(make_plan(), True), (doubled(), False), (doubled(again=True), True)])
def test_a_weight_that_no_run_reads_does_not_stay_on_the_device(driver, plan, stays):
    with load_text(embed(PTX, plan), {"m.w": W}, driver=driver) as model:
        assert len(driver.memory) == 1 + stays and ("m.w" in model._places) == stays  # the arena, and maybe the weight
        x = randn()
        first = model(x)[0]
        np.testing.assert_array_equal(model(x)[0], first)
    assert not driver.memory and driver.closed


@pytest.mark.parametrize("graph", [True, False])
def test_weights_that_are_used_in_place_may_change(driver, graph):
    w = CudaArray(W)
    model = load_text(embed(PTX, doubled()), {"m.w": w}, driver=driver, graph=graph)
    for seed in range(3):
        w.array[...] = W + seed
        np.testing.assert_array_equal(model(randn())[0][:, 0], randn() + (W[0] + seed) * 2)
    assert symbols(driver) == ["twice", *RUN] * 3 and len(model.steps) == 3
    model.bind(randn())
    model.launch()
    model.launch_step(0)
    assert symbols(driver)[9:] == ["twice", *RUN, "twice"]


def test_frozen_weights_are_computed_with_once(driver):
    w = CudaArray(W)
    model = load_text(embed(PTX, doubled()), {"m.w": w}, driver=driver, frozen=True)
    w.array[...] = 0
    for _ in range(2):
        np.testing.assert_array_equal(model(randn())[0][:, 0], randn() + W[0] * 2)
    assert symbols(driver) == ["twice"] + RUN * 2


def test_constants_do_not_change_wherever_they_lie(driver):
    model = load_text(embed(PTX, doubled("constant")), {"m.w": CudaArray(W)}, driver=driver)
    model(randn())
    assert symbols(driver) == ["twice", *RUN]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_model_that_shares_computes_for_itself(driver, live, again):
    given = {"m.w": CudaArray(W) if live else W}
    other = FakeDriver(KERNELS)
    with load_text(embed(PTX, doubled(again=again)), given, driver=driver) as one:
        with load_text(embed(PTX, doubled()), {"m.w": W + 1}, driver=other, share=one) as two:
            # Where the first one has not kept the weight, the second one has what it was given.
            w = W[0] if live or again else W[0] + 1
            np.testing.assert_array_equal(two(randn())[0][:, 0], randn() + w * 2)
            assert symbols(other) == ["twice", *RUN]
            if live:
                given["m.w"].array[...] = 5
                w = 5
            np.testing.assert_array_equal(two(randn())[0][:, 0], randn() + w * 2)
            assert symbols(other)[3:] == ["twice", *RUN][not live :]
    assert not driver.memory and not other.memory


def test_two_models_of_one_file_have_weights_of_their_own(tmp_path):
    write_weights(tmp_path / "m.safetensors", {"m.w": W})
    write_weights(tmp_path / "other.safetensors", {"m.w": W * 3})
    (tmp_path / "m.ptx").write_text(embed(PTX, doubled()))
    drivers = [FakeDriver(KERNELS), FakeDriver(KERNELS)]
    one = load(tmp_path / "m.ptx", driver=drivers[0])
    two = load(tmp_path / "m.ptx", weights=tmp_path / "other.safetensors", driver=drivers[1])
    wrong, barrier = [], threading.Barrier(4)

    def call(model, factor):
        barrier.wait()
        for seed in range(20):
            x = randn(seed)
            if not np.array_equal(model(x)[0][:, 0], x + W[0] * factor):
                wrong.append((factor, seed))

    threads = [threading.Thread(target=call, args=a) for a in ((one, 2), (two, 6)) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and [symbols(d).count("twice") for d in drivers] == [1, 1]
