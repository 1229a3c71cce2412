"""FP32 products made of one TF32 product of warpgroups (`mma=wgmma_tf32`): every layout, edge and way of copying, its
error beside that of rounding both factors, and what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlirc
from mlirc import mlir
from mlirc.device.tensor_cores import nearest_tf32
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule
from support.kernels.fp32 import (
    HELD_A,
    TILE,
    WAYS_OF_COPYING,
    assert_not_finite_where_fp32_is_not,
    computed,
    factors,
    spoiled,
)
from support.kernels.payloads import matmul
from support.models.together import Calls

MMA = "matmul:mma=wgmma_tf32"
ERROR = 2e-3  # of a sum of rounded products, relative to the largest


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "shape, knobs",
    [
        *WAYS_OF_COPYING,
        ((9, 68, 300), "block_m=16,block_n=64,warps_m=1,warps_n=4,block_k=96,stages=2"),
    ],
)
def test_every_way_of_copying(shape, knobs, transposed):
    tiles, _ = check_schedule(matmul(*shape, transposed=transposed), (f"{MMA},{knobs}",), tolerance=ERROR)
    assert 'mlirc.mma = "wgmma_tf32"' in tiles


def test_what_runs_along_k_is_rounded_where_it_lies():
    """The first operand comes through registers where its rows run along m."""
    check_schedule(matmul(68, 13, 168, left=True), (f"{MMA},{HELD_A},stages=2",), tolerance=ERROR)
    check_schedule(matmul(68, 13, 168), (f"{MMA},{HELD_A},stages=2",), tolerance=ERROR)
    with pytest.raises(MlircError, match="wgmma_tf32: rows of one operand must run along k"):
        check_schedule(matmul(64, 64, 168, left=True, transposed=False), (f"{MMA},{TILE}",))
    with pytest.raises(MlircError, match="wgmma_tf32 takes warps_n in multiples of 4, not 2"):
        check_schedule(matmul(64, 64, 168, transposed=False), (f"{MMA},block_m=16,block_n=64,warps_m=2,warps_n=2",))


def test_batches_prologues_and_two_products_in_one_loop():
    check_schedule(matmul(13, 68, 136, batch=3), (f"{MMA},{TILE}",), tolerance=ERROR)
    check_schedule(matmul(13, 68, 136, gates=True), (f"{MMA},{TILE},stages=2",), tolerance=ERROR)
    check_schedule(matmul(13, 68, 136, prologue=True), (f"{MMA},{TILE},copy=cp_async,stages=3",), tolerance=ERROR)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e15])
@pytest.mark.parametrize("copy", ["tma", "cp_async"])
def test_both_factors_are_rounded_to_nearest(copy, scale):
    """Of normal numbers the error is 3e-4, all of it that of rounded factors: cut ones would have twice as much."""
    x, w = factors(16, 64, 2048, seed=3)
    x *= np.float32(scale)
    found = computed(x, w, f"{MMA},{TILE},copy={copy},stages=3").astype(np.float64)
    want = x.astype(np.float64) @ w.astype(np.float64)
    rounded = nearest_tf32(x).astype(np.float64) @ nearest_tf32(w).astype(np.float64)
    assert 2e-4 < np.linalg.norm(found - want) / np.linalg.norm(want) < 4e-4
    assert np.linalg.norm(found - rounded) / np.linalg.norm(want) < 2e-5


def test_numbers_of_one_sign_do_not_drift():
    """Cut factors would lose 7e-4 of every sum."""
    rng = np.random.default_rng(5)
    x, w = rng.random((16, 1024), np.float32) + 1, rng.random((1024, 64), np.float32) + 1
    want = x.astype(np.float64) @ w.astype(np.float64)
    assert abs((computed(x, w, f"{MMA},{TILE}") / want - 1).mean()) < 2e-5


@pytest.mark.parametrize("knobs", [TILE + ",stages=2", TILE + ",copy=cp_async,stages=3"])
def test_what_is_not_finite_stays_so(knobs):
    """Infinities, NaN of any bits, and factors that round up to infinity."""
    x, w = spoiled(32)
    x[18, 65] = 1  # the largest number, which TF32 makes infinite
    x[12, 0] = np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0]
    assert_not_finite_where_fp32_is_not(x, w, f"{MMA},{knobs}", ERROR)


@pytest.mark.parametrize(
    "fp32, shape, target, wanted",
    [
        ("tf32", (128, 128, 512), "sm_90a", "wgmma_tf32"),
        ("tf32", (31, 256, 2048), "sm_90a", "wgmma_tf32"),
        ("tf32", (37, 41, 43), "sm_90a", "tf32"),
        ("tf32", (128, 128, 512), "sm_100a", "tf32"),
        ("tf32x3", (128, 128, 512), "sm_90a", "wgmma_tf32x3"),
    ],
)
def test_what_fp32_asks_for(fp32, shape, target, wanted):
    module = mlir.parse(matmul(*shape))
    for op in module.body.operations:
        op.attributes["mlirc.fp32"] = mlir.ir.StringAttr.get(fp32, module.context)
    tiles, _ = Schedules([]).schedule_kernel(module, get_target(target))
    assert f'mlirc.mma = "{wanted}"' in str(tiles)


def test_other_gpus_have_none():
    with pytest.raises(MlircError, match="sm_80 has no wgmma_tf32"):
        Schedules([f"{MMA},{TILE}"]).schedule_kernel(mlir.parse(matmul(16, 64, 128)), get_target("sm_80"))


def test_the_ptx_gives_the_same(tmp_path):
    x, w = (torch.from_numpy(a) for a in factors(80, 72, 296, seed=7))
    job = Compilation("model", get_target("sm_90a"), (MMA,), helpers=0, fp32="tf32")
    job.import_module(Calls(torch.matmul), (x, w), {})
    job.lower("ptx")
    job.write(tmp_path / "model.ptx")
    found = []
    for execute in (False, True):
        with mlirc.load(tmp_path / "model.ptx", device="host") as model:
            model.match, model.execute_ptx = not execute, execute
            found.append(torch.as_tensor(model(x, w)))
            assert not execute or "PTX executed in 1 of 1 calls" in model.summary(), model.summary()
    assert torch.equal(*found)
