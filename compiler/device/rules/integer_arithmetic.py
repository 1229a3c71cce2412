"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions", "Extended-Precision Integer Arithmetic
Instructions"): types wrap, and `index` has the 32 bits that the back end gives it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirc.device.attributes import flag, word
from mlirc.device.declare import applied, pure, rule
from mlirc.device.integer_checks import Bad, as_unsigned, integer_step, integer_width, is_index
from mlirc.device.numbers import dtype_of, signed_from, unsigned
from mlirc.device.translate import Translator


def _signed_divide(a, b):
    q = np.floor_divide(a, b)
    return q + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


_INTEGER: dict[str, Callable] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.divsi": _signed_divide,
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": lambda a, b: -np.floor_divide(-a, b),
    "arith.remsi": np.fmod,
    "arith.divui": as_unsigned(np.floor_divide),
    "arith.ceildivui": as_unsigned(lambda a, b: np.where(a == 0, a, (a - (a != 0)) // b + (a != 0)).astype(a.dtype)),
    "arith.remui": as_unsigned(np.remainder),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": as_unsigned(np.maximum),
    "arith.minui": as_unsigned(np.minimum),
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
_SIGNED_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.floordivsi", "arith.ceildivsi")
_UNSIGNED_DIVISIONS = ("arith.divui", "arith.remui", "arith.ceildivui")


def _divisor_checks(tr: Translator, op, least: int) -> list[tuple[Bad, str]]:
    n = tr.known(op.operands[1])
    found: list[tuple[Bad, str]] = []
    if not n:
        found.append((lambda a, b, r: np.broadcast_to(b == 0, r.shape), "divides by zero"))
    if op.name in _SIGNED_DIVISIONS and n in (None, -1):
        found.append((lambda a, b, r: (b == -1) & (a == least), f"divides {least}, the least number, by -1"))
    return found


@rule(*_INTEGER)
def _integer(tr: Translator, op):
    t = op.results[0].type
    if dtype_of(t) == np.bool_:
        if op.name not in _BOOL:
            raise tr.refused(op, "of i1 has no meaning")
        return applied(tr, op, _BOOL[op.name])
    divides = op.name in _SIGNED_DIVISIONS or op.name in _UNSIGNED_DIVISIONS
    checks = _divisor_checks(tr, op, -(1 << (integer_width(tr, t) - 1))) if divides else []
    return integer_step(tr, op, _by_power_of_two(tr, op) or _INTEGER[op.name], checks)


def _by_power_of_two(tr: Translator, op) -> Callable | None:
    """An unsigned division, or its remainder, by a constant power of two."""
    n = tr.known(op.operands[1])
    if op.name not in ("arith.divui", "arith.remui") or n is None or n <= 0 or n & (n - 1):
        return None
    shift, low = n.bit_length() - 1, n - 1
    if op.name == "arith.remui":
        return lambda a, b: a & low
    return lambda a, b: signed_from(unsigned(a) >> shift, a.dtype)


@pure("arith.addui_extended", "arith.mulsi_extended", "arith.mului_extended")
def _extended(tr: Translator, op):
    """The lower and the upper half of a result with twice the bits; of a sum, the carry."""
    bits = dtype_of(op.results[0].type).itemsize * 8
    if tr.index_bits == 32 and is_index(op.results[0].type):
        raise tr.refused(op, "of indices is not supported: cast them to i32 or i64")

    def product(x, y):
        wide = (lambda v: v) if op.name == "arith.mulsi_extended" else unsigned
        total = wide(x).astype(object) * wide(y).astype(object)
        halves = (total & ((1 << bits) - 1), (total >> bits) & ((1 << bits) - 1))
        return tuple(half.astype(np.uint64).astype(x.dtype) for half in halves)

    return product if "mul" in op.name else lambda x, y: (x + y, unsigned(x + y) < unsigned(x))


def _leading_zeros(a: np.ndarray) -> np.ndarray:
    bits = a.dtype.itemsize * 8
    out = np.full(a.shape, bits, dtype=a.dtype)
    for i in range(bits):
        out = np.where((a >> i) & 1 != 0, bits - 1 - i, out).astype(a.dtype)
    return out


def _trailing_zeros(a: np.ndarray) -> np.ndarray:
    bits = a.dtype.itemsize * 8
    out = np.full(a.shape, bits, dtype=a.dtype)
    for i in reversed(range(bits)):
        out = np.where((a >> i) & 1 != 0, i, out).astype(a.dtype)
    return out


_BITS: dict[str, Callable] = {
    "math.ctpop": lambda a: np.bitwise_count(a.view(f"u{a.dtype.itemsize}")).astype(a.dtype),
    "math.ctlz": _leading_zeros,
    "math.cttz": _trailing_zeros,
}


@pure("math.absi")
def _absolute(tr: Translator, op):
    return np.abs


@pure(*_BITS)
def _bits(tr: Translator, op):
    f = _BITS[op.name]
    if tr.index_bits == 32 and is_index(op.results[0].type):
        return lambda a: f(a.astype(np.int32)).astype(np.int64)
    return f


@pure("nvvm.dot.accumulate.4way", "nvvm.dot.accumulate.2way")
def _dot(tr: Translator, op):
    count = 4 if op.name.endswith("4way") else 2
    signs = [word(op, n) == "signed" for n in ("a_type", "b_type")]
    high = count == 2 and flag(op, "b_hi")

    def dot(a, b, c):
        left, right = (
            np.ascontiguousarray(x).view(f"{'i' if sign else 'u'}{x.itemsize}").astype(np.int64)
            for x, sign in zip((a, b), signs, strict=True)
        )
        right = right[..., 2:] if high else right[..., :count]
        return (c.astype(np.int64) + (left * right).sum(axis=-1)).astype(np.int32)

    return dot
