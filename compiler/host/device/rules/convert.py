"""Conversions between pairs of floats (`cvt` with packed operands), to TF32, and permutations of bytes.

PTX ISA, "Data Movement and Conversion Instructions: cvt", "prmt"."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from mlirc.host.device.attributes import flag, word
from mlirc.host.device.declare import pure
from mlirc.host.device.numbers import dtype_of, together, toward_zero, vector_shape
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir


def narrow(x: np.ndarray, dtype: np.dtype, saturate: bool, relu: bool, cut: bool = False) -> np.ndarray:
    """Floats as a narrower type: to the nearest even, or `cut`; `saturate`: what is too large is the largest finite
    number; `relu`: negative numbers are zero. NaN is the one that `cvt` makes: all bits but the sign."""
    wide = x.astype(np.float32)
    nan = np.isnan(wide)
    if relu:
        wide = np.where(wide > 0, wide, np.float32(0))
    if saturate:
        most = np.float32(ml_dtypes.finfo(dtype).max)
        wide = np.clip(wide, -most, most)
    found = toward_zero(wide, dtype) if cut else wide.astype(dtype)
    words = np.ascontiguousarray(found).view(f"u{dtype.itemsize}")
    return np.where(nan, words.dtype.type(np.iinfo(words.dtype).max >> 1), words).view(dtype)


def _rounding(tr: Translator, op) -> bool:
    """Whether a conversion cuts; raises MlircError for roundings other than to the nearest even and towards zero."""
    mode = word(op, "rnd") or "none"
    if mode not in ("none", "rn", "rz"):
        raise tr.refused(op, f"rounding {mode} is not supported: rn or rz")
    return mode == "rz"


@pure("nvvm.convert.f32x2.to.f16x2", "nvvm.convert.f32x2.to.bf16x2")
def _pair(tr: Translator, op):
    if len(op.operands) != 2:
        raise tr.refused(op, "with random bits is not supported")
    dtype = dtype_of(op.results[0].type)
    how = word(op, "sat") == "satfinite", flag(op, "relu"), _rounding(tr, op)
    return lambda high, low: narrow(np.stack(together(low, high), axis=-1), dtype, *how)


@pure("nvvm.convert.f32x2.to.f8x2", "nvvm.convert.f16x2.to.f8x2", "nvvm.convert.bf16x2.to.f8x2")
def _to_f8(tr: Translator, op):
    dtype, relu = dtype_of(ir.TypeAttr(op.attributes["dstTy"]).value), flag(op, "relu")
    packed = not vector_shape(op.results[0].type)
    _rounding(tr, op)

    def convert(high, low=None):  # the first one is the upper half
        pair = high if low is None else np.stack(together(low, high), axis=-1)
        words = np.ascontiguousarray(narrow(pair, dtype, True, relu)).view(np.int8)
        return words.view(np.int16)[..., 0] if packed else words

    return convert


@pure("nvvm.convert.f8x2.to.f16x2", "nvvm.convert.f8x2.to.bf16x2")
def _from_f8(tr: Translator, op):
    if len(op.operands) != 1:
        raise tr.refused(op, "with a scale is not supported")
    given, dtype = dtype_of(ir.TypeAttr(op.attributes["srcType"]).value), dtype_of(op.results[0].type)
    relu = flag(op, "relu")
    return lambda x: narrow(np.ascontiguousarray(x).view(given), dtype, False, relu)


@pure("nvvm.convert.float.to.tf32")
def _to_tf32(tr: Translator, op):
    relu, mode = flag(op, "relu"), word(op, "rnd") or "rna"
    if mode not in ("rn", "rna", "rz"):
        raise tr.refused(op, f"rounding {mode} is not supported: rn, rna or rz")

    def convert(x):
        x = np.ascontiguousarray(np.maximum(x, np.float32(0)) + np.float32(0) if relu else x)
        bits = x.view(np.uint32).astype(np.int64)
        half = {"rz": 0, "rna": 0x1000, "rn": 0xFFF}[mode] + (bits >> 13 & 1 if mode == "rn" else 0)
        rounded = bits + half & 0xFFFFE000
        special = np.where(np.isnan(x) & (mode != "rna"), 0x7FFFE000, bits)
        return np.where(np.isfinite(x), rounded, special).astype(np.uint32).view(np.int32)

    return convert


# -- bytes


_MODES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "f4e": lambda n, i: (n + i) & 7,
    "b4e": lambda n, i: (n - i) & 7,
    "rc8": lambda n, i: n,
    "ecl": lambda n, i: np.maximum(n, i),
    "ecr": lambda n, i: np.minimum(n, i),
    "rc16": lambda n, i: (n & 1) * 2 + (i & 1),
}


@pure("nvvm.prmt")
def _prmt(tr: Translator, op):
    mode = word(op, "mode")

    def permute(low, *rest):
        high = rest[0] if len(rest) > 1 else low
        a, b, c = (x.view(np.uint32).astype(np.int64) for x in (low, high, rest[-1]))
        pool = a | b << 32
        total = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.int64)
        for i in range(4):
            nibble = c >> (4 * i) & 15 if mode == "default" else _MODES[mode](c & 3, i)
            byte = pool >> (8 * (nibble & 7)) & 255
            if mode == "default":
                byte = np.where(nibble & 8, np.where(byte & 128, 255, 0), byte)  # the sign, eight times
            total |= byte << (8 * i)
        return total.astype(np.uint32).view(np.int32)

    return permute


@pure("nvvm.dot.accumulate.4way", "nvvm.dot.accumulate.2way")
def _dot(tr: Translator, op):
    count = 4 if op.name.endswith("4way") else 2
    signs = [word(op, n) == "signed" for n in ("a_type", "b_type")]
    high = count == 2 and flag(op, "b_hi")

    def dot(a, b, c):
        left, right = (
            np.ascontiguousarray(x).view(f"{'i' if sign else 'u'}{x.itemsize}").astype(np.int64)
            for x, sign in zip((a, b), signs, strict=True)
        )
        right = right[..., 2:] if high else right[..., :count]
        return (c.astype(np.int64) + (left * right).sum(axis=-1)).astype(np.int32)

    return dot
