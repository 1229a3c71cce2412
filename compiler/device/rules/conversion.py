"""Conversions (PTX ISA, "Data Movement and Conversion Instructions": cvt, also of pairs and to TF32, and prmt)."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from mlirc.device.attributes import flag, word
from mlirc.device.declare import applied, applied_to_state, pure, rule
from mlirc.device.integer_checks import conversion_step, is_index, wrapped
from mlirc.device.numbers import dtype_of, integers_as, round_once, together, toward_zero, unsigned, vector_shape
from mlirc.device.rules.floating_point import to_nearest
from mlirc.device.translate import Translator
from mlirc.mlir import ir


@rule("arith.sitofp", "arith.uitofp")
def _integer_to_float(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    f = lambda a: integers_as(a, dtype)  # noqa: E731
    if op.name == "arith.uitofp":
        f = lambda a: integers_as(unsigned(a), dtype)  # noqa: E731
    elif dtype_of(op.operands[0].type) == np.bool_:
        f = lambda a: integers_as(-a.astype(np.int8), dtype)  # noqa: E731
    return conversion_step(tr, op, applied(tr, op, f))


@pure("arith.extf", "arith.truncf", "llvm.fptrunc", "llvm.fpext")
def _float_cast(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    to_nearest(tr, op)
    if dtype_of(op.operands[0].type) == np.float64:
        return lambda a: round_once(a, dtype)
    return lambda a: a.astype(dtype)


def _round_to_integer(a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """cvt.rzi: toward zero, saturating; NaN is 0, or, to or from 64 bits, the bits 100...0."""
    info, wide = np.iinfo(dtype), np.trunc(a.astype(np.float64))
    of_nan = info.min if info.min else 1 << (8 * dtype.itemsize - 1)
    of_nan = of_nan if 8 in (dtype.itemsize, a.dtype.itemsize) else 0
    top, bottom = wide >= float(info.max), wide <= float(info.min)
    out = np.where(top | bottom | np.isnan(wide), 0.0, wide).astype(dtype)
    out = np.where(top, dtype.type(info.max), np.where(bottom, dtype.type(info.min), out))
    return np.where(np.isnan(wide), dtype.type(of_nan), out)


@pure("arith.fptosi", "arith.fptoui")
def _float_to_integer(tr: Translator, op):
    """To fewer than 32 bits by way of 32, as the back end has it."""
    dtype, sign = dtype_of(op.results[0].type), "i" if op.name == "arith.fptosi" else "u"
    wide = np.dtype(f"{sign}{max(dtype.itemsize, 4)}")
    if dtype == np.bool_:
        return lambda a: (_round_to_integer(a, wide) & 1).astype(np.bool_)
    return lambda a: _round_to_integer(a, wide).astype(dtype)


@rule("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "arith.index_castui")
def _integer_cast(tr: Translator, op):
    given, t = op.operands[0].type, op.results[0].type
    dtype, boolean = dtype_of(t), dtype_of(given) == np.bool_
    narrow = tr.index_bits == 32
    wide = not is_index(given) and dtype_of(given).itemsize > 4  # the words that an index has not got are dropped
    cut = narrow and is_index(t) and (wide or op.name == "arith.index_castui")
    words = op.name == "arith.index_castui" and narrow and is_index(given)
    if op.name in ("arith.extui", "arith.index_castui"):
        f = (lambda x: (x & 0xFFFFFFFF).astype(dtype)) if words else (lambda x: unsigned(x).astype(dtype))
    elif dtype == np.bool_:
        f = lambda x: (x & 1).astype(np.bool_)  # noqa: E731
    else:
        f = lambda x: -x.astype(dtype) if boolean else x.astype(dtype)  # noqa: E731

    step = applied_to_state(tr, op, lambda s, x: wrapped(s, f(x), op, wide)) if cut else applied(tr, op, f)
    return conversion_step(tr, op, step)


@pure("arith.bitcast")
def _bitcast(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    return lambda a: a.view(dtype)


@pure("llvm.bitcast")
def _bitcast_of_vectors(tr: Translator, op):
    shape, dtype = vector_shape(op.results[0].type), dtype_of(op.results[0].type)

    def convert(a: np.ndarray) -> np.ndarray:
        raw = np.ascontiguousarray(a)
        return raw.reshape(*raw.shape[:2], -1).view(dtype).reshape(*raw.shape[:2], *shape)

    return convert


# -- packed floats


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
