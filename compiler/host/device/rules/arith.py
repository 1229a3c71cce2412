"""arith on arrays. Integer types wrap; floats round to nearest even after every operation, as their dtype does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirc.host.device.attributes import number
from mlirc.host.device.declare import applied, applied_to_state, pure, rule
from mlirc.host.device.machine import State
from mlirc.host.device.memory import MemRef, merge_windows
from mlirc.host.device.numbers import (
    dtype_of,
    integers_as,
    round_once,
    same_type,
    spread,
    unsigned,
    vector_shape,
)
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir


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


@pure(*FLOAT)
def _float(tr: Translator, op):
    _to_nearest(tr, op)
    return same_type(FLOAT[op.name], dtype_of(op.results[0].type))


@pure("arith.negf")
def _negf(tr: Translator, op):
    return np.negative


@pure("arith.addui_extended", "arith.mulsi_extended", "arith.mului_extended")
def _extended(tr: Translator, op):
    """The lower and the upper half of a result with twice the bits; of a sum, the carry."""
    bits = dtype_of(op.results[0].type).itemsize * 8
    if tr.index_bits == 32 and "index" in str(op.results[0].type):
        raise tr.refused(op, "of indices is not supported: cast them to i32 or i64")

    def product(x, y):
        wide = (lambda v: v) if op.name == "arith.mulsi_extended" else unsigned
        total = wide(x).astype(object) * wide(y).astype(object)
        halves = (total & ((1 << bits) - 1), (total >> bits) & ((1 << bits) - 1))
        return tuple(half.astype(np.uint64).astype(x.dtype) for half in halves)

    return product if "mul" in op.name else lambda x, y: (x + y, unsigned(x + y) < unsigned(x))


_CMPI = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


@pure("arith.cmpi")
def _cmpi(tr: Translator, op):
    p = number(op, "predicate")
    f = _CMPI[p if p <= 5 else p - 4]
    if p > 5:
        return lambda a, b: f(unsigned(a), unsigned(b))
    boolean = dtype_of(op.operands[0].type) == np.bool_
    return (lambda a, b: f(b, a)) if boolean and p > 1 else f  # true is -1


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


@pure("arith.cmpf")
def _cmpf(tr: Translator, op):
    return _CMPF[number(op, "predicate")]


@rule("arith.select")
def _select(tr: Translator, op):
    rank = len(vector_shape(op.results[0].type)) - len(vector_shape(op.operands[0].type))
    if isinstance(op.results[0].type, ir.MemRefType) or "ptr" in str(op.results[0].type):
        return applied_to_state(tr, op, _window)
    return applied(tr, op, lambda c, a, b: np.where(spread(c, rank), a, b))


def _window(s: State, c: np.ndarray, a: MemRef, b: MemRef) -> MemRef:
    chosen, rest = s.m.active(s.mask, c), s.m.active(s.mask, ~c)
    if rest is None or chosen is None:
        return a if rest is None else b
    return merge_windows(c, a, b)


# -- conversions


@pure("arith.sitofp", "arith.uitofp")
def _integer_to_float(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    if op.name == "arith.uitofp":
        return lambda a: integers_as(unsigned(a), dtype)
    if dtype_of(op.operands[0].type) == np.bool_:
        return lambda a: integers_as(-a.astype(np.int8), dtype)
    return lambda a: integers_as(a, dtype)


@pure("arith.extf", "arith.truncf", "llvm.fptrunc", "llvm.fpext")
def _float_cast(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    _to_nearest(tr, op)
    if dtype_of(op.operands[0].type) == np.float64:
        return lambda a: round_once(a, dtype)
    return lambda a: a.astype(dtype)


@pure("arith.bitcast")
def _bitcast(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    return lambda a: a.view(dtype)
