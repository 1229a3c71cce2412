"""Conversions of pairs of floats, approximate functions, permutations of bytes and special registers, against NumPy;
benchmarks/agreement.py runs them on a GPU too."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirc.errors import MlircError
from support.kernels.instructions import BF16, E4M3, E5M2, at, load, run, store

N = 256
NAMES = {"f8E4M3FN": E4M3, "f8E5M2": E5M2, "f16": np.float16, "bf16": BF16}


def floats(seed: int, low: int = -30, high: int = 20) -> np.ndarray:
    """f32 of both signs over many exponents, halves between neighbours, zeros, infinities and NaN."""
    rng = np.random.default_rng(seed)
    x = (rng.uniform(1, 2, N) * 2.0 ** rng.integers(low, high, N) * rng.choice([-1, 1], N)).astype(np.float32)
    x[:12] = [0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 57344, 61440, 65520, 3e38]
    x[12:24] = 1 + np.arange(12, dtype=np.float32) / 64  # halves of an ulp of E4M3 and E5M2
    return x


def packed(expected: np.ndarray) -> np.ndarray:
    """[N, 2] of any type as what a GPU stores: the first element in the lower half."""
    return np.ascontiguousarray(expected).view(f"i{expected.itemsize * 2}").reshape(-1)


def saturated(x: np.ndarray, dtype) -> np.ndarray:
    most = np.float32(ml_dtypes.finfo(dtype).max)
    return np.where(np.isnan(x), x, np.clip(x, -most, most)).astype(dtype)


def same_bits(found: np.ndarray, expected: np.ndarray, dtype) -> None:
    """Bit for bit, where NaN is all bits but the sign."""
    plain = f"u{np.dtype(dtype).itemsize}"
    nan = np.isnan(expected.view(dtype).astype(np.float32))
    right = np.where(nan, np.iinfo(plain).max >> 1, expected.view(plain))
    np.testing.assert_array_equal(found.view(plain), right)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("name", ["f8E4M3FN", "f8E5M2"])
def test_f32_to_f8(name, relu):
    a, b, y = floats(0), floats(1)[::-1].copy(), np.zeros(N, np.int16)
    flags = "relu = true, " if relu else ""
    body = load("a", "%p0", "%t", "f32") + load("bb", "%p1", "%t", "f32")
    body += f"%r = nvvm.convert.f32x2.to.f8x2 %a, %bb {{{flags}rnd = #nvvm.fp_rnd_mode<rn>, "
    body += f"sat = #nvvm.sat_mode<satfinite>}} : i16 ({name})\n" + store("%r", "%p2", "%t", "i16")
    assert not run(body, a, b, y, threads=N)
    given = [
        np.where((x > 0) | np.isnan(x), x, np.float32(0)) if relu else x for x in (b, a)
    ]  # the second one is the lower half
    same_bits(y, packed(saturated(np.stack(given, -1), NAMES[name])), NAMES[name])


@pytest.mark.parametrize("name", ["f8E4M3FN", "f8E5M2"])
def test_f16_to_f8_and_back(name):
    with np.errstate(over="ignore"):
        x = floats(2, -20, 15).astype(np.float16).reshape(-1, 2)
    x, y, z = np.concatenate([x, x[::-1]]), np.zeros(N, np.int16), np.zeros(N, np.int32)
    body = load("x", "%p0", "%t", "vector<2xf16>")
    body += f"%r = nvvm.convert.f16x2.to.f8x2 %x : vector<2xf16> -> i16 ({name})\n" + store("%r", "%p1", "%t", "i16")
    body += "%pair = llvm.bitcast %r : i16 to vector<2xi8>\n"
    body += f"%w = nvvm.convert.f8x2.to.f16x2 %pair : vector<2xi8> ({name}) -> vector<2xf16>\n"
    body += store("%w", "%p2", "%t", "vector<2xf16>")
    assert not run(body, packed(x), y, z, threads=N)
    eight = saturated(x.astype(np.float32), NAMES[name])
    same_bits(y, packed(eight), NAMES[name])
    same_bits(z, packed(eight.astype(np.float16)), np.float16)


@pytest.mark.parametrize("rounding", ["rn", "rz"])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_f32_to_pairs_of_16_bits(name, rounding):
    a, b, y = floats(3), floats(4), np.zeros(N, np.int32)
    body = load("a", "%p0", "%t", "f32") + load("bb", "%p1", "%t", "f32")
    body += f"%r = nvvm.convert.f32x2.to.{name}x2 %a, %bb {{rnd = #nvvm.fp_rnd_mode<{rounding}>}} : vector<2x{name}>\n"
    assert not run(body + store("%r", "%p2", "%t", f"vector<2x{name}>"), a, b, y, threads=N)
    right = np.stack([b, a], -1)
    with np.errstate(over="ignore"):
        near = right.astype(NAMES[name])
    if rounding == "rz":
        words = np.ascontiguousarray(near).view(np.int16)
        words -= np.abs(near.astype(np.float32)) > np.abs(right)
        near = words.view(NAMES[name])
    same_bits(y, packed(near), NAMES[name])


@pytest.mark.parametrize("rounding", ["rna", "rn", "rz"])
def test_f32_to_tf32(rounding):
    x, y = floats(5), np.zeros(N, np.int32)
    x[24:40] = (np.float32(1).view(np.uint32) + np.arange(16, dtype=np.uint32) * 0x800).view(np.float32)
    body = (
        load("x", "%p0", "%t", "f32") + f"%r = nvvm.convert.float.to.tf32 %x {{rnd = #nvvm.fp_rnd_mode<{rounding}>}}\n"
    )
    assert not run(body + store("%r", "%p1", "%t"), x, y, threads=N)
    found, finite = y.view(np.float32), np.isfinite(x)
    low = (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    step = (low.view(np.uint32) + np.uint32(0x2000)).view(np.float32)
    with np.errstate(invalid="ignore"):
        up = np.abs(x.astype(np.float64) - low) / np.abs(step.astype(np.float64) - low)
    odd = low.view(np.uint32) >> 13 & 1 == 1
    away = {"rz": np.zeros(N, bool), "rna": up >= 0.5, "rn": (up > 0.5) | ((up == 0.5) & odd)}[rounding]
    np.testing.assert_array_equal(found[finite], np.where(away, step, low)[finite])
    assert (np.isfinite(found) == finite).all()
    assert y[4] == (0x7FC00000 if rounding == "rna" else 0x7FFFE000)  # NaN


FUNCTIONS = {
    "ex2": (np.exp2, ""), "log2": (np.log2, ""), "sin": (np.sin, ""), "cos": (np.cos, ""), "sqrt.approx": (np.sqrt, ""),
    "rsqrt": (lambda x: 1 / np.sqrt(x), ""), "rcp.approx.ftz.f": (lambda x: 1 / x, ""),
    "sqrt": (np.sqrt, "{rnd = #nvvm.fp_rnd_mode<rn>}"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_approximate_functions(name):
    f, flags = FUNCTIONS[name]
    x, y = np.random.default_rng(6).uniform(0.25, 3, N).astype(np.float32), np.zeros(N, np.float32)
    body = load("x", "%p0", "%t", "f32") + f"%r = nvvm.{name} %x {flags} : f32\n" + store("%r", "%p1", "%t", "f32")
    assert not run(body, x, y, threads=N)
    np.testing.assert_allclose(y, f(x.astype(np.float64)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ftz", [False, True])
def test_flushing_to_zero(ftz):
    x, y = np.full(N, -127.5, np.float32), np.zeros(N, np.float32)
    flags = "{ftz = true} " if ftz else ""
    body = load("x", "%p0", "%t", "f32") + f"%r = nvvm.ex2 %x {flags}: f32\n" + store("%r", "%p1", "%t", "f32")
    assert not run(body, x, y, threads=N)
    assert (y == 0).all() if ftz else (y > 0).all()


def byte_of(word: int, i: int) -> int:
    return word >> (8 * i) & 255


def permuted(a: int, b: int, c: int, mode: str) -> int:
    """PTX ISA, "prmt", byte by byte."""
    pool, total, n = a | b << 32, 0, c & 3
    for i in range(4):
        if mode == "default":
            nibble = c >> (4 * i) & 15
            byte = byte_of(pool, nibble & 7)
            byte = (255 if byte & 128 else 0) if nibble & 8 else byte
        else:
            chosen = {"f4e": n + i, "b4e": (n - i) % 8, "rc8": n, "ecl": max(n, i), "ecr": min(n, i),
                      "rc16": 2 * (n & 1) + (i & 1)}[mode]  # fmt: skip
            byte = byte_of(pool, chosen)
        total |= byte << (8 * i)
    return total


@pytest.mark.parametrize("mode", ["default", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])
def test_prmt(mode):
    rng = np.random.default_rng(7)
    a, b, c = (rng.integers(0, 1 << 32, N, dtype=np.uint64).astype(np.uint32).view(np.int32) for _ in range(3))
    y = np.zeros(N, np.int32)
    body = "".join(load(x, f"%p{i}", "%t") for i, x in enumerate(("aa", "bb", "cc")))
    two = mode in ("default", "f4e", "b4e")
    body += f"%r = nvvm.prmt #nvvm.permute_mode<{mode}> %cc, {'%aa, %bb' if two else '%aa'} : i32\n"
    assert not run(body + store("%r", "%p3", "%t"), a, b, c, y, threads=N)
    words = [x.view(np.uint32).tolist() for x in (a, b, c)]
    assert y.view(np.uint32).tolist() == [permuted(p, q, r, mode) for p, q, r in zip(*words, strict=True)]


def test_movmatrix_transposes_across_a_warp():
    x, y = np.arange(64, dtype=np.int16).view(np.int32), np.zeros(32, np.int32)
    body = load("x", "%p0", "%t") + "%r = nvvm.movmatrix %x {shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>, "
    body += "eltType = #nvvm.ld_st_matrix_elt_type<b16>} : i32\n" + store("%r", "%p1", "%t")
    assert not run(body, x, y)
    np.testing.assert_array_equal(y.view(np.int16).reshape(8, 8), np.arange(64).reshape(8, 8).T)
    half = "%few = arith.cmpi slt, %t, %c16 : i32\nscf.if %few {\n" + body + "}\n"
    assert run(half, x, y) == {"divergent warp"}


@pytest.mark.parametrize("way, signs", [(4, ("signed", "unsigned")), (2, ("unsigned", "signed"))])
def test_dot_products_of_bytes(way, signs):
    rng = np.random.default_rng(8)
    a, b, c = (rng.integers(-(1 << 30), 1 << 30, N).astype(np.int32) for _ in range(3))
    y = np.zeros(N, np.int32)
    t = "vector<4xi8>" if way == 4 else "vector<2xi16>"
    body = "".join(load(x, f"%p{i}", "%t") for i, x in enumerate(("aa", "bb", "cc")))
    body += f"%v = llvm.bitcast %aa : i32 to {t}\n%w = llvm.bitcast %bb : i32 to vector<4xi8>\n"
    high = "" if way == 4 else " {b_hi = true}"
    body += f"%r = nvvm.dot.accumulate.{way}way %v <{signs[0]}>, %w <{signs[1]}>, %cc{high} : {t}, vector<4xi8>\n"
    assert not run(body + store("%r", "%p3", "%t"), a, b, c, y, threads=N)
    left, right = (
        x.view(f"{'i' if sign == 'signed' else 'u'}{n}").reshape(N, -1).astype(np.int64)
        for x, sign, n in ((a, signs[0], 4 // way), (b, signs[1], 1))
    )
    right = right if way == 4 else right[:, 2:]
    np.testing.assert_array_equal(y, (c + (left * right).sum(axis=1)).astype(np.int32))


def test_special_registers():
    y = np.zeros((3, N), np.int32)
    body = ""
    for i, name in enumerate(("warpsize", "nwarpid", "dynamic.smem.size")):
        body += f"%o{i} = arith.constant {i * N} : i32\n%i{i} = arith.addi %t, %o{i} : i32\n"
        body += f"%v{i} = nvvm.read.ptx.sreg.{name} : i32\n" + store(f"%v{i}", "%p0", f"%i{i}")
    assert not run(body, y, threads=N, smem=768)
    assert (y == np.array([[32], [64], [768]])).all()


@pytest.mark.parametrize(
    "line, says",
    [
        ("%r = nvvm.sqrt %v {rnd = #nvvm.fp_rnd_mode<rz>} : f32", "rn only"),
        ("%r = nvvm.convert.f32x2.to.bf16x2 %v, %v, %t {rnd = #nvvm.fp_rnd_mode<rs>} : vector<2xbf16>", "random bits"),
    ],
)
def test_what_is_not_there_says_so(line, says):
    with pytest.raises(MlircError, match=says):
        run(f"%v = llvm.mlir.constant(1.0 : f32) : f32\n{line}\n" + at("x", "%p0", "%t"), np.zeros(32, np.int32))
