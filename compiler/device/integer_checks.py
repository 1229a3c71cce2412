"""Integers without a meaning, which are reported where anything depends on them: a division by zero, a shift by the
width or more, an overflow that `nsw` or `nuw` rules out, bits that `exact` says are not lost, a negative number that
`nneg` rules out, index arithmetic that leaves 32 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirc.device.declare import applied, applied_to_state
from mlirc.device.machine import State
from mlirc.device.numbers import dtype_of, signed_from, unsigned
from mlirc.device.translate import Translator
from mlirc.mlir import ir

KIND = "undefined arithmetic"
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


def _flags(op) -> list[str]:
    flags = str(op.attributes["overflowFlags"]) if "overflowFlags" in op.attributes else ""
    return [kind for kind in ("nsw", "nuw") if kind in flags]


def _flag_checks(op, dtype: np.dtype, narrow: bool) -> list[tuple[Bad, str]]:
    """What the flags of an operation on two integers rule out; `narrow`: on indices of 32 bits, kept as numbers of 64
    bits, whose signed overflow is looked for anyway."""
    checks: list[tuple[Bad, str]] = []
    for kind in _flags(op):
        if not (narrow and kind == "nsw"):
            bad = _overflows(op.name, np.dtype(np.int32) if narrow else dtype, kind)
            checks.append((bad, f"overflows, which its flag {kind} rules out"))
    if "isExact" in op.attributes:
        checks.append((_remainder if "div" in op.name else _shifted_out, "loses bits, which its flag exact rules out"))
    return [(_of_words(bad), what) for bad, what in checks] if narrow else checks


def _of_words(bad: Bad) -> Bad:
    """A check of words of 32 bits, for numbers of 64 bits."""
    return lambda a, b, r: bad(*(x.astype(np.int32) for x in (a, b, r)))


def _shifted_out(a, b, r):
    """Where a shift to the right loses bits that are set."""
    count = np.minimum(unsigned(b), 8 * a.dtype.itemsize - 1)
    return np.broadcast_to(unsigned(a) >> count << count != unsigned(a), r.shape)


def _remainder(a, b, r):
    """Where a quotient times the divisor is not the dividend."""
    return (b != 0) & (r * b != a)


def _conversion_checks(op) -> list[tuple[Callable, str]]:
    """What the flags of a conversion rule out: functions of its operand and its result."""
    checks: list[tuple[Callable, str]] = []
    if "nonNeg" in op.attributes:
        message = "converts a negative number, which its flag nneg rules out"
        checks.append((lambda a, r: a if a.dtype == np.bool_ else a < 0, message))
    for kind in _flags(op):
        wide = _sign_extended if kind == "nsw" else unsigned
        checks.append((lambda a, r, f=wide: f(r).astype(a.dtype) != a, f"loses bits, which its flag {kind} rules out"))
    return checks


def _sign_extended(a: np.ndarray) -> np.ndarray:
    return -a.astype(np.int8) if a.dtype == np.bool_ else a


def conversion_step(tr: Translator, op, step: Callable) -> Callable:
    """The step of a conversion of integers, which looks for what the operation's flags rule out, too."""
    checks = _conversion_checks(op)
    return _without_poison(tr, op, step, checks) if checks and list(op.results[0].uses) else step


def _without_poison(tr: Translator, op, step: Callable, checks: list[tuple[Callable, str]]) -> Callable:
    """The step of an operation with flags. What they rule out is poison: of its result no bit may be relied on (LLVM
    LangRef, "Poison Values"), so that it gets other ones than wrapping or cutting would give."""
    ins, out = [tr.reg(v) for v in op.operands], tr.reg(op.results[0])

    def looking(s: State) -> None:
        operands = [s.r[x] for x in ins]
        step(s)
        result = s.r[out]
        for bad, what in checks:
            found = bad(*operands, result)
            if found.any():
                complain(s, found, what, op)
                s.r[out] = np.where(found, ~result if result.dtype.kind in "iub" else np.nan, s.r[out]).astype(
                    result.dtype
                )

    return looking


def integer_width(tr: Translator, t: ir.Type) -> int:
    """The bits that an integer, an index or an element of a vector of them has on the GPU."""
    return tr.index_bits if is_index(t) else 8 * dtype_of(t).itemsize


def integer_step(tr: Translator, op, f: Callable, checks: list[tuple[Bad, str]]) -> Callable:
    """The step that applies f to two integers, or to two indices of 32 bits, and looks for what has no meaning: what
    the operation's flags rule out, and `checks` (nothing where nobody uses the result)."""
    t = op.results[0].type
    narrow = tr.index_bits == 32 and is_index(t)
    step = _index_step(tr, op, f) if narrow else applied(tr, op, f)
    if not list(op.results[0].uses):
        return step
    step = _checked(tr, op, step, checks) if checks else step
    flags = _flag_checks(op, dtype_of(t), narrow)
    return _without_poison(tr, op, step, flags) if flags else step


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
