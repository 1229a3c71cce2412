"""Comparisons and selection (PTX ISA, "Comparison and Selection Instructions": set, setp, selp)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirc.device.attributes import number
from mlirc.device.declare import applied, applied_to_state, pure, rule
from mlirc.device.machine import State
from mlirc.device.memory import MemRef, merge_windows
from mlirc.device.numbers import dtype_of, spread, unsigned, vector_shape
from mlirc.device.translate import Translator
from mlirc.mlir import ir

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
