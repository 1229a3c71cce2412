"""What tensor cores make of their operands, to the last bit: the host device against exact arithmetic, and (through
benchmarks/agreement.py, which runs these kernels too) against a GPU."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mlirc.device.direct import run_function
from mlirc.device.tensor_cores import BITS, BITS_FP8_WGMMA, multiply, multiply_add
from support.kernels.instructions import BF16, E4M3, E5M2, fragments, load, module, store

TILES = 24  # one per block

MMA = [("bf16", BF16, 8), ("bf16", BF16, 16), ("f16", np.float16, 8), ("f16", np.float16, 16),
       ("tf32", np.float32, 4), ("tf32", np.float32, 8), ("e4m3", E4M3, 32), ("e5m2", E5M2, 32)]  # fmt: skip


def spread(rng: np.random.Generator, shape: tuple[int, ...], dtype, octaves: int) -> np.ndarray:
    """Numbers of both signs whose exponents differ by up to so many octaves; some zeros."""
    x = rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-octaves, 1, shape) * rng.choice([-1, 1], shape)
    return np.where(rng.random(shape) < 0.05, 0, x).astype(np.float32).astype(dtype)


def operands(name: str, dtype, k: int, octaves: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = (spread(rng, s, dtype, octaves) for s in ((TILES, 16, k), (TILES, k, 8)))
    return [a, b, spread(rng, (TILES, 16, 8), np.float32, 2 * octaves)]


def kernel(name: str, per: int, k: int, half: bool) -> str:
    """Every block: one tile's mma.sync, with f32 accumulators, or f16 ones (`half`)."""
    counts = {"a": k // per // 2, "b": k // per // 4, "z": 2 if half else 4}
    element = "vector<2xf16>" if half else "f32"
    body = "%first = arith.muli %b, %c32 : i32\n%lane = arith.addi %first, %t : i32\n"
    for number, (which, n) in enumerate(counts.items()):
        for i in range(n):
            body += f"%{which}n{i} = arith.constant {n} : i32\n%{which}o{i} = arith.constant {i} : i32\n"
            body += f"%{which}m{i} = arith.muli %lane, %{which}n{i} : i32\n"
            body += f"%{which}i{i} = arith.addi %{which}m{i}, %{which}o{i} : i32\n"
            body += load(f"{which}{i}", f"%p{number}", f"%{which}i{i}", element if which == "z" else "i32")
    packed = name == "f16"  # which travels as vectors
    if packed:
        for which in "ab":
            for i in range(counts[which]):
                body += f"%v{which}{i} = llvm.bitcast %{which}{i} : i32 to vector<2xf16>\n"
    listed = {w: ", ".join(f"%{'v' if packed and w != 'z' else ''}{w}{i}" for i in range(n)) for w, n in counts.items()}
    struct = f"!llvm.struct<({', '.join([element] * counts['z'])})>"
    kinds = "" if packed else "".join(f"multiplicand{x}PtxType = #nvvm.mma_type<{name}>, " for x in "AB")
    one = "vector<2xf16>" if packed else "i32"
    body += (
        f"%d = nvvm.mma.sync A[{listed['a']}] B[{listed['b']}] C[{listed['z']}] {{layoutA = #nvvm.mma_layout<row>, "
        f"layoutB = #nvvm.mma_layout<col>, {kinds}shape = #nvvm.shape<m = 16, n = 8, k = {k}>}} : "
        f"({one}, {one}, {element}) -> {struct}\n"
    )
    for i in range(counts["z"]):
        body += f"%d{i} = llvm.extractvalue %d[{i}] : {struct}\n" + store(f"%d{i}", "%p3", f"%zi{i}", element)
    return str(module(body, 4))


def run_mma(name: str, dtype, k: int, octaves: int, half: bool = False, seed: int = 0) -> tuple[list, np.ndarray]:
    """The operands, and what the host device makes of them: [tiles, 16, 8]."""
    a, b, c = operands(name, dtype, k, octaves, seed)
    per, out = 4 // a.itemsize, np.float16 if half else np.float32
    c = c.astype(out)
    cut = c.reshape(TILES, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4)  # g, t, row half, j
    registers = [np.stack([fragments(x, per, w) for x in tiles]) for tiles, w in ((a, False), (b, True))]
    d = np.zeros((TILES, 8, 4, 2, 2), out)
    text = kernel(name, per, k, half)
    from mlirc import mlir

    report = run_function(mlir.parse(text), "k", [*registers, np.ascontiguousarray(cut), d], (TILES, 1, 1), (32, 1, 1))
    report.raise_if_bad()
    return [a, b, c], d.transpose(0, 3, 1, 2, 4).reshape(TILES, 16, 8)


def exponent(x: float, lowest: int) -> int:
    return max(math.frexp(x)[1] - 1, lowest)


def one_sum(row: np.ndarray, column: np.ndarray, c: float, lowest: int, bits: int) -> Fraction:
    """The sum of one element, in exact arithmetic, before it becomes a float."""
    terms = [(Fraction(c), exponent(c, -126))] if c else []
    for x, y in zip(row.tolist(), column.tolist(), strict=True):
        if x and y:
            terms.append((Fraction(x) * Fraction(y), exponent(x, lowest) + exponent(y, lowest)))
    if not terms:
        return Fraction(0)
    unit = Fraction(2) ** (max(e for _, e in terms) - bits)
    return sum(int(t / unit) for t, _ in terms) * unit


def cut(x: Fraction, bits: int = 23) -> np.float32:
    """Towards zero to so many bits behind the first."""
    if not x:
        return np.float32(0)
    e = math.floor(math.log2(abs(x)))
    e += (abs(x) >= Fraction(2) ** (e + 1)) - (abs(x) < Fraction(2) ** e)
    unit = Fraction(2) ** (max(e, -126) - bits)
    return np.float32(float(int(x / unit) * unit))


def widened(a: np.ndarray) -> np.ndarray:
    """As f64, of f32 only what TF32 keeps."""
    if a.dtype == np.float32:
        a = (np.ascontiguousarray(a).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return a.astype(np.float64)


LOWEST = {np.dtype(np.float16): -14, np.dtype(E4M3): -6, np.dtype(E5M2): -14}


@pytest.mark.parametrize("octaves", [0, 3, 12])
@pytest.mark.parametrize("name, dtype, k", MMA)
def test_sums_are_cut_where_the_hardware_cuts_them(name, dtype, k, octaves):
    (a, b, c), found = run_mma(name, dtype, k, octaves)
    lowest = LOWEST.get(a.dtype, -126)
    for tile, i, j in [
        (0, 0, 0),
        (1, 7, 3),
        (5, 15, 7),
        (TILES - 1, 8, 1),
        *((t, t % 16, t % 8) for t in range(TILES)),
    ]:
        row, column, start = widened(a[tile, i]), widened(b[tile, :, j]), float(c[tile, i, j])
        if a.itemsize > 1:
            assert found[tile, i, j] == cut(one_sum(row, column, start, lowest, BITS))
            continue
        total, late = 0.0, np.arange(k) % 4 >= 2  # two products of 16-bit numbers and an addition
        for part in (~late, late):
            total = float(cut(one_sum(row[part], column[part], total, lowest, BITS)))
        assert found[tile, i, j] == np.float32(total) + np.float32(start)
    plain = np.matmul(widened(a), widened(b)) + c
    terms = np.matmul(np.abs(widened(a)), np.abs(widened(b))) + np.abs(c)
    assert (np.abs(found - plain) <= terms * k * 2.0**-23).all()


def test_half_accumulators_are_rounded_once():
    (a, b, c), found = run_mma("f16", np.float16, 16, 2, half=True)
    for tile in range(TILES):
        row, column = widened(a[tile, 3]), widened(b[tile, :, 5])
        right = one_sum(row, column, float(c[tile, 3, 5]), -14, BITS)
        assert found[tile, 3, 5] == np.float64(float(right)).astype(np.float16)


def test_fragments_in_vectors_are_multiplied_as_those_in_registers():
    """nvgpu.mma.sync is the same instruction, with half accumulators, too: what is rounded twice differs."""
    a, b, c = operands("f16", np.float16, 16, 2)
    c = c.astype(np.float16)
    a[0, 3], b[0, :, 5], c[0, 3, 5] = 0, 0, 1
    a[0, 3, :2], b[0, :2, 5] = (2.0**-11, 2.0**-12), (1, 2.0**-13)  # a tie of two f16, and what f32 does not hold
    right = multiply(a, b, c, np.dtype(np.float16))
    cut_c = np.ascontiguousarray(c.reshape(TILES, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4))
    registers = [np.stack([fragments(x, 2, w) for x in tiles]) for tiles, w in ((a, False), (b, True))]
    body = "%first = arith.muli %b, %c32 : i32\n%lane = arith.addi %first, %t : i32\n"
    for i, (name, n, shape) in enumerate((("x", 8, "4x2"), ("y", 4, "2x2"), ("z", 4, "2x2"))):
        body += load(name, f"%p{i}", "%lane", f"vector<{n}xf16>")
        body += f"%v{name} = vector.shape_cast %{name} : vector<{n}xf16> to vector<{shape}xf16>\n"
    body += "%d = nvgpu.mma.sync (%vx, %vy, %vz) {mmaShape = [16, 8, 16]} : "
    body += "(vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf16>) -> vector<2x2xf16>\n"
    body += "%flat = vector.shape_cast %d : vector<2x2xf16> to vector<4xf16>\n"
    d = np.zeros((TILES, 8, 4, 2, 2), np.float16)
    text = module(body + store("%flat", "%p3", "%lane", "vector<4xf16>"), 4)
    run_function(text, "k", [*registers, cut_c, d], (TILES, 1, 1), (32, 1, 1)).raise_if_bad()
    found = d.transpose(0, 3, 1, 2, 4).reshape(TILES, 16, 8)
    assert (found == right).all()
    twice = multiply_add(*(x.astype(np.float32) for x in (a, b, c)), (-14, -14)).astype(np.float16)
    assert (found != twice).any()


def test_half_results_of_eight_bit_products_are_not_cut_first():
    rng = np.random.default_rng(4)
    a, b = (spread(rng, s, E5M2, 3).astype(np.float32) for s in ((9, 32), (32, 5)))
    c = spread(rng, (9, 5), np.float16, 3).astype(np.float32)
    found = multiply_add(a, b, c, (-14, -14), BITS_FP8_WGMMA, np.float16)
    for i, j in np.ndindex(9, 5):
        right = one_sum(a[i].astype(float), b[:, j].astype(float), float(c[i, j]), -14, BITS_FP8_WGMMA)
        assert found[i, j] == np.float64(float(right)).astype(np.float16)


@pytest.mark.parametrize("bits", [BITS, BITS_FP8_WGMMA])
def test_subnormal_numbers_zeros_and_what_is_not_finite(bits):
    rng = np.random.default_rng(3)
    a, b = spread(rng, (5, 7), np.float32, 140), spread(rng, (7, 3), np.float32, 3)
    b[0, 0] = 1
    c = spread(rng, (5, 3), np.float32, 140)
    found = multiply_add(a, b, c, (-126, -126), bits)
    for i in range(5):
        for j in range(3):
            right = one_sum(a[i].astype(float), b[:, j].astype(float), float(c[i, j]), -126, bits)
            assert found[i, j] == cut(right, min(bits, 23)) if bits >= 23 else abs(found[i, j]) <= abs(float(right))
    assert (multiply_add(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), np.zeros((2, 2), np.float32),
                         (-126, -126)) == 0).all()  # fmt: skip
    a[1], b[:, 2] = 0, 0  # zeros beside what is not zero
    c[1] = 0
    assert (multiply_add(a, b, c, (-126, -126), bits)[1] == 0).all()
    a[0, 0], b[1, 1] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        found = multiply_add(a, b, c, (-126, -126), bits)
    assert np.isnan(found[:, 1]).all() and np.isinf(found[0, 0]) and np.isnan(found[0, 2])
    assert np.isfinite(found[1:, [0, 2]]).all()


def test_a_small_term_beside_a_large_one_is_lost_and_a_sum_is_not_rounded():
    """Hand-made: 2^-26 beside 1 is cut, twice; in IEEE arithmetic of f64 it would count."""
    a, b = np.array([[1.0, 2.0**-13, 2.0**-13]], np.float32), np.array([[1.0], [2.0**-13], [2.0**-13]], np.float32)
    assert multiply_add(a, b, np.zeros((1, 1), np.float32), (-126, -126))[0, 0] == 1
    a[0, 1] = a[0, 2] = 2.0**-12  # 2^-25 each: kept, and together below an ulp of 1: cut
    assert multiply_add(a, b, np.zeros((1, 1), np.float32), (-126, -126))[0, 0] == 1
    a[0, 1:] = 2.0**-11  # 2^-24 each: together an ulp's half, 2^-23: exactly an ulp
    assert multiply_add(a, b, np.zeros((1, 1), np.float32), (-126, -126))[0, 0] == 1 + 2.0**-23
    assert ml_dtypes.finfo(BF16).bits == 16
