"""Integers without a meaning, which are reported where anything depends on them: a division by zero, a shift by the
width or more, an overflow that `nsw` or `nuw` rules out, index arithmetic that leaves 32 bits, a float that becomes an
integer which cannot hold it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirc.device.declare import applied, applied_to_state
from mlirc.device.machine import State
from mlirc.device.numbers import dtype_of, signed_from, unsigned
from mlirc.device.translate import Translator
from mlirc.mlir import ir, nested

KIND = "undefined arithmetic"
MARK = "mlirc.checked"  # of conversions that are the kernel's own
_LOW, _HIGH = -(1 << 31), (1 << 31) - 1
Bad = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # of the operands and the result: where it has none


def is_index(t: ir.Type) -> bool:
    """Whether a type is index, or a vector of it."""
    return isinstance(t.element_type if isinstance(t, ir.VectorType) else t, ir.IndexType)


def complain(s: State, bad: np.ndarray, what: str, op) -> None:
    """Reports active threads for which an operation, or one of its elements, has no meaning (if anything depends on it:
    see shadows)."""
    if not s.m.check or not bad.any():
        return
    s.m.undefined = bad
    flat = bad if bad.ndim == 2 else bad.reshape(*bad.shape[:2], -1).any(axis=2)
    found = s.m.active(s.mask, flat)
    if found is not None:
        s.m.complain(KIND, found, what, op)


def wrapped(s: State, value: np.ndarray, op, report: bool = True) -> np.ndarray:
    """Numbers as an index of 32 bits; reports those of active threads that are none."""
    if value.size and _LOW <= value.min() and value.max() <= _HIGH:
        return value
    short = value.astype(np.int32).astype(np.int64)
    if report:
        complain(s, short != value, "computes an index that leaves 32 bits, which an index has on the GPU", op)
    return short


def mark_conversions(top: ir.Operation) -> None:
    """Marks the conversions of floats to integers that are the kernel's own: in what `mlirc-expand-math` adds, what is
    converted out of range is selected away."""
    for op in nested(top):
        if op.name in ("arith.fptosi", "arith.fptoui"):
            op.attributes[MARK] = ir.UnitAttr.get(top.context)


def as_unsigned(f: Callable) -> Callable:
    """A function of two unsigned integers, for the words of signed ones."""
    return lambda a, b: signed_from(f(unsigned(a), unsigned(b)), a.dtype)


_UNSIGNED = ("arith.divui", "arith.remui", "arith.ceildivui", "arith.shrui")
_GROWING: dict[str, Callable] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.shli": lambda a, b: a * 2 ** np.minimum(b, 70),
}


def _overflows(name: str, dtype: np.dtype, kind: str) -> Bad:
    """Where a sum, difference, product or shift is not the number that it would be with more bits."""
    wide = (lambda v: v) if kind == "nsw" else unsigned
    big: type = np.int64 if dtype.itemsize < 4 else object

    def bad(a, b, r):
        if dtype.itemsize >= 4 and not np.any(_near(wide(a), wide(b), name, dtype)):
            return np.zeros((1, 1), bool)
        return _GROWING[name](wide(a).astype(big), wide(b).astype(big)) != wide(r).astype(big)

    return bad


def _near(a, b, name: str, dtype: np.dtype):
    """Where a result may overflow, by its size as a float: exact arithmetic is slow."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    size = _GROWING[name](x, y)
    return (np.abs(size) >= 2.0 ** (8 * dtype.itemsize - 1) * 0.99) | (size < 0) & (a.dtype.kind == "u")


def _flag_checks(op, dtype: np.dtype) -> list[tuple[Bad, str]]:
    flags = str(op.attributes["overflowFlags"]) if "overflowFlags" in op.attributes else ""
    return [
        (_overflows(op.name, dtype, kind), f"overflows, which its flag {kind} rules out")
        for kind in ("nsw", "nuw")
        if kind in flags
    ]


def integer_width(tr: Translator, t: ir.Type) -> int:
    """The bits that an integer, an index or an element of a vector of them has on the GPU."""
    return tr.index_bits if is_index(t) else 8 * dtype_of(t).itemsize


def integer_step(tr: Translator, op, f: Callable, checks: list[tuple[Bad, str]]) -> Callable:
    """The step that applies f to two integers, or to two indices of 32 bits, and looks for what has no meaning: what
    the operation's flags rule out, and `checks` (nothing where nobody uses the result)."""
    t = op.results[0].type
    if tr.index_bits == 32 and is_index(t):
        step = _index_step(tr, op, f)
    else:
        step, checks = applied(tr, op, f), _flag_checks(op, dtype_of(t)) + checks
    return _checked(tr, op, step, checks) if checks and list(op.results[0].uses) else step


def _index_step(tr: Translator, op, f: Callable) -> Callable:
    """f on indices of 32 bits, kept as numbers of 64 bits with the same value."""
    left, right = (tr.ranges.of(v) for v in op.operands)
    if op.name in _UNSIGNED and not (left and right and left[0] >= 0 and right[0] >= 0):
        plain = f
        f = lambda a, b: plain(a & 0xFFFFFFFF, b & 0xFFFFFFFF)  # noqa: E731
    result = tr.ranges.of(op.results[0])
    if result is not None and result[0] >= _LOW and result[1] <= _HIGH:
        return applied(tr, op, f)
    return applied_to_state(tr, op, lambda s, a, b: wrapped(s, f(a, b), op, op.name in _GROWING))


def _checked(tr: Translator, op, step: Callable, checks: list[tuple[Bad, str]]) -> Callable:
    """The step, and what has to be looked at behind it."""
    a, b, out = tr.reg(op.operands[0]), tr.reg(op.operands[1]), tr.reg(op.results[0])

    def looking(s: State) -> None:
        x, y = s.r[a], s.r[b]
        step(s)
        if s.m.check:
            for bad, what in checks:
                complain(s, bad(x, y, s.r[out]), what, op)

    return looking
