"""FP32 products as two TF32 numbers for each factor lose bits of factors below 2^-112: no more than the bounds say."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel
from mlirc.device.reference import Reference, References
from support.kernels.check import function_name
from support.kernels.mutant_cases import lowered
from support.kernels.payloads import matmul

TEXT = matmul(32, 64, 64, epilogue=False)
TILES = "block_m=32,block_n=32"
SIZES = ((1e-39, 1e30), (1e-39, 1.0), (1e-36, 3.0), (1e-33, 1e10), (1.0, 1.0))


def reference(text: str = TEXT) -> Reference:
    module = mlir.parse(text)
    return References({"kernels": module}).of(function_name(module))


def inputs(like: list[np.ndarray], small: float, large: float) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    x, w, *rest = (rng.standard_normal(a.shape) for a in like)
    return [(small * x).astype(np.float32), (large * w).astype(np.float32), *(np.float32(0 * a) for a in rest)]


def bounds(of: Reference, arguments: list[np.ndarray]) -> np.ndarray:
    result, bound = of.steps[0][1](*arguments)
    return bound[result != 0] / np.abs(result[result != 0])


@pytest.mark.parametrize("way", ["tf32x3", "fma"])
def test_right_products_of_small_numbers(way):
    text, like, specs = lowered(TEXT, f"matmul:mma={way},{TILES}")
    kernel, right = DeviceKernel(mlir.parse(text)), reference()
    for small, large in SIZES:
        results = [np.zeros(s.shape, s.dtype) for s in specs]
        report = kernel.run([*inputs(like, small, large), *results], reference=right)
        assert report.ok and report.shares()["matmul_0"] > 90, (small, large, report.findings)


def test_one_tf32_number_is_too_little_for_all_but_subnormal_factors():
    text, like, specs = lowered(TEXT, f"matmul:mma=tf32,{TILES}")
    kernel, right = DeviceKernel(mlir.parse(text)), reference()
    for small, large in SIZES[2:]:
        results = [np.zeros(s.shape, s.dtype) for s in specs]
        report = kernel.run([*inputs(like, small, large), *results], reference=right)
        assert report.kinds() == {"wrong result"}


def test_bounds_of_small_factors():
    like = lowered(TEXT, "")[1]
    exact = reference(TEXT.replace("attributes {", 'attributes {mlirc.fp32 = "ieee", ', 1))
    for small, large in SIZES:
        arguments = inputs(like, small, large)
        two, one = bounds(reference(), arguments), bounds(exact, arguments)
        assert (two >= one).all() and (np.median(two) > 10 * np.median(one)) == (small < 1e-38)
        assert np.median(two) < 0.3 and (small < 1.0 or (two == one).all())
