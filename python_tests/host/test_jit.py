"""The CPU's answers equal NumPy's: every dtype, views, loops over blocks, arguments that are returned."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc.errors import MlircError
from mlirc.host import HostFunction, run_module
from mlirc.mlir import parse

FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
INTEGERS = {"i64": np.int64, "i32": np.int32, "i8": np.int8}


def matmul(m: int, n: int, k: int, dtype: str, transposed: bool = False) -> str:
    """x @ w, or x @ wᵀ, accumulating in f32 (f64 for f64)."""
    b = f"tensor<{n}x{k}x{dtype}>" if transposed else f"tensor<{k}x{n}x{dtype}>"
    acc = "f64" if dtype == "f64" else "f32"
    extend = "" if dtype == acc else f"%x1 = arith.extf %x : {dtype} to {acc}\n %y1 = arith.extf %y : {dtype} to {acc}"
    names = "%x, %y" if dtype == acc else "%x1, %y1"
    return f"""
    func.func @main(%a: tensor<{m}x{k}x{dtype}>, %b: {b}) -> tensor<{m}x{n}x{acc}> {{
      %zero = arith.constant 0.0 : {acc}
      %empty = tensor.empty() : tensor<{m}x{n}x{acc}>
      %init = linalg.fill ins(%zero : {acc}) outs(%empty : tensor<{m}x{n}x{acc}>) -> tensor<{m}x{n}x{acc}>
      %r = linalg.generic {{
        indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
                         affine_map<(m, n, k) -> ({"n, k" if transposed else "k, n"})>,
                         affine_map<(m, n, k) -> (m, n)>],
        iterator_types = ["parallel", "parallel", "reduction"]
      }} ins(%a, %b : tensor<{m}x{k}x{dtype}>, {b}) outs(%init : tensor<{m}x{n}x{acc}>) {{
      ^bb0(%x: {dtype}, %y: {dtype}, %z: {acc}):
        {extend}
        %p = arith.mulf {names} : {acc}
        %s = arith.addf %z, %p : {acc}
        linalg.yield %s : {acc}
      }} -> tensor<{m}x{n}x{acc}>
      return %r : tensor<{m}x{n}x{acc}>
    }}"""


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([1, 2, 7, 31, 33]),
    st.sampled_from([1, 5, 16, 17]),
    st.sampled_from([1, 3, 64, 65]),
    st.sampled_from(list(FLOATS)),
    st.booleans(),
)
def test_matmul_of_any_shape_and_dtype(m, n, k, dtype, transposed):
    rng = np.random.default_rng(m * n + k)
    a = rng.standard_normal((m, k)).astype(FLOATS[dtype])
    b = rng.standard_normal((n, k) if transposed else (k, n)).astype(FLOATS[dtype])
    [got] = run_module(parse(matmul(m, n, k, dtype, transposed)), [a, b])
    wanted = a.astype(np.float64) @ (b.T if transposed else b).astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_elementwise_of_every_dtype(dtype):
    kind = FLOATS.get(dtype) or INTEGERS[dtype]
    op = "arith.addf" if dtype in FLOATS else "arith.addi"
    text = f"""
    func.func @main(%a: tensor<7x5x{dtype}>, %b: tensor<5x{dtype}>) -> tensor<7x5x{dtype}> {{
      %e = tensor.empty() : tensor<7x5x{dtype}>
      %r = linalg.generic {{
        indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]
      }} ins(%a, %b : tensor<7x5x{dtype}>, tensor<5x{dtype}>) outs(%e : tensor<7x5x{dtype}>) {{
      ^bb0(%x: {dtype}, %y: {dtype}, %z: {dtype}):
        %s = {op} %x, %y : {dtype}
        linalg.yield %s : {dtype}
      }} -> tensor<7x5x{dtype}>
      return %r : tensor<7x5x{dtype}>
    }}"""
    a, b = np.arange(35).reshape(7, 5).astype(kind), np.arange(5).astype(kind)
    [got] = run_module(parse(text), [a, b])
    assert got.dtype == a.dtype
    np.testing.assert_array_equal(got, a + b)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_operation_rounds(dtype):
    text = f"""
    func.func @main(%a: tensor<64x{dtype}>, %b: tensor<64x{dtype}>) -> tensor<64x{dtype}> {{
      %e = tensor.empty() : tensor<64x{dtype}>
      %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
                            iterator_types = ["parallel"]}}
          ins(%a, %b : tensor<64x{dtype}>, tensor<64x{dtype}>) outs(%e : tensor<64x{dtype}>) {{
      ^bb0(%x: {dtype}, %y: {dtype}, %z: {dtype}):
        %m = arith.mulf %x, %y : {dtype}
        %s = arith.addf %m, %x : {dtype}
        linalg.yield %s : {dtype}
      }} -> tensor<64x{dtype}>
      return %r : tensor<64x{dtype}>
    }}"""
    a, b = np.random.default_rng(0).standard_normal((2, 64)).astype(FLOATS[dtype])
    np.testing.assert_array_equal(run_module(parse(text), [a, b])[0], a * b + a)


def narrowed(x: np.ndarray, digits: int, smallest: int, largest: float) -> np.ndarray:
    """FP64 numbers rounded once, to nearest even, to `digits` binary digits and no finer than 2 ** `smallest`."""
    with np.errstate(invalid="ignore"):
        step = np.exp2(np.maximum(np.frexp(x)[1] - digits, smallest).astype(np.float64))
        near = np.rint(x / step) * step
        return np.where(np.abs(near) > largest, np.copysign(np.inf, x), near)


@pytest.mark.parametrize("dtype, digits, smallest", [("bf16", 8, -133), ("f16", 11, -24)])
def test_fp64_is_rounded_to_16_bits_once(dtype, digits, smallest):
    kind = FLOATS[dtype]
    largest = float(ml_dtypes.finfo(kind).max)
    rng = np.random.default_rng(2)
    near = rng.standard_normal(500).astype(kind).astype(np.float64)
    near += np.exp2(np.frexp(near)[1] - digits - 1.0)  # in the middle between two numbers
    x = np.concatenate([near, near * (1 + 2.0**-40), near * (1 - 2.0**-40), near * 1e-5, near * 2.0**-130, [0.0, -0.0, np.nan],
                        [np.inf, -np.inf, largest * (1 + 2.0 ** -(digits + 1)), -largest * 1.5, 1e300, 1e-300, 1.5 * 2.0**smallest]])  # fmt: skip
    n = len(x)
    text = f"""
    func.func @main(%a: tensor<{n}xf64>) -> tensor<{n}x{dtype}> {{
      %e = tensor.empty() : tensor<{n}x{dtype}>
      %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}}
          ins(%a : tensor<{n}xf64>) outs(%e : tensor<{n}x{dtype}>) {{
      ^bb0(%x: f64, %z: {dtype}):
        %s = arith.truncf %x : f64 to {dtype}
        linalg.yield %s : {dtype}
      }} -> tensor<{n}x{dtype}>
      return %r : tensor<{n}x{dtype}>
    }}"""
    found = run_module(parse(text), [x])[0].astype(np.float64)
    np.testing.assert_array_equal(found, narrowed(x, digits, smallest, largest))
    np.testing.assert_array_equal(np.signbit(found[:-10]), np.signbit(x[:-10]))
    with np.errstate(over="ignore"):
        twice = x.astype(np.float32).astype(kind).astype(np.float64)
    assert (found != twice)[~np.isnan(x)].any()


def test_booleans_and_comparison():
    text = """
    func.func @main(%a: tensor<9xi1>, %b: tensor<9xi64>) -> tensor<9xi1> {
      %e = tensor.empty() : tensor<9xi1>
      %four = arith.constant 4 : i64
      %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
                           iterator_types = ["parallel"]}
          ins(%a, %b : tensor<9xi1>, tensor<9xi64>) outs(%e : tensor<9xi1>) {
      ^bb0(%x: i1, %y: i64, %z: i1):
        %c = arith.cmpi slt, %y, %four : i64
        %s = arith.andi %x, %c : i1
        linalg.yield %s : i1
      } -> tensor<9xi1>
      return %r : tensor<9xi1>
    }"""
    a, b = np.arange(9) % 2 == 0, np.arange(9)
    np.testing.assert_array_equal(run_module(parse(text), [a, b])[0], a & (b < 4))


@pytest.mark.parametrize("function", ["exp", "tanh", "erf", "rsqrt", "log1p", "sin", "floor", "exp2"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
def test_math_functions_have_their_symbols(function, dtype):
    text = f"""
    func.func @main(%a: tensor<4x{dtype}>) -> tensor<4x{dtype}> {{
      %e = tensor.empty() : tensor<4x{dtype}>
      %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
                            iterator_types = ["parallel"]}}
          ins(%a : tensor<4x{dtype}>) outs(%e : tensor<4x{dtype}>) {{
      ^bb0(%x: {dtype}, %z: {dtype}):
        %s = math.{function} %x : {dtype}
        linalg.yield %s : {dtype}
      }} -> tensor<4x{dtype}>
      return %r : tensor<4x{dtype}>
    }}"""
    import math

    more = {"erf": np.vectorize(math.erf), "rsqrt": lambda v: 1 / np.sqrt(v)}
    a = np.array([0.25, 0.5, 1.0, 1.75]).astype(FLOATS[dtype])
    wanted = (more.get(function) or getattr(np, function))(a.astype(np.float64))
    [got] = run_module(parse(text), [a])
    np.testing.assert_allclose(
        got.astype(np.float64), wanted, rtol={"f64": 1e-14, "f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}[dtype]
    )


def test_a_block_program_with_an_edge_tile():
    text = """
    func.func @main(%a: tensor<13xf32>) -> tensor<13xf32> {
      %e = tensor.empty() : tensor<13xf32>
      %r = scf.forall (%b) in (4) shared_outs(%o = %e) -> (tensor<13xf32>) {
        %at = affine.apply affine_map<(d) -> (d * 4)>(%b)
        %size = affine.min affine_map<(d) -> (4, 13 - d * 4)>(%b)
        %x = tensor.extract_slice %a[%at] [%size] [1] : tensor<13xf32> to tensor<?xf32>
        %y = tensor.extract_slice %o[%at] [%size] [1] : tensor<13xf32> to tensor<?xf32>
        %s = linalg.add ins(%x, %x : tensor<?xf32>, tensor<?xf32>) outs(%y : tensor<?xf32>) -> tensor<?xf32>
        scf.forall.in_parallel {
          tensor.parallel_insert_slice %s into %o[%at] [%size] [1] : tensor<?xf32> into tensor<13xf32>
        }
      } {mapping = [#gpu.block<x>]}
      return %r : tensor<13xf32>
    }"""
    a = np.arange(13, dtype=np.float32)
    np.testing.assert_array_equal(run_module(parse(text), [a])[0], 2 * a)


def test_calls_views_and_returned_arguments():
    text = """
    func.func private @twice(%a: tensor<6xf32>) -> tensor<6xf32> attributes {mlirc.kernel} {
      %s = linalg.add ins(%a, %a : tensor<6xf32>, tensor<6xf32>) outs(%a : tensor<6xf32>) -> tensor<6xf32>
      return %s : tensor<6xf32>
    }
    func.func @main(%a: tensor<6xf32> {mlirc.name = "a", mlirc.kind = "input"})
        -> (tensor<2x3xf32> {mlirc.name = "r"}, tensor<6xf32>, tensor<6xf32>) {
      %0 = call @twice(%a) : (tensor<6xf32>) -> tensor<6xf32>
      %1 = call @twice(%0) : (tensor<6xf32>) -> tensor<6xf32>
      %2 = tensor.expand_shape %1 [[0, 1]] output_shape [2, 3] : tensor<6xf32> into tensor<2x3xf32>
      return %2, %0, %a : tensor<2x3xf32>, tensor<6xf32>, tensor<6xf32>
    }"""
    module, a = parse(text), np.arange(6, dtype=np.float32)
    before = str(module)
    first, second, third = run_module(module, [a])
    np.testing.assert_array_equal(a, np.arange(6))
    np.testing.assert_array_equal(first, (4 * a).reshape(2, 3))
    np.testing.assert_array_equal(second, 2 * a)
    np.testing.assert_array_equal(third, a)
    assert str(module) == before


def test_scan_of_torch_mlir():
    text = """
    func.func @main(%a: tensor<3x8xi64>) -> tensor<3x8xi64> {
      %e = tensor.empty() : tensor<3x8xi64>
      %zero = arith.constant 0 : i64
      %f = linalg.fill ins(%zero : i64) outs(%e : tensor<3x8xi64>) -> tensor<3x8xi64>
      %e1 = tensor.empty() : tensor<3xi64>
      %f1 = linalg.fill ins(%zero : i64) outs(%e1 : tensor<3xi64>) -> tensor<3xi64>
      %r:2 = tm_tensor.scan dimension(1) inclusive(true)
          ins(%a : tensor<3x8xi64>) outs(%f, %f1 : tensor<3x8xi64>, tensor<3xi64>) {
      ^bb0(%x: i64, %y: i64):
        %s = arith.addi %x, %y : i64
        tm_tensor.yield %s : i64
      } -> tensor<3x8xi64>, tensor<3xi64>
      return %r#0 : tensor<3x8xi64>
    }"""
    a = np.arange(24).reshape(3, 8)
    np.testing.assert_array_equal(run_module(parse(text), [a])[0], a.cumsum(1))


def test_wrong_arguments_are_named():
    function = HostFunction(parse(matmul(2, 3, 4, "f32")))
    x, w = np.zeros((2, 4), np.float32), np.zeros((4, 3), np.float32)
    with pytest.raises(MlircError, match="argument 1 of 'main' is float32.4, 2., but must be float32.4, 3."):
        function(x, w[:, :2])
    with pytest.raises(MlircError, match="argument 0 of 'main' is float64"):
        function(x.astype(np.float64), w)
    with pytest.raises(MlircError, match="takes 2 arguments, not 1"):
        function(x)
    with pytest.raises(MlircError, match="no function 'other' in the module: it has main"):
        HostFunction(parse(matmul(2, 3, 4, "f32")), "other")


def test_scan_reads_its_operand_after_an_initial_value_was_written_to_the_same_empty_tensor():
    module = parse("""
      func.func @main(%a: tensor<2x3xi64>) -> tensor<2x3xi64> {
        %zero = arith.constant 0 : i64
        %e = tensor.empty() : tensor<2x3xi64>
        %x = linalg.copy ins(%a : tensor<2x3xi64>) outs(%e : tensor<2x3xi64>) -> tensor<2x3xi64>
        %f = linalg.fill ins(%zero : i64) outs(%e : tensor<2x3xi64>) -> tensor<2x3xi64>
        %s = tensor.empty() : tensor<3xi64>
        %t = linalg.fill ins(%zero : i64) outs(%s : tensor<3xi64>) -> tensor<3xi64>
        %r:2 = tm_tensor.scan dimension(0) inclusive(true) ins(%x : tensor<2x3xi64>)
            outs(%f, %t : tensor<2x3xi64>, tensor<3xi64>) {
        ^bb0(%p: i64, %q: i64):
          %sum = arith.addi %p, %q : i64
          tm_tensor.yield %sum : i64
        } -> tensor<2x3xi64>, tensor<3xi64>
        return %r#0 : tensor<2x3xi64>
      }""")
    a = np.arange(1, 7).reshape(2, 3)
    np.testing.assert_array_equal(run_module(module, [a])[0], a.cumsum(0))


@pytest.mark.parametrize("source", ["i8", "i32", "i64", "f32"])
def test_roundings_to_bf16_need_no_instruction_of_the_processor(source):
    """LLVM makes conversions to bf16 of its own from longer ones, and calls a function for them on most processors."""
    integers = source != "f32"
    dtype = np.dtype({"i8": np.int8, "i32": np.int32, "i64": np.int64, "f32": np.float32}[source])
    bits = np.random.default_rng(7).integers(0, 256, (513, dtype.itemsize), dtype=np.uint8)
    x = np.frombuffer(bits.tobytes(), dtype)
    convert = f"%y = arith.{'sitofp' if integers else 'truncf'} %x : {source} to bf16"
    text = f"""
    func.func @main(%a: tensor<513x{source}>) -> tensor<513xbf16> {{
      %empty = tensor.empty() : tensor<513xbf16>
      %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
                           iterator_types = ["parallel"]}}
          ins(%a : tensor<513x{source}>) outs(%empty : tensor<513xbf16>) {{
      ^bb0(%x: {source}, %o: bf16):
        {convert}
        linalg.yield %y : bf16
      }} -> tensor<513xbf16>
      return %r : tensor<513xbf16>
    }}"""
    [got] = run_module(parse(text), [x])
    with np.errstate(invalid="ignore"):
        wanted = x.astype(np.float32).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("bounds", [False, True])
def test_subnormal_numbers_of_bf16_are_moved_as_they_are(bounds):
    """Also from one block to another, where processors have instructions that make zeros of them."""
    text = """func.func @k(%x: tensor<2x7xbf16>) -> tensor<2x7xbf16> {
      %r = tm_tensor.sort dimension(1) outs(%x : tensor<2x7xbf16>) {
      ^bb0(%a: bf16, %b: bf16):
        %c = arith.cmpf ole, %a, %b : bf16
        tm_tensor.yield %c : i1
      } -> tensor<2x7xbf16>
      return %r : tensor<2x7xbf16>
    }"""
    x = np.random.default_rng(0).integers(-9, 9, (2, 7)).astype(ml_dtypes.bfloat16)
    x[0, 2:5] = np.array([-1e-40, 9.18e-41, -2e-39], ml_dtypes.bfloat16)
    found = HostFunction(parse(text), "k", bounds=bounds).run(x)[0]
    np.testing.assert_array_equal(found.view(np.uint16), np.sort(x.astype(np.float64)).astype(x.dtype).view(np.uint16))
