"""FP32 products made of three TF32 products (`mma=tf32x3`): as exact as FP32's own, and with its infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import to_gpu
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule
from support.kernels.fp32 import assert_as_exact_as_fp32_sums, assert_not_finite_where_fp32_is_not, spoiled
from support.kernels.payloads import matmul

TMA = "mma=tf32x3,block_m=32,block_n=32,block_k=32,warps_m=1,warps_n=2"


def product(m: int, n: int, k: int, transposed: bool = False) -> str:
    """x [m, k] times w [k, n] (or [n, k], `transposed`), as a kernel."""
    return matmul(m, n, k, transposed=transposed, epilogue=False)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "shape, knobs",
    [
        ((40, 72, 136), TMA + ",stages=3"),  # tensor copies, over every edge
        ((40, 72, 136), TMA + ",copy=cp_async,stages=2"),
        ((33, 61, 67), TMA + ",copy=cp_async,stages=1"),  # rows that cannot be copied by 16 bytes
        ((64, 64, 160), "mma=tf32x3,block_m=64,block_n=64,block_k=64,warps_m=2,warps_n=1,blocks=1"),
        # warps that share out k, over an edge of it, tile after tile
        ((33, 72, 300), "mma=tf32x3,block_m=32,block_n=32,block_k=128,warps_m=2,warps_n=1,warps_k=4,blocks=2"),
        ((17, 61, 67), "mma=tf32x3,block_m=32,block_n=32,block_k=32,warps_m=1,warps_n=1,warps_k=3"),
        ((1, 1, 1), "mma=tf32x3"),
    ],
)
def test_every_way_of_copying(shape, knobs, transposed):
    check_schedule(product(*shape, transposed), (f"matmul:{knobs}",), tolerance=1e-6)


@pytest.mark.parametrize("k, scale", [(64, 1.0), (64, 1e-3), (1024, 1e3)])
def test_error_is_no_larger_than_that_of_fp32_sums(k, scale):
    assert_as_exact_as_fp32_sums(32, 32, k, scale, f"matmul:{TMA}")


@pytest.mark.parametrize("knobs", [TMA + ",stages=2", TMA.replace("block_k=32", "block_k=64") + ",warps_k=2"])
def test_what_is_not_finite_is_as_in_fp32(knobs):
    """Infinity times a rounded factor's rest has any sign; factors that round up to infinity are finite."""
    x, w = spoiled(48)
    want = assert_not_finite_where_fp32_is_not(x, w, f"matmul:{knobs}", 1e-6)
    assert np.isfinite(want[18]).sum() > 60


@pytest.mark.parametrize(
    "shape, mma",
    [
        ((33, 64, 256), "fma"),
        ((640, 640, 128), "tf32x3"),
        ((640, 640, 258), "tf32x3"),
        ((640, 640, 264), "wgmma_tf32x3"),
        ((31, 256, 2048), "wgmma_tf32x3"),
        ((1000, 60, 256), "fma"),
        ((2, 8200, 260), "wgmma_tf32x3"),
    ],
)
def test_the_default_is_the_faster_one(shape, mma):
    module = mlir.parse(product(*shape))
    tiles, record = Schedules([]).schedule_kernel(module, get_target("sm_90a"))
    assert record.knobs["mma"] == mma
    to_gpu(tiles, "matmul_0", get_target("sm_90a"))


def test_other_operands_are_refused():
    text = product(32, 32, 64).replace("f32", "f64")
    with pytest.raises(MlircError, match="it takes f32 operands and sums, not operands of f64"):
        check_schedule(text, ("matmul:mma=tf32x3",))
