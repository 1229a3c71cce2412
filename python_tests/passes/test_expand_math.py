"""Accuracy of the expanded math functions, run on the CPU against references of higher precision."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from mlirc import mlir
from mlirc.backend.ptx import compile_kernel
from mlirc.errors import MlircError
from mlirc.passes.expand_math import run as expand
from mlirc.targets import get_target
from support.accuracy import (
    F64_ULPS,
    RANGES,
    angles,
    everywhere,
    far_pairs,
    high_precision,
    of_angles,
    pairs,
    samples,
    signs_of_zeros_differ,
    ulps,
)

LANES = 8
LOWER = (
    "func.func(convert-vector-to-scf,convert-scf-to-cf),expand-strided-metadata,convert-math-to-llvm,convert-vector-to-llvm,"
    "finalize-memref-to-llvm,convert-arith-to-llvm,convert-cf-to-llvm,convert-func-to-llvm,reconcile-unrealized-casts"
)


def payload(op: str, element: str, count: int, arity: int, flags: str = "") -> str:
    """A function that applies `op` to `arity` arrays of `count` elements, eight at a time."""
    memref, vector = f"memref<{count}x{element}>", f"vector<{LANES}x{element}>"
    names = ["%a", "%b"][:arity]
    loads = "\n".join(f"{n}v = vector.load {n}[%i] : {memref}, {vector}" for n in names)
    operands = ", ".join(f"{n}v" for n in names)
    arguments = ", ".join(f"{n}: {memref}" for n in [*names, "%out"])
    return f"""
    func.func @f({arguments}) attributes {{llvm.emit_c_interface}} {{
      %c0 = arith.constant 0 : index
      %n = arith.constant {count} : index
      %step = arith.constant {LANES} : index
      scf.for %i = %c0 to %n step %step {{
        {loads}
        %r = {op} {operands} {flags} : {vector}
        vector.store %r, %out[%i] : {memref}, {vector}
      }}
      return
    }}"""


def run_on_cpu(op: str, *inputs: np.ndarray, element: str | None = None, flags: str = "") -> np.ndarray:
    """Expands `op`, compiles it for the CPU, and applies it to arrays of one float type."""
    from mlirc.mlir import execution_engine

    count = len(inputs[0])
    padded = -(-count // LANES) * LANES
    arrays = [np.resize(x, padded).copy() for x in inputs]
    out = np.empty_like(arrays[0])
    name = element or {"float32": "f32", "float64": "f64"}[str(arrays[0].dtype)]
    module = mlir.parse(payload(op, name, padded, len(inputs), flags))
    expand(module)
    mlir.run_passes(module, LOWER)
    engine = execution_engine.ExecutionEngine(module, opt_level=2)
    descriptors = [describe(a) for a in [*arrays, out]]
    engine.invoke("f", *[ctypes.pointer(ctypes.pointer(d)) for d in descriptors])
    return out[:count]


def describe(array: np.ndarray) -> ctypes.Structure:
    """The array's memref descriptor; any 1-D array."""

    class Descriptor(ctypes.Structure):
        _fields_ = [
            ("allocated", ctypes.c_void_p),
            ("aligned", ctypes.c_void_p),
            ("offset", ctypes.c_int64),
            ("shape", ctypes.c_int64 * 1),
            ("strides", ctypes.c_int64 * 1),
        ]

    size, one = (ctypes.c_int64 * 1)(len(array)), (ctypes.c_int64 * 1)(1)
    return Descriptor(array.ctypes.data, array.ctypes.data, 0, size, one)


@pytest.mark.parametrize("name", RANGES)
def test_f32_functions_are_within_two_ulp(name):
    x = samples(*RANGES[name], np.float32)
    if name in ("erf", "erfc"):
        x = x[::7]
    assert ulps(run_on_cpu(f"math.{name}", x), high_precision(name, x)) <= 2.0


