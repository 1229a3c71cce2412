"""Floating-point arithmetic (PTX ISA, "Floating-Point Instructions", "Half Precision Floating-Point Instructions"):
rounded to nearest even after every operation. Functions are what mlirc-expand-math leaves, which is what NVPTX has
instructions for, and the rest as NumPy has it, in f64 where the type is narrower."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable

import numpy as np

from mlirc.device.attributes import flag, word
from mlirc.device.declare import pure
from mlirc.device.fma import fma
from mlirc.device.numbers import dtype_of, flushed, same_type, through_f64
from mlirc.device.translate import Translator


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


def to_nearest(tr: Translator, op) -> None:
    """Raises MlircError for an operation that asks for another rounding, which the back end would not honour."""
    if "roundingmode" in op.attributes and "to_nearest_even" not in str(op.attributes["roundingmode"]):
        raise tr.refused(op, f"rounding {op.attributes['roundingmode']} is not supported")


@pure(*FLOAT)
def _float(tr: Translator, op):
    to_nearest(tr, op)
    return same_type(FLOAT[op.name], dtype_of(op.results[0].type))


@pure("arith.negf")
def _negf(tr: Translator, op):
    return np.negative


@pure("math.fma", "vector.fma")
def _fma(tr: Translator, op):
    return fma


_EXACT = {
    "math.absf": np.abs,
    "math.ceil": np.ceil,
    "math.floor": np.floor,
    "math.trunc": np.trunc,
    "math.roundeven": np.rint,
    "math.sqrt": np.sqrt,
}


def _elementwise(f: Callable[[float], float]) -> Callable:
    return np.vectorize(f, otypes=[np.float64])


_WIDE: dict[str, Callable] = {
    "math.round": lambda x: np.trunc(x) + np.copysign(np.abs(x - np.trunc(x)) >= 0.5, x),
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.log10": np.log10,
    "math.log1p": np.log1p,
    "math.rsqrt": lambda x: 1.0 / np.sqrt(x),
    "math.cbrt": np.cbrt,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.tan": np.tan,
    "math.asin": np.arcsin,
    "math.acos": np.arccos,
    "math.atan": np.arctan,
    "math.sinh": np.sinh,
    "math.cosh": np.cosh,
    "math.tanh": np.tanh,
    "math.asinh": np.arcsinh,
    "math.acosh": np.arccosh,
    "math.atanh": np.arctanh,
    "math.erf": _elementwise(pymath.erf),
    "math.erfc": _elementwise(pymath.erfc),
    "math.powf": np.power,
    "math.atan2": np.arctan2,
    "math.copysign": np.copysign,
}
_CLASSES = {"math.isnan": np.isnan, "math.isinf": np.isinf, "math.isfinite": np.isfinite}


@pure(*_EXACT)
def _exact(tr: Translator, op):
    return same_type(_EXACT[op.name], dtype_of(op.results[0].type))


@pure(*_WIDE)
def _wide(tr: Translator, op):
    return through_f64(_WIDE[op.name])


@pure(*_CLASSES)
def _classify(tr: Translator, op):
    return _CLASSES[op.name]


_APPROXIMATE: dict[str, Callable] = {
    "nvvm.ex2": np.exp2, "nvvm.log2": np.log2, "nvvm.sin": np.sin, "nvvm.cos": np.cos, "nvvm.sqrt": np.sqrt,
    "nvvm.sqrt.approx": np.sqrt, "nvvm.rsqrt": lambda x: 1 / np.sqrt(x), "nvvm.rcp.approx.ftz.f": lambda x: 1 / x,
}  # fmt: skip


@pure(*_APPROXIMATE)
def _approximate(tr: Translator, op):
    dtype = dtype_of(op.results[0].type)
    f = through_f64(_APPROXIMATE[op.name])
    ftz = "ftz" in op.name or flag(op, "ftz")
    if word(op, "rnd") not in ("", "rn"):
        raise tr.refused(op, f"rounding {word(op, 'rnd')} is not supported: rn only")
    return (lambda x: flushed(f(flushed(x)))) if ftz and dtype == np.float32 else f
