"""What Hopper's tensor cores compute, bit for bit.

One instruction adds all products of a row and a column and the accumulator at once: every product is exact, all terms
are shifted to the largest exponent among them and cut (not rounded) to a number of bits behind the binary point, their
sum is exact, and the result is cut to f32, or rounded to f16. The exponent of a product is the sum of its factors'
exponents, whether or not the product of their mantissas reaches 2. Which number of bits each instruction keeps was
measured on an H200 (benchmarks/results/agreement-h200.md); Xie et al., "MMA-Sim" (arXiv 2511.10909), found the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirc.device.numbers import toward_zero
from mlirc.device.tensor_core_sums import NOTHING, WIDTH, sums

BITS = 25  # kept behind the binary point of the largest term
BITS_FP8_WGMMA = 13  # of wgmma with 8-bit operands, which keeps no more of its result, either
_LOWEST = {"float16": -14, "float8_e5m2": -14, "float8_e4m3fn": -6}  # exponents of subnormal numbers; others -126


def exponents(a: np.ndarray, lowest: int) -> np.ndarray:
    """floor(log2 |a|) of f32 numbers, at least `lowest`; far below all others for zeros."""
    field = (np.ascontiguousarray(a).view(np.int32) >> 23 & 0xFF) - 127
    return np.where(a == 0, np.int32(NOTHING), np.maximum(field, np.int32(lowest)))


def lowest_exponent(dtype: np.dtype) -> int:
    """The exponent of a type's subnormal numbers."""
    return _LOWEST.get(dtype.name, -126)


def _widened(x: np.ndarray) -> np.ndarray:
    """With columns of zeros up to a multiple of WIDTH."""
    return np.pad(x, [(0, 0), (0, 0), (0, -x.shape[-1] % WIDTH)])


def multiply_add(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, lowest: tuple[int, int], bits: int = BITS, out: Any = np.float32
) -> np.ndarray:
    """a [..., m, k] times b [..., k, n] plus c [..., m, n] (all f32, a and b holding what their types can), as one
    instruction does it: f32 or f16. `lowest`: the exponents of subnormal numbers of a's and b's types."""
    shape, n = c.shape, c.shape[-1]
    found = (exponents(a, lowest[0]), exponents(b, lowest[1]), exponents(c, -126 if out == np.float32 else -14))
    tiles = [x.reshape(-1, *x.shape[-2:]) for x in (a, b, c, *found)]
    if n % WIDTH:
        tiles = [x if i % 3 == 0 else _widened(x) for i, x in enumerate(tiles)]
    total = sums(tiles[0], tiles[1], tiles[2], tuple(tiles[3:]), bits)[..., :n].reshape(shape)
    if bits < 23 and out == np.float32:  # no more bits of the result either
        unit = np.ldexp(1.0, np.maximum(exponents(toward_zero(total, np.float32), -126), -126) - bits)
        total = np.trunc(total / unit) * unit
    result = toward_zero(total, np.float32) if out == np.float32 else total.astype(out)
    if not (np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(c).all()):
        plain = np.matmul(a, b) + c
        result = np.where(np.isfinite(plain), result, plain.astype(out))
    return result


def multiply_add_fp8(a: np.ndarray, b: np.ndarray, c: np.ndarray, lowest: tuple[int, int]) -> np.ndarray:
    """mma.sync of 8-bit floats, which Hopper has only for wgmma: ptxas makes f16 of them and two products of 16 out of
    32, the even pairs of k first, and adds the accumulator in f32."""
    late = np.arange(a.shape[-1]) % 4 >= 2
    total = np.zeros_like(c)
    for chosen in (~late, late):
        total = multiply_add(a[..., chosen], b[..., chosen, :], total, lowest)
    return total + c


def to_f32(a: np.ndarray) -> np.ndarray:
    """16-bit floats as f32, quickly."""
    if str(a.dtype) == "bfloat16":
        return (np.ascontiguousarray(a).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return a.astype(np.float32)


def tf32(a: np.ndarray) -> np.ndarray:
    """f32 cut to TF32's 10 bits of mantissa, as the tensor cores read it."""
    return (np.ascontiguousarray(a).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def nearest_tf32(a: np.ndarray) -> np.ndarray:
    """f32 rounded to TF32, halves away from zero (`cvt.rna`); what is not finite stays as it is."""
    bits = np.ascontiguousarray(a).view(np.uint32)
    rounded = (bits.astype(np.int64) + 0x1000 & 0xFFFFE000).astype(np.uint32)
    return np.where(np.isfinite(a), rounded, bits).view(np.float32)


def multiply(left: np.ndarray, right: np.ndarray, acc: np.ndarray, out: np.dtype, saturate: bool = False) -> np.ndarray:
    """left [..., m, k] times right [..., k, n] plus acc: integers exactly, floats as the tensor cores do."""
    if left.dtype.kind in "iu":
        total = np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(np.int64) + acc
        if saturate:
            total = np.clip(total, np.iinfo(np.int32).min, np.iinfo(np.int32).max)
        return total.astype(np.int32)
    widen = tf32 if left.dtype == np.float32 else to_f32
    lowest = (lowest_exponent(left.dtype), lowest_exponent(right.dtype))
    a, b, c = widen(left), widen(right), acc.astype(np.float32)
    if left.dtype.itemsize == 1:
        return multiply_add_fp8(a, b, c, lowest).astype(out)
    return multiply_add(a, b, c, lowest, out=out)