@pytest.mark.parametrize("name", RANGES)
def test_f64_functions_are_within_a_few_ulp(name):
    x = samples(*RANGES[name], np.float64)
    if name in ("erf", "erfc"):
        x = x[::29]
    assert ulps(run_on_cpu(f"math.{name}", x), high_precision(name, x)) <= F64_ULPS.get(name, 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_of_every_size(name, dtype):
    x = angles(dtype)[:: 1 if dtype is np.float32 else 3]
    got = run_on_cpu(f"math.{name}", x)
    assert ulps(got, of_angles(name, x)) <= 3.0
    assert not np.any(signs_of_zeros_differ(name, x, got))


def test_angles_that_are_large_beside_small_ones():
    """Of one vector, so that both ways are taken."""
    x = np.where(np.arange(64) % 3 == 0, 1e30, np.linspace(-3, 3, 64)).astype(np.float32)
    assert ulps(run_on_cpu("math.sin", x), of_angles("sin", x)) <= 2.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_every_size(dtype):
    x = everywhere(dtype)
    for name in RANGES:
        if name in ("sin", "cos", "tan"):
            continue
        given = x[:: 5 if name in ("erf", "erfc") else 1]
        with np.errstate(all="ignore"):
            given = given[np.abs(given) < 1e15] if name == "erfc" else given  # mpmath cannot
            want = high_precision(name, given)
        got = run_on_cpu(f"math.{name}", given)
        assert ulps(got, want) <= (2.0 if dtype is np.float32 else F64_ULPS.get(name, 4)), name
        assert not np.any(signs_of_zeros_differ(name, given, got)), name


@pytest.mark.parametrize("dtype, limit", [(np.float32, 1.0), (np.float64, 3.0)])
@pytest.mark.parametrize("name", ["powf", "atan2"])
def test_functions_of_two_operands(name, dtype, limit):
    x, y = pairs(dtype)
    assert ulps(run_on_cpu(f"math.{name}", x, y), high_precision(name, x, y)) <= limit


@pytest.mark.parametrize("exponent", [-3, -1, 0, 1, 2, 3, 5, 0.5, -0.5])
def test_constant_powers_need_no_logarithm(exponent):
    x = samples(0.0, 1e5, np.float32, positive=True)
    x = x[(x > 0) & np.isfinite(x)]
    text = payload("math.powf", "f32", 8, 1).replace("math.powf %av", "math.powf %av, %e")
    text = text.replace("%n =", f"%e = arith.constant dense<{float(exponent)}> : vector<8xf32>\n%n =")
    module = mlir.parse(text)
    expand(module)
    assert "math.powf" not in str(module) and "fptosi" not in str(module)


def test_fast_exp_is_two_operations_and_close():
    x = np.linspace(-20, 20, 4000).astype(np.float32)
    got = run_on_cpu("math.exp", x, flags="fastmath<afn>")
    want = np.exp(x.astype(np.float64))
    assert np.max(np.abs(got / want - 1)) < 3e-6
    module = mlir.parse(payload("math.exp", "f32", 8, 1, "fastmath<afn>"))
    expand(module)
    assert str(module).count("arith.mulf") == 1 and "arith.maximumf" not in str(module)


KERNEL = """
module attributes {{gpu.container_module}} {{
  gpu.module @k_gpu {{
    gpu.func @k_0({arguments}) kernel {{
      %i = gpu.thread_id x
      {body}
      gpu.return
    }}
  }}
  func.func @k({arguments}) {{
    %c1 = arith.constant 1 : index
    %c32 = arith.constant 32 : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%c1, %c1, %c1) threads in (%c32, %c1, %c1) args({passed})
    return
  }}
}}
"""


def kernel(op: str, element: str, shape: str, arity: int) -> str:
    """A `gpu`-level kernel that applies `op` to one scalar or vector per thread."""
    memref = f"memref<512x{element}>"
    names = ["%a", "%b", "%c"][:arity]
    type_ = shape.format(element)
    action = ("vector.load", "vector.store", f", {type_}") if "vector" in shape else ("memref.load", "memref.store", "")
    body = [f"{n}v = {action[0]} {n}[%i] : {memref}{action[2]}" for n in names]
    body.append(f"%r = {op} {', '.join(n + 'v' for n in names)} : {type_}")
    body.append(f"{action[1]} %r, %out[%i] : {memref}{action[2]}")
    everything = [*names, "%out"]
    return KERNEL.format(
        arguments=", ".join(f"{n}: {memref}" for n in everything),
        passed=", ".join(f"{n} : {memref}" for n in everything),
        body="\n".join(body),
    )


NATIVE = ["absf", "ceil", "floor", "trunc", "round", "roundeven", "sqrt"]


@pytest.mark.parametrize("element", ["f32", "f64", "f16", "bf16"])
def test_every_function_becomes_ptx(element):
    for name in [*RANGES, *NATIVE]:
        for shape in ("{}", "vector<4x{}>"):
            text = compile_kernel(mlir.parse(kernel(f"math.{name}", element, shape, 1)), get_target("sm_80")).ptx
            assert ".visible .entry k_0" in text and "call" not in text, name


BINARY = ["math.powf", "math.atan2", "math.copysign", "arith.divf", "arith.maximumf", "arith.minnumf", "arith.remf"]


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("element", ["f32", "f64", "bf16"])
def test_binary_operations_become_ptx(op, element):
    assert ".entry k_0" in compile_kernel(mlir.parse(kernel(op, element, "{}", 2)), get_target("sm_80")).ptx


@pytest.mark.parametrize("op", ["math.ipowi", "arith.ceildivsi", "arith.floordivsi", "arith.maxsi"])
@pytest.mark.parametrize("element", ["i32", "i64", "i8", "index"])
@pytest.mark.parametrize("shape", ["{}", "vector<4x{}>"], ids=["one", "four"])
def test_integer_operations_become_ptx(op, element, shape):
    if element == "index" and op == "math.ipowi":
        return
    assert ".entry k_0" in compile_kernel(mlir.parse(kernel(op, element, shape, 2)), get_target("sm_80")).ptx


def test_an_unknown_op_is_named():
    text = kernel("math.exp", "f32", "{}", 1).replace("math.exp %av : f32", "math.tanh %av : f32")
    assert "math.tanh" in text
    from mlirc.passes.mathlib import f32, f64

    kept, wide = f32.FUNCTIONS.pop("tanh"), f64.FUNCTIONS.pop("tanh")
    try:
        with pytest.raises(MlircError, match="math.tanh"):
            compile_kernel(mlir.parse(text), get_target("sm_80"))
    finally:
        f32.FUNCTIONS["tanh"], f64.FUNCTIONS["tanh"] = kept, wide


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("given", [pairs, far_pairs])
def test_remainder_is_exact(given, dtype):
    x, y = given(dtype)
    order = np.random.default_rng(15).permutation(len(x))  # elements that have ended wait for those beside them
    x, y = x[order], y[order]
    got = run_on_cpu("arith.remf", x, y)
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))
