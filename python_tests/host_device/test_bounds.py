"""How far rounding may take a result: bounds that are neither vacuous nor too tight."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.judge import lean, wrong
from mlirc.host.jit import HostFunction
from support.kernels.number_cases import elements
from support.kernels.payloads import generic, kernel

INF, NAN = np.inf, np.nan


def bounded(text: str) -> HostFunction:
    return HostFunction(mlir.parse(text), text.split("@")[1].split("(")[0], bounds=True)


def of_elements(count: int, body: str, types: tuple[str, ...], result: str) -> HostFunction:
    return bounded(elements(count, body, types, result))


def variance(rows: int, length: int, divisor: float) -> str:
    """The variance of x [rows, length] along its last dimension."""
    x, s = f"tensor<{rows}x{length}xf32>", f"tensor<{rows}xf32>"
    lines = [
        "  %zero = arith.constant 0.0 : f32", f"  %n = arith.constant {float(length)} : f32",
        f"  %d = arith.constant {divisor} : f32", f"  %es = tensor.empty() : {s}",
        f"  %f = linalg.fill ins(%zero : f32) outs(%es : {s}) -> {s}",
        generic("t", "a, b", [("%x", x, "a, b")], ("%f", s, "a"), "%y = arith.addf %x0, %o : f32"),
        generic("m", "a", [("%t", s, "a")], ("%es", s, "a"), "%y = arith.divf %x0, %n : f32"),
        generic("q", "a, b", [("%x", x, "a, b"), ("%m", s, "a")], ("%f", s, "a"),
                "%c = arith.subf %x0, %x1 : f32\n    %p = arith.mulf %c, %c : f32\n    %y = arith.addf %p, %o : f32"),
        generic("r", "a", [("%q", s, "a")], ("%es", s, "a"), "%y = arith.divf %x0, %d : f32"),
    ]  # fmt: skip
    return kernel("reduction_0", "reduction", {"x": x}, s, "\n".join(lines))


@pytest.mark.parametrize("mean, within", [(0.0, 2e-4), (30.0, 5e-3), (1000.0, 0.2)])
def test_a_variance_far_from_zero_is_judged_by_its_own_size(mean, within):
    n = 8195
    x = (np.random.default_rng(0).standard_normal((5, n)) + mean).astype(np.float32)
    result, bound = bounded(variance(5, n, n - 1.0))(x)
    exact = x.astype(np.float64).var(1, ddof=1)
    assert (bound < within * result).all() and not wrong(exact.astype(np.float32), result, bound).any()
    assert within > 1e-3 or wrong(result * np.float32(1 - 1 / n), result, bound).all()  # n for n - 1
    wide = x.astype(np.float64)
    other = ((wide - 0.99 * wide.mean(1, keepdims=True)) ** 2).sum(1) / (n - 1)
    assert mean == 0 or wrong(other.astype(np.float32), result, bound).all()


def total(rows: int, length: int) -> str:
    x, s = f"tensor<{rows}x{length}xf32>", f"tensor<{rows}xf32>"
    body = generic("r", "a, b", [("%x", x, "a, b")], ("%f", s, "a"), "%y = arith.addf %x0, %o : f32")
    lines = ["  %zero = arith.constant 0.0 : f32", f"  %e = tensor.empty() : {s}",
             f"  %f = linalg.fill ins(%zero : f32) outs(%e : {s}) -> {s}", body]  # fmt: skip
    return kernel("reduction_0", "reduction", {"x": x}, s, "\n".join(lines))


def test_sums_may_be_taken_in_any_order():
    """Of random terms, of terms that are alike, which drift, and of a large one at either end."""
    n, rng = 20011, np.random.default_rng(0)
    rows = [rng.standard_normal(n), rng.random(n) + 1, np.full(n, 0.1), np.full(n, 1 / 3), np.linspace(-1, 1, n)]
    rows += [np.r_[1e6, rng.random(n - 1)], np.r_[rng.random(n - 1), 1e6], np.resize([0.1, 0.7], n)]
    x = np.array(rows, np.float32)
    result, bound = bounded(total(len(x), n))(x)
    others = [x[:, ::-1].cumsum(1)[:, -1], x.sum(1), rng.permuted(x, axis=1).cumsum(1)[:, -1]]
    others.append(np.array([sum((np.add.accumulate(r[k::32])[-1] for k in range(32)), np.float32(0)) for r in x]))
    others.append(x.astype(np.float64).sum(1).astype(np.float32))
    for other in others:
        assert other.dtype == np.float32 and not wrong(other, result, bound).any()
    assert (bound[:2] < 6e-5 * np.abs(x[:2]).sum(1)).all()
    lost = x.astype(np.float64).sum(1) - x[:, 7]
    assert wrong(lost.astype(np.float32), result, bound)[[0, 1]].all()


def test_products_of_f64_may_be_contracted():
    """A part of a complex product, with either of its products fused: rounded once, where f64 shows no rounding."""
    body = """%p = arith.mulf %x0, %x1 : f64
    %q = arith.mulf %x1, %x2 : f64
    %y = arith.subf %p, %q : f64"""
    x = np.random.default_rng(0).standard_normal((3, 200, 3))
    x[2, :50] = x[0, :50]  # only what is rounded is left
    run = of_elements(200, body, ("f64",) * 3, "f64")
    result, bound = run(*x)
    a, b, c = (np.vectorize(Fraction, otypes=[object])(v) for v in x)
    rounded = np.vectorize(lambda v: Fraction(float(v)), otypes=[object])
    for fused in ((a * b - rounded(b * c)).astype(float), (rounded(a * b) - b * c).astype(float)):
        assert (fused != result).any() and not wrong(fused, result, bound).any()
    assert (bound < 4e-16 * (np.abs(x[0] * x[1]) + np.abs(x[1] * x[2]))).all()
    assert wrong(x[0] * x[1] * (1 + 1e-14) - x[1] * x[2], result, bound).mean() > 0.9
    whole = np.random.default_rng(1).integers(-9, 9, x.shape).astype(np.float64)  # whose products are exact
    assert not run(*whole)[1].any()


SURE = {  # what %y is made of, a column each of %x0 and %x1, and whether its value is sure
    "a test for NaN": (
        """%p = arith.mulf %x0, %x1 : T
    %c = arith.cmpf uno, %p, %p : T
    %z = arith.constant 7.0 : T
    %y = arith.select %c, %z, %p : T""", [1.1, 3.3, NAN], [1.7, -0.9, 1.0], [1e-6, 1e-6, 0.0],
    ),
    "a quotient of equal numbers": (
        """%q = arith.divf %x0, %x1 : T
    %y = math.trunc %q : T""", [1.1, 3.5, 7.0], [1.1, 0.5, 2.5], [0.0, 0.0, 0.0],
    ),
    "a remainder": ("%y = arith.remf %x0, %x1 : T", [7.25, 1e30, -5.5], [1.1, 3.0, 0.3], [0.0, 0.0, 0.0]),
    "a remainder of what was rounded": (
        """%p = arith.mulf %x0, %x0 : T
    %y = arith.remf %p, %x1 : T""", [1.1, 3.3, 3.0], [1.0, 2.7, 4.5], [1e-6, 1e-5, 0.0],
    ),
    "a remainder of what may be a multiple": (
        """%c = arith.constant 3.0 : T
    %p = arith.mulf %x1, %c : T
    %y = arith.remf %p, %x1 : T""", [0.0, 0.0, 0.0], [0.7, -0.7, 2.0], [INF, INF, 0.0],
    ),
    "a division by 0": (
        """%q = arith.divf %x0, %x1 : T
    %c = arith.constant 0.3 : T
    %y = arith.mulf %q, %c : T""", [1.0, -2.0, 0.0], [0.0, -0.0, 0.0], [0.0, 0.0, 0.0],
    ),
    "a function that is 0 at 0": (
        """%n = math.roundeven %x0 : T
    %d = arith.subf %x0, %n : T
    %c = arith.constant 3.14159 : T
    %p = arith.mulf %d, %c : T
    %s = math.sin %p : T
    %z = arith.constant 0.0 : T
    %b = arith.cmpf oeq, %s, %z : T
    %y = arith.select %b, %x1, %s : T""", [-3.0, 2.0, 0.0], [5.0, 6.0, -7.0], [0.0, 0.0, 0.0],
    ),
    "a power": (
        """%p = arith.mulf %x0, %x0 : T
    %y = math.powf %p, %x1 : T""", [1.1, 0.3, 2.0], [1.5, -2.5, 0.0], [1e-5, 1e-3, 1e-5],
    ),
    "a power of what may be 0": (
        """%p = arith.mulf %x0, %x0 : T
    %q = arith.mulf %x1, %x1 : T
    %d = arith.subf %p, %q : T
    %y = math.powf %d, %x1 : T""", [0.7, 2.1, 1.1], [0.7, 1.1, 1.5], [INF, 1e-5, 0.0],
    ),
    "an angle": (
        """%p = arith.mulf %x0, %x0 : T
    %y = math.atan2 %p, %x1 : T""", [1.1, 0.3, 0.1], [1.5, -2.5, -1e3], [1e-5, 1e-5, 1e-5],
    ),
    "integers as floats": (
        """%i = arith.fptosi %x0 : T to i64
    %f = arith.sitofp %i : i64 to T
    %b = arith.cmpf oeq, %f, %x0 : T
    %y = arith.select %b, %f, %x1 : T""", [4.0, -3.0, 9e6], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("type_, dtype", [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("name", SURE)
def test_what_is_sure_has_a_bound(name, type_, dtype):
    body, x, y, most = SURE[name]
    arrays = (np.array([column], dtype) for column in (x, y))
    _, bound = of_elements(1, body.replace("T", type_), (type_, type_), type_)(*arrays)
    assert ((bound == INF) == (np.array(most) == INF)).all() and (bound <= most).all()


def test_sums_of_f64_may_be_taken_in_any_order():
    n, rng = 20011, np.random.default_rng(0)
    x = np.array([rng.standard_normal(n), rng.random(n) + 1, np.full(n, 0.1), np.full(n, 1 / 3)])
    result, bound = bounded(total(len(x), n).replace("f32", "f64"))(x)
    for other in (x[:, ::-1].cumsum(1)[:, -1], x.sum(1), np.array([math.fsum(row) for row in x])):
        assert not wrong(other, result, bound).any()
    assert (bound < 2e-12 * np.abs(x).sum(1)).all() and wrong(result - x[:, 7], result, bound).all()


def test_a_rounding_to_16_bits_in_between_is_to_be_done():
    body = """%s = arith.truncf %x0 : f32 to bf16
    %t = arith.addf %s, %x1 : bf16
    %y = arith.addf %t, %x1 : bf16"""
    function = of_elements(50, body, ("f32", "bf16"), "bf16")
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((50, 3)).astype(np.float32), rng.standard_normal((50, 3)).astype(ml_dtypes.bfloat16)
    right, bound = function(x, z)
    cut = (x.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(ml_dtypes.bfloat16)
    found = cut + z + z
    assert (wrong(found, right, bound) == (found != right)).all() and (found != right).mean() > 0.2
    assert (bound == 0).all()
    third = np.full((50, 3), (1 + 2.0**-8) / 3, np.float32)  # times 3 it is a tie but for its rounding
    text = body.replace("%x0", "%a").replace(
        "%s =", "%c = arith.constant 3.0 : f32\n%a = arith.mulf %x0, %c : f32\n%s ="
    )
    assert (of_elements(50, text, ("f32", "bf16"), "bf16")(third, z)[1] > 0).all()


def test_rows_that_are_written_have_their_own_bounds():
    """What a map computes for them overflows in a fused multiply-add only where that is not what is written."""
    rows, pool = "tensor<4x3xf32>", "tensor<9x3xf32>"
    inputs = [(f"%g{i}", rows, "a, b") for i in range(3)]
    body = "%t = arith.mulf %x0, %x1 : f32\n    %y = arith.addf %t, %x2 : f32"
    lines = [f"  %e = tensor.empty() : {rows}", generic("m", "a, b", inputs, ("%e", rows, "a, b"), body),
             "  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(true)",
             f"      ins(%m, %i : {rows}, tensor<4x1xi64>) outs(%p : {pool}) {{",
             "  ^bb0(%a: f32, %b: f32):\n    tm_tensor.yield %a : f32\n  } -> " + pool]  # fmt: skip
    arguments = {**{v[1:]: t for v, t, _ in inputs}, "i": "tensor<4x1xi64>", "p": pool}
    function = bounded(kernel("bundle_0", "bundle", arguments, pool, "\n".join(lines)))
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((3, 4, 3)).astype(np.float32)
    a[1], b[1], c[1] = [3e38, 1, 1], [-4, 1, 1], [np.inf, 1, np.nan]
    before = rng.standard_normal((9, 3)).astype(np.float32)
    result, bound = function(a, b, c, np.array([[8], [0], [-1], [3]]), before)
    assert np.isnan(result[0]).tolist() == [True, False, True] and (bound[0] == [np.inf, 0, 0]).all()
    assert (0 < bound[[8, 3]]).all() and (bound[[8, 3]] < 1e-6).all()
    assert (bound[[1, 2, 4, 5, 6, 7]] == 0).all() and np.array_equal(
        result[[1, 2, 4, 5, 6, 7]], before[[1, 2, 4, 5, 6, 7]]
    )


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_no_wave_is_beyond_1(name):
    function = of_elements(3, f"%d = arith.mulf %x0, %x1 : f32\n    %y = math.{name} %d : f32", ("f32", "f32"), "f32")
    x = np.array([[1e17, -3e30, 5.0], [2e8, 1e38, 0.1], [np.inf, np.nan, 1e30]], np.float32)
    right, bound = function(x, np.full((3, 3), np.float32(1.3)))
    assert (bound[:2] < 2.1).all() and wrong(np.full((3, 3), np.float32(3.5)), right, bound)[:2].all()
    assert wrong(right + np.float32(0.5), right, bound)[[0, 1], [2, 2]].all()
    assert np.isnan(right[2, :2]).all() and (bound[2, :2] == 0).all()


def test_an_exponential_of_an_infinity_is_certain():
    x = np.array([[-np.inf, np.inf, -1.0]], np.float32)
    right, bound = of_elements(1, "%y = math.exp %x0 : f32", ("f32",), "f32")(x)
    assert right[0, :2].tolist() == [0, np.inf] and (bound < 1e-6).all()


def test_what_is_cut_off_leans_and_what_is_rounded_does_not():
    rng = np.random.default_rng(0)
    weights, values = rng.random((200, 60)), rng.standard_normal((60, 8))
    exact = weights @ values
    bound = (2.0**-9 * weights) @ np.abs(values) + 2.0**-9 * np.abs(exact)
    step = 2.0 ** (np.floor(np.log2(weights)) - 7)
    for round_, leans in ((np.floor, True), (np.ceil, True), (np.round, False)):
        found = ((round_(weights / step) * step) @ values).astype(ml_dtypes.bfloat16)
        expected = exact.astype(ml_dtypes.bfloat16)
        assert not wrong(found, expected, 2 * bound).any()
        assert bool(lean(found, expected, 2 * bound, None)) == leans
        assert lean(found, expected, 2 * bound, np.arange(200)[:, None] < [30] * 8) == 0  # too few rows
    assert lean(expected, expected, bound, None) == 0
