"""The generic path: launches run on the CPU give what the kernel's tensors mean; PTX assembles."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.backend.ptx import check_ptxas, compile_kernel, find_ptxas
from mlirc.device.launch import DeviceKernel
from mlirc.errors import MlircError
from mlirc.host.jit import HostFunction
from mlirc.mlir import ir
from mlirc.passes import get_pass
from mlirc.targets import TARGETS, get_target
from support.devices.emulate import run_launches
from support.kernels.loops import KERNELS, public, random_inputs


@pytest.mark.parametrize("name", KERNELS)
def test_launches_compute_what_the_tensors_mean(name):
    function = HostFunction(mlir.parse(public(KERNELS[name])), "k")
    inputs = random_inputs(function, name)
    want = function(*inputs)
    module = mlir.parse(KERNELS[name])
    get_pass("mlirc-loops")(module)
    got = [np.full(s.shape, 77).astype(s.dtype) for s in function.outputs]
    copies = [a.copy() for a in inputs]
    run_launches(module, "k", inputs, got)
    for a, b in itertools.chain(zip(got, want, strict=True), zip(inputs, copies, strict=True)):
        if a.dtype in (np.float16, ml_dtypes.bfloat16):
            a, b = a.astype(np.float32), b.astype(np.float32)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "table"])  # the host device takes no globals
def test_launches_break_no_rule(name):
    """Blocks one after the other hide that one needs what another one makes: the host device sees it."""
    function = HostFunction(mlir.parse(public(KERNELS[name])), "k")
    inputs = random_inputs(function, name)
    module = mlir.parse(KERNELS[name])
    get_pass("mlirc-loops")(module)
    got = [np.full(s.shape, 77).astype(s.dtype) for s in function.outputs]
    report = DeviceKernel(module, inputs=len(inputs)).run([*inputs, *got])
    assert report.ok, report
    for a, b in zip(got, function(*inputs), strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_ptx_assembles(name):
    if find_ptxas() is None:
        pytest.skip("no ptxas")
    for target in (get_target("sm_80"), get_target("sm_100a")):
        module = mlir.parse(KERNELS[name])
        get_pass("mlirc-loops")(module)
        check_ptxas(compile_kernel(module, target).ptx, target)


def test_attention_of_torch_mlir_is_softmax_of_scaled_scores():
    q, k, v, m = random_inputs(HostFunction(mlir.parse(public(KERNELS["torch_attention"])), "k"), "")
    (got,) = HostFunction(mlir.parse(public(KERNELS["torch_attention"])), "k")(q, k, v, m)
    scores = q.astype(np.float64) @ k.swapaxes(1, 2) / np.sqrt(8) + m[:, 0]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(got, (weights / weights.sum(-1, keepdims=True)) @ v, rtol=1e-5, atol=1e-6)


def test_every_target_is_accepted():
    if find_ptxas() is None:
        pytest.skip("no ptxas")
    for target in TARGETS.values():
        module = mlir.parse(KERNELS["conv2d"])
        get_pass("mlirc-loops")(module)
        check_ptxas(compile_kernel(module, target).ptx, target)


def test_fill_convolution_and_epilogue_are_one_launch():
    module = mlir.parse(KERNELS["conv2d"])
    get_pass("mlirc-loops")(module)
    names = [op.operation.name for op in module.body.operations[1].regions[0].blocks[0].operations]
    assert names.count("gpu.launch_func") == 2  # the pad, and the rest


def test_sorting_has_a_thread_per_element():
    module = mlir.parse(KERNELS["sort"])
    get_pass("mlirc-loops")(module)
    kernel = compile_kernel(module, get_target("sm_80"))
    assert all(launch.grid[0] * launch.block[0] >= 24 for launch in kernel.launches)


@pytest.mark.parametrize("descending", [False, True])
def test_sorting_is_stable(descending):
    text = KERNELS["sort"].replace("f32>", "i32>").replace("= false", f"= {str(descending).lower()}")
    module = mlir.parse(text)
    get_pass("mlirc-loops")(module)
    x = np.random.default_rng(1).integers(0, 3, (4, 9)).astype(np.int32)
    got = [np.zeros((4, 6), np.int32), np.zeros((4, 6), np.int64)]
    run_launches(module, "k", [x], got)
    order = np.argsort(-x if descending else x, axis=1, kind="stable")[:, :6]
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, order, 1))
    np.testing.assert_array_equal(got[1], order)


def test_sorting_takes_nan_for_the_largest():
    module = mlir.parse(KERNELS["sort"].replace("= false", "= true"))
    get_pass("mlirc-loops")(module)
    x = np.array([[3, np.nan, 1, 2, np.nan, 0, 5, 4, np.nan]] * 4, np.float32)
    got = [np.full((4, 6), 77, np.float32), np.full((4, 6), 77)]
    run_launches(module, "k", [x], got)
    np.testing.assert_array_equal(got[1], [[1, 4, 8, 6, 7, 0]] * 4)


def test_no_copies_of_the_result():
    module = mlir.parse(KERNELS["column_sum"])
    get_pass("mlirc-loops")(module)
    host = str(module.body.operations[1])
    assert "memref.alloc" not in host and host.count("gpu.launch_func") == 1


def test_accumulation_stays_in_a_register():
    module = mlir.parse(KERNELS["column_sum"])
    get_pass("mlirc-loops")(module)
    ptx = compile_kernel(module, get_target("sm_80")).ptx
    assert ptx.count("st.global") == 1


def test_stages_stop_early():
    for stage, mark in (("buffers", "linalg.generic"), ("parallel", "scf.parallel")):
        module = mlir.parse(KERNELS["elementwise"])
        get_pass("mlirc-loops")(module, stage=stage)
        assert mark in str(module) and "gpu." not in str(module)


def test_threads_out_of_range_are_refused():
    module = mlir.parse(KERNELS["elementwise"].replace("mlirc.threads = 64", "mlirc.threads = 2048"))
    with pytest.raises(MlircError, match="2048"):
        get_pass("mlirc-loops")(module)


def test_functions_that_do_not_ask_are_refused():
    module = mlir.parse(KERNELS["elementwise"].replace('mlirc.lowering = "loops", ', ""))
    with pytest.raises(MlircError, match="mlirc.lowering"):
        get_pass("mlirc-loops")(module)


def test_the_generic_script_takes_any_kernel():
    from mlirc.schedule.registry import Schedules

    text = KERNELS["scan"].replace('mlirc.lowering = "loops", mlirc.threads = 64 : i32', 'mlirc.kind = "generic"')
    module, record = Schedules(["generic:threads=96"]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
    assert record.script == "generic" and "mlirc.threads = 96 : i32" in str(module)
    get_pass("mlirc-loops")(module, target="sm_90a")
    assert isinstance(module, ir.Module) and "gpu.launch_func" in str(module)
