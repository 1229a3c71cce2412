"""FP32 products made of three TF32 products (`mma=tf32x3`): as exact as FP32's own, and with its infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import to_gpu
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule, function_name, run_tiles

TMA = "mma=tf32x3,block_m=32,block_n=32,block_k=32,warps_m=1,warps_n=2"


def product(m: int, n: int, k: int, transposed: bool = False) -> str:
    """x [m, k] times w [k, n] (or [n, k], `transposed`), as a kernel."""
    w = f"tensor<{n}x{k}xf32>" if transposed else f"tensor<{k}x{n}xf32>"
    return f"""
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> ({"n, k" if transposed else "k, n"})>
#c = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%a: tensor<{m}x{k}xf32>, %b: {w}) -> tensor<{m}x{n}xf32>
    attributes {{mlirc.kernel, mlirc.kind = "matmul"}} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %p = linalg.generic {{indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%a, %b : tensor<{m}x{k}xf32>, {w}) outs(%f : tensor<{m}x{n}xf32>) {{
  ^bb0(%x: f32, %y: f32, %s: f32):
    %xy = arith.mulf %x, %y : f32
    %t = arith.addf %s, %xy : f32
    linalg.yield %t : f32
  }} -> tensor<{m}x{n}xf32>
  return %p : tensor<{m}x{n}xf32>
}}"""


def computed(x: np.ndarray, w: np.ndarray, knobs: str) -> np.ndarray:
    """x @ w on the host device, without a finding."""
    module = mlir.parse(product(len(x), w.shape[1], len(w)))
    tiles, _ = Schedules([f"matmul:{knobs}"]).schedule_kernel(module, get_target("sm_90a"))
    assert function_name(tiles) == "matmul_0"
    (found,), report = run_tiles(tiles, [x, w])
    assert report.ok, "\n".join(map(str, report.findings))
    return found


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
    rng = np.random.default_rng(k)
    x = (rng.standard_normal((32, k)) * scale).astype(np.float32)
    w = rng.standard_normal((k, 32)).astype(np.float32)
    want = x.astype(np.float64) @ w.astype(np.float64)
    plain = np.zeros(want.shape, np.float32)
    for i in range(k):  # one FMA after the other
        plain = (plain + x[:, i : i + 1].astype(np.float64) * w[i]).astype(np.float32)

    def error(found: np.ndarray) -> float:
        return float(np.linalg.norm(found - want) / np.linalg.norm(want))

    assert error(computed(x, w, TMA)) <= error(plain)


@pytest.mark.parametrize("knobs", [TMA + ",stages=2", TMA.replace("block_k=32", "block_k=64") + ",warps_k=2"])
def test_what_is_not_finite_is_as_in_fp32(knobs):
    """Infinity times a rounded factor's rest has any sign; factors that round up to infinity are finite."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((48, 160), (160, 64)))
    largest = np.finfo(np.float32).max
    x[3, 5], x[7, 40], x[7, 41] = np.inf, np.inf, -np.inf
    x[11, 159], x[12, 0], x[17, 64], x[18, 65] = -np.inf, np.nan, np.float32(1e-40), largest
    x[20], x[33, 31], w[31, 9] = 0, np.inf, 0
    w[70, 50], w[71, 51], w[65] = np.inf, -np.inf, w[65] * np.float32(0.1)
    with np.errstate(all="ignore"):
        want = (x.astype(np.float64)[:, :, None] * w.astype(np.float64)[None]).sum(axis=1)
    found = computed(x, w, knobs)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(found), np.isposinf(want))
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(want))
    finite = np.isfinite(want)
    assert finite.sum() > 1000 and np.isfinite(want[18]).sum() > 60
    scale = np.abs(np.where(finite, want, 0)).max(axis=1, keepdims=True) + 1
    assert (np.abs(np.where(finite, found, 0) - np.where(finite, want, 0)) <= 1e-6 * scale).all()


@pytest.mark.parametrize(
    "shape, mma", [((33, 64, 256), "fma"), ((640, 640, 128), "tf32x3"), ((640, 640, 136), "tf32x3")]
)
def test_the_default_is_the_faster_one(shape, mma):
    module = mlir.parse(product(*shape))
    tiles, record = Schedules([]).schedule_kernel(module, get_target("sm_90a"))
    assert record.knobs["mma"] == mma
    to_gpu(tiles, "matmul_0", get_target("sm_90a"))


def test_other_operands_are_refused():
    from mlirc.errors import MlircError

    text = product(32, 32, 64).replace("f32", "f64")
    with pytest.raises(MlircError, match="operands of f64 are not f32"):
        check_schedule(text, ("matmul:mma=tf32x3",))
