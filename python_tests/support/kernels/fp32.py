"""FP32 products on the host device, and what must hold for them whatever instruction makes them."""

from __future__ import annotations

import numpy as np

from mlirc import mlir
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import TARGET, run_tiles
from support.kernels.payloads import matmul

TILE = "block_m=16,block_n=64,block_k=32,warps_m=1,warps_n=4"  # by warpgroups, with weights through registers
HELD_A = "block_m=64,block_n=16,block_k=32,warps_m=4,warps_n=1"
WAYS_OF_COPYING = [  # m, n, k and knobs
    ((13, 76, 168), TILE + ",stages=3"),  # tensor copies, over every edge
    ((13, 76, 168), TILE + ",copy=cp_async,stages=3"),
    ((7, 61, 67), TILE + ",copy=cp_async,stages=3"),  # rows that cannot be copied by 16 bytes
    ((2, 3, 5), TILE + ",stages=3"),
    ((17, 132, 136), "block_m=24,block_n=128,warps_m=1,warps_n=4,block_k=64,stages=2,blocks=1"),  # two by 64 rows
    ((20, 64, 200), "block_m=32,block_n=64,warps_m=2,warps_n=4,stages=2"),  # two warpgroups along m
    ((9, 68, 300), "block_m=16,block_n=64,warps_m=1,warps_n=4,block_k=32,parts=4"),
]


def computed(x: np.ndarray, w: np.ndarray, schedule: str) -> np.ndarray:
    """x [m, k] times w [k, n], without a finding."""
    module = mlir.parse(matmul(len(x), w.shape[1], len(w), transposed=False, epilogue=False))
    tiles, _ = Schedules([schedule]).schedule_kernel(module, get_target(TARGET))
    unused = np.zeros(w.shape[1], np.float32), np.zeros((len(x), w.shape[1]), np.float32)
    (found,), report = run_tiles(tiles, [x, w, *unused])
    assert report.ok, "\n".join(map(str, report.findings))
    return found


def factors(m: int, n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal numbers: x [m, k] and w [k, n]."""
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    return x, w


def assert_as_exact_as_fp32_sums(m: int, n: int, k: int, scale: float, schedule: str) -> None:
    """The error is no larger than that of one FMA after the other, for numbers of size `scale`."""
    x, w = factors(m, n, k, seed=k)
    x *= np.float32(scale)
    want = x.astype(np.float64) @ w.astype(np.float64)
    plain = np.zeros(want.shape, np.float32)
    for i in range(k):
        plain = (plain + x[:, i : i + 1].astype(np.float64) * w[i]).astype(np.float32)

    def error(found: np.ndarray) -> float:
        return float(np.linalg.norm(found - want) / np.linalg.norm(want))

    assert error(computed(x, w, schedule)) <= error(plain)


def spoiled(m: int) -> tuple[np.ndarray, np.ndarray]:
    """x [m, 160] and w [160, 64], m at least 32, with infinities, NaN, subnormals, and factors that any rounding makes
    infinite."""
    x, w = factors(m, 64, 160, seed=0)
    largest = np.finfo(np.float32).max
    x[3, 5], x[7, 40], x[7, 41] = np.inf, np.inf, -np.inf
    x[11, 159], x[12, 0], x[17, 64], x[18, 65] = -np.inf, np.nan, np.float32(1e-40), largest
    x[20], x[29, 31], w[31, 9] = 0, np.inf, 0
    w[70, 50], w[71, 51], w[65] = np.inf, -np.inf, w[65] * np.float32(0.1)
    return x, w


def assert_not_finite_where_fp32_is_not(x: np.ndarray, w: np.ndarray, schedule: str, tolerance: float) -> np.ndarray:
    """Every infinity and NaN is there, each with its sign; what is finite is within `tolerance` of the row's largest.
    Returns what is right, in FP64."""
    with np.errstate(all="ignore"):
        want = (x.astype(np.float64)[:, :, None] * w.astype(np.float64)[None]).sum(axis=1)
        want = want.astype(np.float32).astype(np.float64)
    found = computed(x, w, schedule)
    for is_so in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(is_so(found), is_so(want))
        assert is_so(want).any()
    finite = np.isfinite(want)
    assert finite.sum() > 1000
    scale = np.abs(np.where(finite, want, 0)).max(axis=1, keepdims=True) + 1
    assert (np.abs(np.where(finite, found, 0) - np.where(finite, want, 0)) <= tolerance * scale).all()
    return want
