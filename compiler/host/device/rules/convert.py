"""Conversions between pairs of floats (`cvt` with packed operands), to TF32, and permutations of bytes.

PTX ISA, "Data Movement and Conversion Instructions: cvt", "prmt"."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from mlirc.host.device.attributes import flag, word
from mlirc.host.device.declare import rule
from mlirc.host.device.machine import State
from mlirc.host.device.numbers import dtype_of, toward_zero, vector_shape
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


@rule("nvvm.convert.f32x2.to.f16x2", "nvvm.convert.f32x2.to.bf16x2")
def _pair(tr: Translator, op):
    if len(op.operands) != 2:
        raise tr.refused(op, "with random bits is not supported")
    high, low = (tr.reg(v) for v in op.operands)
    out, dtype = tr.reg(op.results[0]), dtype_of(op.results[0].type)
    how = word(op, "sat") == "satfinite", flag(op, "relu"), _rounding(tr, op)

    def step(s: State) -> None:
        parts = np.broadcast_arrays(s.r[low], s.r[high])
        s.r[out] = np.stack([narrow(x, dtype, *how) for x in parts], axis=-1)

    return step


@rule("nvvm.convert.f32x2.to.f8x2", "nvvm.convert.f16x2.to.f8x2", "nvvm.convert.bf16x2.to.f8x2")
def _to_f8(tr: Translator, op):
    inputs, out = [tr.reg(v) for v in op.operands], tr.reg(op.results[0])
    dtype, relu = dtype_of(ir.TypeAttr(op.attributes["dstTy"]).value), flag(op, "relu")
    packed = not vector_shape(op.results[0].type)
    _rounding(tr, op)

    def step(s: State) -> None:
        if len(inputs) == 2:  # the first one is the upper half
            high, low = (s.r[x] for x in inputs)
            pair = np.stack(np.broadcast_arrays(low, high), axis=-1)
        else:
            pair = s.r[inputs[0]]
        words = np.ascontiguousarray(narrow(pair, dtype, True, relu)).view(np.int8)
        s.r[out] = words.view(np.int16)[..., 0] if packed else words

    return step


@rule("nvvm.convert.f8x2.to.f16x2", "nvvm.convert.f8x2.to.bf16x2")
def _from_f8(tr: Translator, op):
    if len(op.operands) != 1:
        raise tr.refused(op, "with a scale is not supported")
    source, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    given, dtype = dtype_of(ir.TypeAttr(op.attributes["srcType"]).value), dtype_of(op.results[0].type)
    relu = flag(op, "relu")

    def step(s: State) -> None:
        s.r[out] = narrow(np.ascontiguousarray(s.r[source]).view(given), dtype, False, relu)

    return step


@rule("nvvm.convert.float.to.tf32")
def _to_tf32(tr: Translator, op):
    source, out, relu = tr.reg(op.operands[0]), tr.reg(op.results[0]), flag(op, "relu")
    mode = word(op, "rnd") or "rna"
    if mode not in ("rn", "rna", "rz"):
        raise tr.refused(op, f"rounding {mode} is not supported: rn, rna or rz")

    def step(s: State) -> None:
        x = np.ascontiguousarray(np.maximum(s.r[source], np.float32(0)) + np.float32(0) if relu else s.r[source])
        bits = x.view(np.uint32).astype(np.int64)
        half = {"rz": 0, "rna": 0x1000, "rn": 0xFFF}[mode] + (bits >> 13 & 1 if mode == "rn" else 0)
        rounded = bits + half & 0xFFFFE000
        special = np.where(np.isnan(x) & (mode != "rna"), 0x7FFFE000, bits)
        s.r[out] = np.where(np.isfinite(x), rounded, special).astype(np.uint32).view(np.int32)

    return step


# -- bytes


def _indices(selector: np.ndarray) -> list[np.ndarray]:
    """For each byte of the result, its nibble of the selector."""
    return [selector >> (4 * i) & 15 for i in range(4)]


_MODES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "f4e": lambda n, i: (n + i) & 7,
    "b4e": lambda n, i: (n - i) & 7,
    "rc8": lambda n, i: n,
    "ecl": lambda n, i: np.maximum(n, i),
    "ecr": lambda n, i: np.minimum(n, i),
    "rc16": lambda n, i: (n & 1) * 2 + (i & 1),
}


@rule("nvvm.prmt")
def _prmt(tr: Translator, op):
    mode = word(op, "mode")
    low, *rest = (tr.reg(v) for v in op.operands)
    selector, high = rest[-1], rest[0] if len(rest) > 1 else low
    out = tr.reg(op.results[0])

    def step(s: State) -> None:
        a, b, c = (s.r[x].view(np.uint32).astype(np.int64) for x in (low, high, selector))
        pool = a | b << 32
        total = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.int64)
        for i, nibble in enumerate(_indices(c)):
            if mode == "default":
                byte = pool >> (8 * (nibble & 7)) & 255
                byte = np.where(nibble & 8, np.where(byte & 128, 255, 0), byte)  # the sign, eight times
            else:
                byte = pool >> (8 * _MODES[mode](c & 3, i)) & 255
            total |= byte << (8 * i)
        s.r[out] = total.astype(np.uint32).view(np.int32)

    return step


@rule("nvvm.dot.accumulate.4way", "nvvm.dot.accumulate.2way")
def _dot(tr: Translator, op):
    a, b, c = (tr.reg(v) for v in op.operands)
    out, count = tr.reg(op.results[0]), 4 if op.name.endswith("4way") else 2
    signs = [word(op, n) == "signed" for n in ("a_type", "b_type")]
    high = not op.name.endswith("4way") and flag(op, "b_hi")

    def step(s: State) -> None:
        left, right = (
            np.ascontiguousarray(s.r[x]).view(f"{'i' if sign else 'u'}{s.r[x].itemsize}").astype(np.int64)
            for x, sign in zip((a, b), signs, strict=True)
        )
        right = right[..., 2:] if high else right[..., :count]
        s.r[out] = (s.r[c].astype(np.int64) + (left * right).sum(axis=-1)).astype(np.int32)

    return step
