"""On the GPU: the accuracy of the expanded math, and the generic path's kernels against the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.host.jit import HostFunction
from mlirc.passes import get_pass
from support.accuracy import F64_ULPS, RANGES, high_precision, pairs, samples, ulps
from support.devices.gpu_kernel import on_gpu, run_kernel
from support.divisions import operands, same
from support.kernels.loops import KERNELS, public, random_inputs

pytestmark = on_gpu
THREADS = 256


def pointwise(op: str, element: str, count: int, arity: int) -> str:
    """A kernel that applies `op` to `count` elements, a multiple of THREADS; one per thread."""
    memref = f"memref<{count}x{element}>"
    names = ["%a", "%b"][:arity]
    everything = [*names, "%out"]
    arguments = ", ".join(f"{n}: {memref}" for n in everything)
    loads = "\n".join(f"{n}v = memref.load {n}[%i] : {memref}" for n in names)
    return f"""
module attributes {{gpu.container_module}} {{
  gpu.module @k_gpu {{
    gpu.func @k_0({arguments}) kernel {{
      %t = gpu.thread_id x
      %b0 = gpu.block_id x
      %n = arith.constant {THREADS} : index
      %s = arith.muli %b0, %n : index
      %i = arith.addi %s, %t : index
      {loads}
      %one32 = arith.constant 1.0 : f32
      %r = {op} {", ".join(n + "v" for n in names)} : {element}
      memref.store %r, %out[%i] : {memref}
      gpu.return
    }}
  }}
  func.func @k({arguments}) {{
    %one = arith.constant 1 : index
    %grid = arith.constant {count // THREADS} : index
    %block = arith.constant {THREADS} : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%grid, %one, %one) threads in (%block, %one, %one)
      args({", ".join(f"{n} : {memref}" for n in everything)})
    return
  }}
}}"""


def apply(op: str, *inputs: np.ndarray) -> np.ndarray:
    count = -(-len(inputs[0]) // THREADS) * THREADS
    padded = [np.resize(x, count) for x in inputs]
    out = np.empty_like(padded[0])
    element = {4: "f32", 8: "f64"}[out.itemsize]
    run_kernel(mlir.parse(pointwise(op, element, count, len(inputs))), padded, [out])
    return out[: len(inputs[0])]


@pytest.mark.parametrize("name", RANGES)
def test_f32_functions(name):
    x = samples(*RANGES[name], np.float32)
    if name in ("erf", "erfc"):
        x = x[::7]
    # ex2.approx adds its own error of up to 2 ulp to that of the functions built on it.
    limit = 4.0 if name in ("exp", "exp2", "tanh", "erf") else 2.0
    assert ulps(apply(f"math.{name}", x), high_precision(name, x)) <= limit


@pytest.mark.parametrize("name", RANGES)
def test_f64_functions(name):
    x = samples(*RANGES[name], np.float64)
    if name in ("erf", "erfc"):
        x = x[::29]
    assert ulps(apply(f"math.{name}", x), high_precision(name, x)) <= F64_ULPS.get(name, 4)


@pytest.mark.parametrize("name", ["powf", "atan2"])
def test_functions_of_two_operands(name):
    x, y = pairs(np.float32)
    assert ulps(apply(f"math.{name}", x, y), high_precision(name, x, y)) <= 1.0


@pytest.mark.parametrize("name", KERNELS)
def test_generic_kernels(name):
    function = HostFunction(mlir.parse(public(KERNELS[name])), "k")
    inputs = random_inputs(function, name)
    want = function(*inputs)
    module = mlir.parse(KERNELS[name])
    get_pass("mlirc-loops")(module, target="sm_90a")
    got = [np.full(s.shape, 77).astype(s.dtype) for s in function.outputs]
    run_kernel(module, inputs, got)
    for a, b in zip(got, want, strict=True):
        if a.dtype in (np.float16, ml_dtypes.bfloat16):
            a, b = a.astype(np.float32), b.astype(np.float32)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("numerator", ["%one32", "%av"])
def test_divisions_are_rounded(numerator: str) -> None:
    x, y = operands(1 << 20)
    op = f"arith.divf {numerator}, %bv : f32 //"
    same(apply(op, x, y), np.ones_like(x) if numerator == "%one32" else x, y)
