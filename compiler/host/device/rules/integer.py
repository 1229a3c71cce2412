"""Integer arithmetic on arrays, as PTX has it (PTX ISA, "Integer Arithmetic Instructions"): types wrap, and `index` has
the 32 bits that the back end gives it. What has no meaning is reported: a division by zero, a shift by the width or
more, an overflow that `nsw` or `nuw` rules out, index arithmetic that leaves 32 bits, a float that becomes an integer
which cannot hold it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirc.host.device.declare import applied, applied_to_state, rule, stateful
from mlirc.host.device.machine import State
from mlirc.host.device.numbers import dtype_of, signed_from, unsigned
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir, nested

KIND = "undefined arithmetic"
_LOW, _HIGH = -(1 << 31), (1 << 31) - 1
_MARK = "mlirc.checked"
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


def _unsigned_op(f: Callable) -> Callable:
    return lambda a, b: signed_from(f(unsigned(a), unsigned(b)), a.dtype)


def _wide_shift(f: Callable, width: int) -> Callable:
    """Shifts by the width or more, undefined in MLIR and not wrapped by PTX, give what shifting bit by bit would."""

    def g(a, b):
        return f(a, np.minimum(unsigned(b), width - 1).astype(b.dtype)) if b.size > 1 or b.flat[0] >= width else f(a, b)

    return g


def _signed_divide(a, b):
    q = np.floor_divide(a, b)
    return q + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


_INTEGER: dict[str, Callable] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.divsi": _signed_divide,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": lambda a, b: -np.floor_divide(-a, b),
    "arith.remsi": np.fmod,
    "arith.divui": _unsigned_op(np.floor_divide),
    "arith.ceildivui": _unsigned_op(lambda a, b: np.where(a == 0, a, (a - (a != 0)) // b + (a != 0)).astype(a.dtype)),
    "arith.remui": _unsigned_op(np.remainder),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": _unsigned_op(np.maximum),
    "arith.minui": _unsigned_op(np.minimum),
}
_BOOL: dict[str, Callable] = {
    "arith.addi": np.logical_xor,
    "arith.subi": np.logical_xor,
    "arith.muli": np.logical_and,
    "arith.maxsi": np.logical_and,  # true is -1
    "arith.minsi": np.logical_or,
    "arith.maxui": np.logical_or,
    "arith.minui": np.logical_and,
}


_SHIFTS: dict[str, Callable] = {
    "arith.shli": lambda a, b: np.left_shift(a, b),
    "arith.shrsi": lambda a, b: np.right_shift(a, b),
    "arith.shrui": _unsigned_op(lambda a, b: np.right_shift(a, b)),
}
_SIGNED_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.floordivsi", "arith.ceildivsi")
_UNSIGNED_DIVISIONS = ("arith.divui", "arith.remui", "arith.ceildivui")
_GROWING: dict[str, Callable] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.shli": lambda a, b: a * 2 ** np.minimum(b, 70),
}


def _shift(name: str, width: int) -> Callable:
    """A shift; by the width or more it gives what PTX gives: zeros, or the sign."""
    f = _SHIFTS[name]
    if name == "arith.shrsi":
        return _wide_shift(f, width)

    def shifted(a, b):
        far = unsigned(b) >= width
        return np.where(far, 0, f(a, np.where(far, 0, b).astype(b.dtype))).astype(a.dtype)

    return shifted


def _divisor_checks(tr: Translator, op, least: int) -> list[tuple[Bad, str]]:
    n = tr.known(op.operands[1])
    found: list[tuple[Bad, str]] = []
    if not n:
        found.append((lambda a, b, r: np.broadcast_to(b == 0, r.shape), "divides by zero"))
    if op.name in _SIGNED_DIVISIONS and n in (None, -1):
        found.append((lambda a, b, r: (b == -1) & (a == least), f"divides {least}, the least number, by -1"))
    return found


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


def _index_step(tr: Translator, op, f: Callable) -> Callable:
    """f on indices of 32 bits, kept as numbers of 64 bits with the same value."""
    left, right = (tr.ranges.of(v) for v in op.operands)
    if op.name in (*_UNSIGNED_DIVISIONS, "arith.shrui") and not (left and right and left[0] >= 0 and right[0] >= 0):
        plain = f
        f = lambda a, b: plain(a & 0xFFFFFFFF, b & 0xFFFFFFFF)  # noqa: E731
    result = tr.ranges.of(op.results[0])
    if result is not None and result[0] >= _LOW and result[1] <= _HIGH:
        return applied(tr, op, f)
    return applied_to_state(tr, op, lambda s, a, b: wrapped(s, f(a, b), op, op.name in _GROWING))


def wrapped(s: State, value: np.ndarray, op, report: bool = True) -> np.ndarray:
    """Numbers as an index of 32 bits; reports those of active threads that are none."""
    if value.size and _LOW <= value.min() and value.max() <= _HIGH:
        return value
    short = value.astype(np.int32).astype(np.int64)
    if report:
        complain(s, short != value, "computes an index that leaves 32 bits, which an index has on the GPU", op)
    return short


def _checked(tr: Translator, op, step: Callable, checks: list[tuple[Bad, str]]) -> Callable:
    """The step, and what has to be looked at behind it; nothing where nobody uses the result."""
    if not checks or not list(op.results[0].uses):
        return step
    a, b, out = tr.reg(op.operands[0]), tr.reg(op.operands[1]), tr.reg(op.results[0])

    def looking(s: State) -> None:
        x, y = s.r[a], s.r[b]
        step(s)
        if s.m.check:
            for bad, what in checks:
                complain(s, bad(x, y, s.r[out]), what, op)

    return looking


@rule(*_INTEGER, *_SHIFTS)
def _integer(tr: Translator, op):
    t = op.results[0].type
    dtype, narrow = dtype_of(t), tr.index_bits == 32 and is_index(t)
    if dtype == np.bool_:
        if op.name not in _BOOL and op.name not in ("arith.andi", "arith.ori", "arith.xori"):
            raise tr.refused(op, "of i1 has no meaning")
        return applied(tr, op, _BOOL.get(op.name, _INTEGER.get(op.name, np.bitwise_and)))
    width = 32 if narrow else 8 * dtype.itemsize
    checks = _flag_checks(op, dtype) if not narrow else []
    if op.name in _SHIFTS:
        f, n = _shift(op.name, width), tr.known(op.operands[1])
        if n is None or not 0 <= n < width:
            checks.append((lambda a, b, r: np.broadcast_to(unsigned(b) >= width, r.shape),
                           f"shifts by as many bits as its operand has, {width}, or more"))  # fmt: skip
    else:
        f = _by_power_of_two(tr, op) or _INTEGER[op.name]
    if op.name in _SIGNED_DIVISIONS or op.name in _UNSIGNED_DIVISIONS:
        checks += _divisor_checks(tr, op, -(1 << (width - 1)))
    return _checked(tr, op, _index_step(tr, op, f) if narrow else applied(tr, op, f), checks)


def _by_power_of_two(tr: Translator, op) -> Callable | None:
    """An unsigned division, or its remainder, by a constant power of two."""
    n = tr.known(op.operands[1])
    if op.name not in ("arith.divui", "arith.remui") or n is None or n <= 0 or n & (n - 1):
        return None
    shift, low = n.bit_length() - 1, n - 1
    if op.name == "arith.remui":
        return lambda a, b: a & low
    return lambda a, b: signed_from(unsigned(a) >> shift, a.dtype)


# -- conversions


def _round_to_integer(a: np.ndarray, dtype: np.dtype, low: float, high: float) -> np.ndarray:
    """cvt.rzi: toward zero, saturating, NaN as zero."""
    wide = np.nan_to_num(a.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    wide = np.trunc(wide)
    top = np.iinfo(dtype).max
    clipped = np.clip(wide, low, high)
    out = np.where(clipped >= float(top), top, np.where(clipped >= float(top), 0, clipped).astype(dtype))
    return out.astype(dtype)


@stateful("arith.fptosi", "arith.fptoui")
def _float_to_integer(tr: Translator, op):
    t = op.results[0].type
    dtype, signed = dtype_of(t), op.name == "arith.fptosi"
    bits = max(dtype.itemsize * 8, 32) if dtype != np.bool_ else 32
    wide = np.dtype(f"{'i' if signed else 'u'}{bits // 8}")
    info = np.iinfo(wide)
    element = t.element_type if isinstance(t, ir.VectorType) else t
    width = element.width if isinstance(element, ir.IntegerType) else tr.index_bits
    low, high = (-(2.0 ** (width - 1)), 2.0 ** (width - 1)) if signed else (0.0, 2.0**width)
    looks = _MARK in op.attributes and bool(list(op.results[0].uses))

    def convert(s: State, x: np.ndarray) -> np.ndarray:
        if looks and s.m.check:
            cut = np.trunc(x.astype(np.float64))
            complain(s, ~((cut >= low) & (cut < high)), f"converts a float that {t} cannot hold", op)
        return _round_to_integer(x, wide, float(info.min), float(info.max)).astype(dtype)

    return convert


def mark_conversions(top: ir.Operation) -> None:
    """Marks the conversions of floats to integers that are the kernel's own: in what `mlirc-expand-math` adds, what is
    converted out of range is selected away."""
    for op in nested(top):
        if op.name in ("arith.fptosi", "arith.fptoui"):
            op.attributes[_MARK] = ir.UnitAttr.get(top.context)


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

    return applied_to_state(tr, op, lambda s, x: wrapped(s, f(x), op, wide)) if cut else applied(tr, op, f)
