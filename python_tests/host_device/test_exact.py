"""Arithmetic to the last bit: what is contracted is decided at the `gpu` level, PTX says so, and the host device
computes it."""

from __future__ import annotations

import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.backend.ptx import compile_kernel
from mlirc.device import DeviceKernel
from mlirc.device.fma import fma
from mlirc.device.numbers import integers_as, round_once
from mlirc.targets import get_target
from support.devices.gpu_kernel import on_gpu, run_kernel
from support.kernels import exact as exact_kernels

BF16 = np.dtype(ml_dtypes.bfloat16)


def on_host(name: str) -> np.ndarray:
    module, inputs, result = exact_kernels.case(name)
    report = DeviceKernel(module).run([*inputs, result])
    assert report.ok, "\n".join(map(str, report.findings))
    return result


def _nearest(exact: list[Fraction | None], found: np.ndarray) -> None:
    """Every finite number is the nearest to the exact one, of two equally near the even one."""
    words = found.view(f"u{found.itemsize}")
    for e, value, word in zip(exact, found, words, strict=True):
        if e is None or not np.isfinite(float(value)):
            continue
        here = abs(Fraction(float(value)) - e)
        for step in (-1, 1):
            beside = np.array([(int(word) + step) % (1 << 8 * found.itemsize)], dtype=words.dtype).view(found.dtype)
            if np.isfinite(float(beside[0])):
                there = abs(Fraction(float(beside[0])) - e)
                assert here < there or (here == there and not int(word) & 1) or here == 0, (e, value)


@pytest.mark.parametrize("t", exact_kernels.FLOATS)
def test_fma_is_rounded_once(t):
    dtype = np.dtype(exact_kernels.DTYPES[t])
    x, y, z = (exact_kernels.numbers(t, seed) for seed in (5, 6, 7))
    bits = np.finfo(dtype).nmant if t != "bf16" else 7
    x[:40], y[:40] = 1 + 2.0**-bits * np.arange(40) % 1, 1 + 2.0**-1  # sums half way between two numbers, nearly
    z[:40] = 2.0 ** -np.arange(2, 42) if t != "f16" else 2.0**-14
    with np.errstate(all="ignore"):
        found = fma(x, y, z)
    numbers = [[float(v) for v in row] for row in zip(x, y, z, strict=True)]
    exact = [Fraction(a) * Fraction(b) + Fraction(c) if np.isfinite([a, b, c]).all() else None for a, b, c in numbers]
    _nearest(exact, found)
    assert fma(x[:, None], y[None, :3], z[:1, None]).shape == (exact_kernels.COUNT, 3)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_integers_and_doubles_become_bf16_in_one_rounding(dtype):
    top = np.iinfo(dtype).bits - 11
    near = np.array([257 * 2**k + step for k in range(3, top) for step in (-1, 0, 1)], dtype=dtype)
    _nearest([Fraction(int(v)) for v in near], integers_as(near, BF16))
    assert (integers_as(near, BF16) != near.astype(BF16)).any(), "ml_dtypes rounds once, too: use it"
    wide = (1 + 2.0**-8) * (1 + np.array([-1, 0, 1]) * 2.0**-40)
    _nearest([Fraction(v) for v in wide], round_once(wide, BF16))


def test_every_operation_is_one_instruction_that_rounds_once():
    for t in exact_kernels.FLOATS:
        module, _, _ = exact_kernels.case(f"sums_{t}")
        ptx = compile_kernel(module, get_target("sm_90a")).ptx
        assert not re.search(r"\b(add|sub|mul)\.(f|bf)\d", ptx), "ptxas contracts products and sums without .rn"
        found = {op: len(re.findall(rf"\t{op}\.rn\.{t} ", ptx)) for op in ("fma", "mul", "add", "sub")}
        # z * y is the other one of two products; x * y is used twice, where all three roundings stay.
        assert found == {"fma": 6, "mul": 2, "add": 1, "sub": 2}, (t, found)


@pytest.mark.parametrize(
    "flags, fused", [("", 0), (" fastmath<contract>", 1), (" fastmath<fast>", 1), (" fastmath<reassoc>", 0)]
)
def test_flags_mean_the_same_to_both(flags, fused):
    """A kernel written at the `gpu` level is contracted where its operations say so, and nothing else is done to it."""
    lines = (f"$m = arith.mulf %x, %y{flags} : T; $r = arith.addf $m, %z{flags} : T",)
    module = mlir.parse(exact_kernels.text_of("f32", lines))
    ptx = compile_kernel(mlir.parse(str(module)), get_target("sm_90a")).ptx
    assert ptx.count("fma.rn.f32") == fused and ptx.count("add.rn.f32") == 1 - fused
    inputs = [exact_kernels.numbers(v, seed) for seed, v in enumerate(("f32", "f32", "f32", "i32", "i64"))]
    result = np.zeros((1, exact_kernels.COUNT), np.float32)
    DeviceKernel(module).run([*inputs, result])
    x, y, z = inputs[:3]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(result[0], fma(x, y, z) if fused else x * y + z)


def test_minimum_and_maximum_tell_zeros_apart():
    pair = "$v = vector.from_elements %x, %y : vector<2xT>; $r = vector.reduction"
    lines = ("$r = arith.maximumf %x, %y : T", "$r = arith.minnumf %x, %y : T",
             f"{pair} <maximumf>, $v : vector<2xT> into T", f"{pair} <minnumf>, $v : vector<2xT> into T",
             f"{pair} <add>, $v : vector<2xT> into T")  # fmt: skip
    module = mlir.parse(exact_kernels.text_of("f32", lines))
    x, y = np.zeros(exact_kernels.COUNT, np.float32), np.zeros(exact_kernels.COUNT, np.float32)
    x[::2], y[::3] = -0.0, -0.0
    result = np.ones((5, exact_kernels.COUNT), np.float32)
    rest = [exact_kernels.numbers(v, 0) for v in ("f32", "i32", "i64")]
    DeviceKernel(module).run([x, y, *rest, result])
    signs = np.signbit(result)
    for row, expected in ((0, np.signbit(x) & np.signbit(y)), (1, np.signbit(x) | np.signbit(y))):
        np.testing.assert_array_equal(signs[row], expected)
        np.testing.assert_array_equal(signs[row + 2], expected)
    assert not signs[4].any()  # from +0 on


@pytest.mark.parametrize("name", ["sums_f32", "single_bf16", "casts_bf16", "casts_f64", "reductions_f16"])
def test_cases_run(name):
    assert on_host(name).any()


class TestOnGpu:
    pytestmark = on_gpu

    @pytest.mark.parametrize("name", exact_kernels.CASES)
    def test_bits_are_the_same(self, name):
        host = on_host(name)
        module, inputs, card = exact_kernels.case(name)
        run_kernel(module, inputs, [card])
        word = f"u{host.itemsize}"
        same = (host.view(word) == card.view(word)) | (np.isnan(host) & np.isnan(card))
        assert same.all(), [(i, host[i][~s][:3], card[i][~s][:3]) for i, s in enumerate(same) if not s.all()]
