"""Bounds of sums that tensor cores cut: what the instructions do lies within, and what is wrong does not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.judge import wrong
from mlirc.device.tensor_cores import BITS_FP8_WGMMA, lowest_exponent, multiply_add
from mlirc.host.jit import HostFunction
from mlirc.ir.levels import CUT_SUMS

KERNEL = """
func.func @f(%a: tensor<{m}x{k}x{a}>, %b: tensor<{n}x{k}x{b}>) -> tensor<{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (j, k)>,
      affine_map<(i, j, k) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%a, %b : tensor<{m}x{k}x{a}>, tensor<{n}x{k}x{b}>) outs(%z : tensor<{m}x{n}xf32>) {{
  ^bb0(%x: {a}, %y: {b}, %out: f32):
    %p = arith.extf %x : {a} to f32
    %q = arith.extf %y : {b} to f32
    %pq = arith.mulf %p, %q : f32
    %s = arith.addf %out, %pq : f32
    linalg.yield %s : f32
  }} -> tensor<{m}x{n}xf32>
  func.return %r : tensor<{m}x{n}xf32>
}}
"""
M, N = 19, 8
TYPES = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}


def reference(a, b, fast):
    """What is right, and its bounds."""
    names = {np.dtype(t): name for name, t in TYPES.items()}
    text = KERNEL.format(m=len(a), n=len(b), k=a.shape[1], a=names[a.dtype], b=names[b.dtype])
    if fast:
        text = text.replace(
            "-> tensor<19x8xf32> {", f'-> tensor<19x8xf32> attributes {{mlirc.rounds = "{CUT_SUMS}"}} {{', 1
        )
        assert CUT_SUMS in text
    return HostFunction(mlir.parse(text), "f", bounds=True)(a, b)


def on_tensor_cores(a, b, fast):
    """As Hopper adds it: in its accumulators, or 128 products at a time, and those in f32."""
    total, chain = np.zeros((len(a), len(b)), np.float32), np.zeros((len(a), len(b)), np.float32)
    lowest = lowest_exponent(a.dtype), lowest_exponent(b.dtype)
    x, y = (np.pad(z.astype(np.float32), [(0, 0), (0, -z.shape[1] % 32)]) for z in (a, b))
    for k in range(0, x.shape[1], 32):
        if not fast and k % 128 == 0:
            total, chain = total + chain, np.zeros_like(chain)
        chain = multiply_add(x[:, k : k + 32], np.ascontiguousarray(y[:, k : k + 32].T), chain, lowest, BITS_FP8_WGMMA)
    return total + chain


def outliers(rng, *shape):
    """One large product among others that are cut off nearly whole."""
    x = np.full(shape, 3.75)
    x[:, shape[1] // 2] = 448
    return x


INPUTS = {
    "normal": lambda rng, *shape: rng.standard_normal(shape),
    "one sign": lambda rng, *shape: rng.standard_normal(shape) - 60,
    "alike": lambda rng, *shape: np.full(shape, rng.uniform(1, 2)),
    "alike, of both signs": lambda rng, *shape: np.where(rng.random(shape) < 0.5, 1.125, -1.0),
    "outliers": outliers,
    "every magnitude": lambda rng, *shape: np.exp2(rng.uniform(-9, 8, shape)) * rng.choice([-1, 1], shape),
    "subnormal": lambda rng, *shape: rng.standard_normal(shape) * 2e-3,
    "sorted": lambda rng, *shape: np.sort(rng.standard_normal(shape)),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", INPUTS)
def test_what_tensor_cores_cut_is_within_the_bounds(kind, fast):
    for seed, (first, second) in enumerate([("f8E4M3FN", "f8E4M3FN"), ("f8E5M2", "f8E4M3FN"), ("f8E5M2", "f8E5M2")]):
        for k in (2048, 130):
            rng = np.random.default_rng([seed, k])
            a, b = INPUTS[kind](rng, M, k).astype(TYPES[first]), INPUTS[kind](rng, N, k).astype(TYPES[second])
            right, bound = reference(a, b, fast)
            found = on_tensor_cores(a, b, fast)
            assert np.isfinite(bound).all()
            assert not wrong(found, right, bound).any(), (first, second, k)


@pytest.mark.parametrize("fast", [False, True])
def test_what_is_wrong_is_found(fast):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((rows, 2048)).astype(TYPES["f8E4M3FN"]) for rows in (M, N))
    right, bound = reference(a, b, fast)
    lost = a.copy()
    lost[:, 640:768] = 0
    for name, x, factor in (
        ("a slice is lost", lost, 1.0),
        ("a wrong scale", a, 1.06),
        ("a shifted row", np.roll(a, 1, 1), 1.0),
    ):
        found = factor * on_tensor_cores(x, b, fast)
        assert wrong(found, right, bound).mean() > 0.3, name
