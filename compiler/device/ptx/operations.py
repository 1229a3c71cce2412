"""What the instructions compute that neither touch memory nor other threads (PTX ISA, "Instruction Set"): functions of
NumPy arrays, one element per thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from mlirc.device.fma import fma
from mlirc.device.numbers import integers_as, round_once, toward_zero

DTYPES: dict[str, Any] = {
    "pred": np.bool_, "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16,
    **{f"{kind}{width}": np.dtype(f"{'i' if kind == 's' else 'u'}{width // 8}")
       for kind in "sub" for width in (8, 16, 32, 64)},
}  # fmt: skip
Function = Callable[..., np.ndarray]


def _nan(f: Function, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """min or max, which is a number where one of the two is, with -0 below +0."""
    zeros = (a == 0) & (b == 0)
    low = np.signbit(a) | np.signbit(b) if f is np.fmin else np.signbit(a) & np.signbit(b)
    return np.where(zeros, np.where(low, -a.dtype.type(0), a.dtype.type(0)), f(a, b))


def _minmax(f: Function, number: Function) -> Function:
    def either(a: np.ndarray, b: np.ndarray, nan: bool = False) -> np.ndarray:
        if a.dtype.kind in "iu":
            return f(a, b)
        found = _nan(number, a, b)
        return np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), found) if nan else found

    return either


def _shift(f: Function) -> Function:
    def shifted(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = 8 * a.dtype.itemsize
        amount = np.minimum(np.asarray(b).astype(np.uint64), width - 1).astype(a.dtype)
        past = np.asarray(b).astype(np.uint64) >= width
        lost = np.where(a < 0, -1, 0).astype(a.dtype) if a.dtype.kind == "i" else a.dtype.type(0)
        return np.where(past, lost, f(a, amount))

    return shifted


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f" or a.dtype.kind == "V":
        return a / b
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, ~a.dtype.type(0), _whole(a, safe))


def _whole(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = a // b
    return quotient + ((quotient * b != a) & ((a < 0) != (b < 0))).astype(a.dtype)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, a, a - _whole(a, safe) * safe)


def _high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.itemsize == 8:
        return _high_of_64(a, b)
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    return (a.astype(wide) * b.astype(wide) >> 8 * a.dtype.itemsize).astype(a.dtype)


def _high_of_64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By halves; a negative factor is one that is 2^64 too large."""
    x, y, half, low = a.view(np.uint64), b.view(np.uint64), np.uint64(32), np.uint64((1 << 32) - 1)
    first = (x >> half) * (y & low) + ((x & low) * (y & low) >> half)
    second = (x & low) * (y >> half) + (first & low)
    high = (x >> half) * (y >> half) + (first >> half) + (second >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, 0).astype(np.uint64) - np.where(b < 0, x, 0).astype(np.uint64)
    return high.view(a.dtype)


def wide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of integers in twice their width."""
    dtype = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(dtype) * b.astype(dtype)


def _field(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """bfe: bits from `start` on, with sign for signed types."""
    width = 8 * a.dtype.itemsize
    start, length = (x.astype(np.int64) & 0xFF for x in (start, length))
    unsigned = a.view(f"u{a.dtype.itemsize}").astype(np.uint64)
    bits = np.where(start < width, unsigned >> np.minimum(start, 63).astype(np.uint64), 0).astype(np.uint64)
    mask = np.where(length >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(length, 63).astype(np.uint64)) - 1)
    found = bits & mask
    if a.dtype.kind == "i":
        last = np.clip(start + length - 1, 0, width - 1).astype(np.uint64)
        negative = ((unsigned >> last) & np.uint64(1) == 1) & (length > 0)
        found = np.where(negative, found | ~mask, found)
    return np.where(length == 0, np.uint64(0), found).astype(f"u{a.dtype.itemsize}").view(a.dtype)


def _permute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """prmt.b32 in its default mode."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros(np.broadcast(a, b, c).shape, np.uint64)
    for i in range(4):
        pick = (c.astype(np.uint64) >> np.uint64(4 * i)) & np.uint64(15)
        byte = (both >> (np.uint64(8) * (pick & np.uint64(7)))) & np.uint64(255)
        byte = np.where(pick & np.uint64(8), np.where(byte & np.uint64(128), 255, 0), byte).astype(np.uint64)
        out |= byte << np.uint64(8 * i)
    return out.astype(np.uint32)


# By the first part of the opcode; all operands have the instruction's type.
ALIKE: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": _minmax(np.minimum, np.fmin),
    "max": _minmax(np.maximum, np.fmax), "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert, "neg": np.negative, "abs": np.abs, "div": _divide, "rem": _remainder, "fma": fma,
    "sqrt": np.sqrt, "rcp": lambda a: (1 / a).astype(a.dtype), "copysign": lambda a, b: np.copysign(b, a),
    "prmt": _permute, "popc": lambda a: np.bitwise_count(a).astype(np.uint32), "mulhi": _high,
}  # fmt: skip
APPROXIMATE: dict[str, Function] = {
    "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "rcp": lambda x: 1 / x,
}  # fmt: skip
SHIFTS = {"shl": _shift(np.left_shift), "shr": _shift(np.right_shift)}
FIELD = _field
COMPARE: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def compare(how: str, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """setp's comparison, None for one that is not known; of floats ordered, unless it ends in u."""
    real = a.dtype.kind not in "iub"
    if real and how in ("num", "nan"):
        return (np.isnan(a) | np.isnan(b)) == (how == "nan")
    if how in COMPARE:
        found = COMPARE[how](a, b)
        return found & ~(np.isnan(a) | np.isnan(b)) if real else found
    if real and how.endswith("u") and how[:-1] in COMPARE:
        return COMPARE[how[:-1]](a, b) | np.isnan(a) | np.isnan(b)
    return None


def convert(a: np.ndarray, to: np.dtype, rounding: str, saturate: bool) -> np.ndarray | None:
    """cvt, or None where it is not known with this rounding."""
    real, out_real = (d.kind not in "iub" for d in (a.dtype, to))
    if not real and not out_real:
        if saturate:
            return None
        return a.astype(to)
    if not real:
        return integers_as(a, to) if rounding == "rn" and not saturate else None
    if not out_real:
        whole = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}.get(rounding)
        if whole is None:
            return None
        info = np.iinfo(to)
        x = whole(a.astype(np.float64))
        clipped = np.clip(np.where(np.isnan(x), 0, x), float(info.min), float(info.max))
        top = x >= float(info.max)
        found = np.where(top, info.max, np.where(top, 0, clipped).astype(to)).astype(to)
        if 8 in (to.itemsize, a.dtype.itemsize):  # NaN is 100...0 then, and 0 else (PTX ISA, "cvt")
            found[np.isnan(x)] = info.min or 1 << (8 * to.itemsize - 1)
        return found
    if rounding in ("rzi", "rni", "rmi", "rpi") and to == a.dtype:
        return {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}[rounding](a)
    if saturate or rounding not in ("", "rn", "rz"):
        return None
    if rounding == "rz":
        return toward_zero(a, to)
    return round_once(a, to) if a.dtype == np.float64 else a.astype(to)
