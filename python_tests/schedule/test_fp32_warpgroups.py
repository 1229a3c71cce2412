"""FP32 products made of three TF32 products of warpgroups (`mma=wgmma_tf32x3`): every layout, edge and way of copying, as
exact as FP32's own, and with its infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import to_gpu
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule
from support.kernels.fp32 import (
    HELD_A,
    TILE,
    WAYS_OF_COPYING,
    assert_as_exact_as_fp32_sums,
    assert_not_finite_where_fp32_is_not,
    computed,
    spoiled,
)
from support.kernels.payloads import matmul

MMA = "matmul:mma=wgmma_tf32x3"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "shape, knobs",
    [
        *WAYS_OF_COPYING,
        ((9, 68, 300), "block_m=16,block_n=64,warps_m=1,warps_n=4,warps_k=2,block_k=64,stages=2"),
    ],
)
def test_every_way_of_copying(shape, knobs, transposed):
    tiles, _ = check_schedule(matmul(*shape, transposed=transposed), (f"{MMA},{knobs}",), tolerance=1e-6)
    assert 'mlirc.mma = "wgmma_tf32x3"' in tiles


def test_what_runs_along_k_is_split():
    """The first operand comes through registers where its rows run along m."""
    check_schedule(matmul(68, 13, 168, left=True), (f"{MMA},{HELD_A},stages=2",), tolerance=1e-6)
    check_schedule(matmul(68, 13, 168), (f"{MMA},{HELD_A},stages=2",), tolerance=1e-6)
    with pytest.raises(MlircError, match="rows of one operand must run along k"):
        check_schedule(matmul(64, 64, 168, left=True, transposed=False), (f"{MMA},{TILE}",))


def test_batches_prologues_and_two_products_in_one_loop():
    check_schedule(matmul(13, 68, 136, batch=3), (f"{MMA},{TILE}",), tolerance=1e-6)
    check_schedule(matmul(13, 68, 136, gates=True), (f"{MMA},{TILE},stages=2",), tolerance=1e-6)
    # what computes the split operand stores it, and its rests
    knobs = f"{MMA},{TILE},copy=cp_async,stages=3"
    check_schedule(matmul(13, 68, 136, prologue=True), (knobs,), tolerance=1e-6)


@pytest.mark.parametrize("k, scale", [(160, 1.0), (160, 1e-3), (1024, 1e3)])
def test_error_is_no_larger_than_that_of_fp32_sums(k, scale):
    assert_as_exact_as_fp32_sums(16, 64, k, scale, f"{MMA},{TILE}")


def test_numbers_of_one_sign_do_not_drift():
    """What is cut off, and the products left out, do not add up."""
    rng = np.random.default_rng(5)
    x, w = rng.random((16, 1024), np.float32) + 1, rng.random((1024, 64), np.float32) + 1
    want = x.astype(np.float64) @ w.astype(np.float64)
    assert abs(computed(x, w, f"{MMA},{TILE}") / want - 1).max() < 5e-7


@pytest.mark.parametrize("knobs", [TILE + ",stages=2", TILE.replace("block_k=32", "block_k=64") + ",warps_k=2"])
def test_what_is_not_finite_is_as_in_fp32(knobs):
    """Infinity leaves no rest; factors that round up to infinity are finite."""
    x, w = spoiled(32)
    x[:, 90] *= np.float32(1e-3)
    w[90, 20] = np.finfo(np.float32).max
    assert_not_finite_where_fp32_is_not(x, w, f"{MMA},{knobs}", 1e-6)


@pytest.mark.parametrize(
    "text",
    [
        matmul(9, 260, 1804), matmul(260, 9, 1804, left=True), matmul(2, 66, 32772, batch=3), matmul(700, 700, 3000, gates=True),
        matmul(129, 12, 10000, transposed=False), matmul(1000, 1000, 260, transposed=False, prologue=True),
    ],
)  # fmt: skip
def test_whatever_is_chosen_compiles(text):
    target = get_target("sm_90a")
    tiles, _ = Schedules([]).schedule_kernel(mlir.parse(text), target)
    to_gpu(tiles, "matmul_0", target)


@pytest.mark.parametrize(
    ("text", "knobs", "says"),
    [
        (matmul(64, 64, 256), TILE.replace("warps_n=4", "warps_n=2"), "multiples of 4"),
        (matmul(64, 64, 256), f"{TILE},copy=cp_async,stages=2", "stages >= 3"),
        (matmul(64, 1024, 256, "bf16"), TILE, "it takes f32 operands and sums"),
        (matmul(512, 64, 256), "block_m=512,block_n=64,warps_m=1,warps_n=4,block_k=32", "256 columns"),
    ],
)
def test_refusals_say_what_to_do(text, knobs, says):
    with pytest.raises(MlircError, match=says):
        check_schedule(text, (f"{MMA},{knobs}",))


def test_older_targets_are_refused():
    module = mlir.parse(matmul(64, 64, 256))
    with pytest.raises(MlircError, match="sm_80 has no wgmma_tf32x3"):
        Schedules([f"{MMA},{TILE}"]).schedule_kernel(module, get_target("sm_80"))
