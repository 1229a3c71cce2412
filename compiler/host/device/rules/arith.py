"""arith on arrays. Integer types wrap; floats round to nearest even after every operation, as their dtype does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirc.host.device.declare import rule
from mlirc.host.device.machine import State
from mlirc.host.device.memory import merge_windows
from mlirc.host.device.numbers import (
    dtype_of,
    integers_as,
    round_once,
    spread,
    unsigned,
    vector_shape,
)
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir


def unary(tr: Translator, op, f: Callable) -> Callable:
    """A step that applies f to the operand."""
    a, out = tr.reg(op.operands[0]), tr.reg(op.results[0])

    def step(s: State) -> None:
        s.r[out] = f(s.r[a])

    return step


def binary(tr: Translator, op, f: Callable) -> Callable:
    """A step that applies f to both operands."""
    a, b, out = tr.reg(op.operands[0]), tr.reg(op.operands[1]), tr.reg(op.results[0])

    def step(s: State) -> None:
        r = s.r
        r[out] = f(r[a], r[b])

    return step


def same_type(f: Callable, dtype: np.dtype) -> Callable:
    """f with its result rounded to the type (ml_dtypes and bool functions may widen)."""

    def g(*args):
        out = f(*args)
        return out if out.dtype == dtype else out.astype(dtype)

    return g


def _signed_zeros(f: Callable, sign: int) -> Callable:
    """A maximum (sign 1) or minimum (-1) to which -0 is less than +0, as it is to PTX; NumPy takes either."""

    def g(a, b):
        out, zero = f(a, b), a == 0
        if zero.any():
            zero = zero & (b == 0)
            if zero.any():
                both = a + b if sign > 0 else -(-a + -b)
                out = np.where(zero, both, out)
        return out

    return g


FLOAT: dict[str, Callable] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.maximumf": _signed_zeros(np.maximum, 1),
    "arith.minimumf": _signed_zeros(np.minimum, -1),
    "arith.maxnumf": _signed_zeros(np.fmax, 1),
    "arith.minnumf": _signed_zeros(np.fmin, -1),
}


def _to_nearest(tr: Translator, op) -> None:
    """Raises MlircError for an operation that asks for another rounding, which the back end would not honour."""
    if "roundingmode" in op.attributes and "to_nearest_even" not in str(op.attributes["roundingmode"]):
        raise tr.refused(op, f"rounding {op.attributes['roundingmode']} is not supported")


@rule(*FLOAT)
def _float(tr: Translator, op):
    _to_nearest(tr, op)
    return binary(tr, op, same_type(FLOAT[op.name], dtype_of(op.results[0].type)))


@rule("arith.negf")
def _negf(tr: Translator, op):
    return unary(tr, op, np.negative)


@rule("arith.addui_extended", "arith.mulsi_extended", "arith.mului_extended")
def _extended(tr: Translator, op):
    a, b = (tr.reg(v) for v in op.operands)
    low, high = (tr.reg(v) for v in op.results)
    bits = dtype_of(op.results[0].type).itemsize * 8
    if tr.index_bits == 32 and "index" in str(op.results[0].type):
        raise tr.refused(op, "of indices is not supported: cast them to i32 or i64")

    def step(s: State) -> None:
        x, y = s.r[a], s.r[b]
        if op.name == "arith.addui_extended":
            total = x + y
            s.r[low], s.r[high] = total, unsigned(total) < unsigned(x)
            return
        wide = (lambda v: v) if op.name == "arith.mulsi_extended" else unsigned
        product = wide(x).astype(object) * wide(y).astype(object)
        s.r[low] = (product & ((1 << bits) - 1)).astype(np.uint64).astype(x.dtype)
        s.r[high] = ((product >> bits) & ((1 << bits) - 1)).astype(np.uint64).astype(x.dtype)

    return step


_CMPI = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


@rule("arith.cmpi")
def _cmpi(tr: Translator, op):
    p = ir.IntegerAttr(op.attributes["predicate"]).value
    boolean = dtype_of(op.operands[0].type) == np.bool_
    if p <= 5:
        f = _CMPI[p]
        return binary(tr, op, (lambda a, b: f(b, a)) if boolean and p > 1 else f)  # true is -1
    f = _CMPI[p - 4]
    return binary(tr, op, lambda a, b: f(unsigned(a), unsigned(b)))


def _ordered(f: Callable) -> Callable:
    return lambda a, b: f(a, b) & ~(np.isnan(a) | np.isnan(b))


def _unordered(f: Callable) -> Callable:
    return lambda a, b: f(a, b) | np.isnan(a) | np.isnan(b)


_CMPF = [
    lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), dtype=bool),
    np.equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    _ordered(np.not_equal),
    lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    _unordered(np.equal),
    _unordered(np.greater),
    _unordered(np.greater_equal),
    _unordered(np.less),
    _unordered(np.less_equal),
    np.not_equal,
    lambda a, b: np.isnan(a) | np.isnan(b),
    lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), dtype=bool),
]


@rule("arith.cmpf")
def _cmpf(tr: Translator, op):
    return binary(tr, op, _CMPF[ir.IntegerAttr(op.attributes["predicate"]).value])


@rule("arith.select")
def _select(tr: Translator, op):
    c, a, b = (tr.reg(v) for v in op.operands)
    out = tr.reg(op.results[0])
    rank = len(vector_shape(op.results[0].type)) - len(vector_shape(op.operands[0].type))
    window = isinstance(op.results[0].type, ir.MemRefType) or "ptr" in str(op.results[0].type)

    def windows(s: State) -> None:
        chosen, rest = s.m.active(s.mask, s.r[c]), s.m.active(s.mask, ~s.r[c])
        if rest is None or chosen is None:
            s.r[out] = s.r[a] if rest is None else s.r[b]
        else:
            s.r[out] = merge_windows(s.r[c], s.r[a], s.r[b])

    if window:
        return windows

    def step(s: State) -> None:
        r = s.r
        r[out] = np.where(spread(r[c], rank), r[a], r[b])

    return step


# -- conversions


@rule("arith.sitofp", "arith.uitofp")
def _integer_to_float(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    boolean = dtype_of(op.operands[0].type) == np.bool_
    if op.name == "arith.uitofp":
        return unary(tr, op, lambda a: integers_as(unsigned(a), dtype))
    return unary(tr, op, lambda a: integers_as(-a.astype(np.int8) if boolean else a, dtype))


@rule("arith.extf", "arith.truncf", "llvm.fptrunc", "llvm.fpext")
def _float_cast(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    _to_nearest(tr, op)
    if dtype_of(op.operands[0].type) == np.float64:
        return unary(tr, op, lambda a: round_once(a, dtype))
    return unary(tr, op, lambda a: a.astype(dtype))


@rule("arith.bitcast")
def _bitcast(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    return unary(tr, op, lambda a: a.view(dtype))
