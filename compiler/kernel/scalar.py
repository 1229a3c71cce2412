"""Numbers inside of an operation's body: Python's operators on one element of each operand.

Floats of 16 and 8 bits are computed with in f32, and rounded where `to` says so. A Python number takes the type of
what it meets; where an integer meets a float, the integer is converted.
"""

from __future__ import annotations

import math as python_math
from collections.abc import Callable
from typing import Any

from mlirc.kernel.places import error
from mlirc.mlir import arith, ir, math

# The element types by name, and how wide each is.
FLOATS = {"f8E4M3FN": 8, "f8E5M2": 8, "f16": 16, "bf16": 16, "f32": 32, "f64": 64}
INTEGERS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
ALIASES = {"bool": "i1", "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
           "int32": "i32", "int16": "i16", "int8": "i8"}  # fmt: skip


def dtype_named(name: Any) -> str:
    """An element type's short name (`f32`) from a name or a torch dtype. Raises KernelError for another."""
    text = str(name).removeprefix("torch.")
    text = {"float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2"}.get(text, ALIASES.get(text, text))
    if text not in FLOATS and text not in INTEGERS:
        raise error(f"unknown dtype '{name}': use one of {', '.join((*FLOATS, *INTEGERS))}")
    return text


def element_type(dtype: str) -> ir.Type:
    """The MLIR type of an element type's name."""
    return ir.Type.parse(dtype)


def is_float(dtype: str) -> bool:
    """Whether elements are floats."""
    return dtype in FLOATS


def computed(dtype: str) -> str:
    """The type that elements are computed with in."""
    return "f32" if FLOATS.get(dtype, 64) < 32 else dtype


class Scalar:
    """One element in the body of an operation. `value` is its MLIR value."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: ir.Value):
        self.value = value

    @property
    def dtype(self) -> str:
        """The name of its type."""
        return "i64" if isinstance(self.value.type, ir.IndexType) else str(self.value.type)

    def to(self, dtype: Any) -> Scalar:
        """The number in another type, rounded to nearest even, or of integers cut."""
        return Scalar(_converted(self.value, dtype_named(dtype)))

    def __add__(self, other: Any) -> Scalar:
        return _arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Scalar:
        return _arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Scalar:
        return _arithmetic("sub", self, other)

    def __rsub__(self, other: Any) -> Scalar:
        return _arithmetic("sub", other, self)

    def __mul__(self, other: Any) -> Scalar:
        return _arithmetic("mul", self, other)

    def __rmul__(self, other: Any) -> Scalar:
        return _arithmetic("mul", other, self)

    def __truediv__(self, other: Any) -> Scalar:
        return _divided(self, other)

    def __rtruediv__(self, other: Any) -> Scalar:
        return _divided(other, self)

    def __floordiv__(self, other: Any) -> Scalar:
        return _whole(self, other)[0]

    def __mod__(self, other: Any) -> Scalar:
        return _whole(self, other)[1]

    def __pow__(self, other: Any) -> Scalar:
        if isinstance(other, int) and not isinstance(other, bool) and 1 <= other <= 4:
            result = self
            for _ in range(other - 1):
                result = result * self
            return result
        a, b = _together(self, other, floats=True)
        return Scalar(math.powf(a, b))

    def __neg__(self) -> Scalar:
        wide = _wide(self)
        return Scalar(arith.negf(wide)) if is_float(str(wide.type)) else 0 - self

    def __abs__(self) -> Scalar:
        wide = _wide(self)
        return Scalar(math.absf(wide) if is_float(str(wide.type)) else math.absi(wide))

    def __lt__(self, other: Any) -> Scalar:
        return _compared("lt", self, other)

    def __le__(self, other: Any) -> Scalar:
        return _compared("le", self, other)

    def __gt__(self, other: Any) -> Scalar:
        return _compared("gt", self, other)

    def __ge__(self, other: Any) -> Scalar:
        return _compared("ge", self, other)

    def __eq__(self, other: Any) -> Scalar:  # type: ignore[override]
        return _compared("eq", self, other)

    def __ne__(self, other: Any) -> Scalar:  # type: ignore[override]
        return _compared("ne", self, other)

    def __and__(self, other: Any) -> Scalar:
        return _bits(arith.andi, "&", self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Scalar:
        return _bits(arith.ori, "|", self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Scalar:
        return _bits(arith.xori, "^", self, other)

    __rxor__ = __xor__

    def __invert__(self) -> Scalar:
        return _bits(arith.xori, "~", self, True if self.dtype == "i1" else -1)

    def __bool__(self) -> bool:
        raise error("an element has no value while the kernel is built: choose with ops.where, and not by if, and, or")

    def __repr__(self) -> str:
        return f"Scalar({self.dtype})"


def constant(number: Any, dtype: str) -> ir.Value:
    """A Python number as a constant of a type. Raises KernelError for what the type does not have."""
    type_ = element_type(dtype)
    if is_float(dtype):
        return arith.constant(type_, float(number))
    if dtype == "i1":
        return arith.constant(type_, int(bool(number)))
    if number != int(number) or not -(2 ** (INTEGERS[dtype] - 1)) <= number < 2 ** (INTEGERS[dtype] - 1):
        raise error(f"{number} is no {dtype}")
    return arith.constant(type_, int(number))


def scalar(value: Any, dtype: str = "f32") -> Scalar:
    """A Scalar as it is; a Python number as one, of `dtype`."""
    return value if isinstance(value, Scalar) else Scalar(constant(value, dtype))


def _number(x: Any) -> bool:
    return isinstance(x, (int, float)) or type(x) is bool


def _operand(x: Any) -> Any:
    """A Scalar or a number; raises KernelError for anything else."""
    if not isinstance(x, Scalar) and not _number(x):
        raise error(f"operands are elements and numbers, not {type(x).__name__}")
    return x


def _wide(x: Scalar) -> ir.Value:
    """The value in the type that it is computed with in."""
    return _converted(x.value, computed(x.dtype))


def common(dtypes: list[str]) -> str:
    """The type that elements of several types are computed with in together."""
    floats = [computed(d) for d in dtypes if is_float(d)]
    if floats:
        return max(floats, key=FLOATS.__getitem__)
    return max(dtypes, key=INTEGERS.__getitem__)


def _together(*operands: Any, floats: bool = False) -> list[ir.Value]:
    """Operands in one type: floats, where they must be or one of them is."""
    known = [_operand(x).dtype for x in operands if isinstance(x, Scalar)]
    if not known:
        raise error("one of the operands has to be an element")
    dtype = common(known)
    fractions = any(isinstance(x, float) for x in operands)
    if not is_float(dtype) and (floats or fractions):
        dtype = "f32"
    if dtype == "i1" and any(isinstance(x, int) and not isinstance(x, bool) for x in operands):
        dtype = "i64"
    return [_converted(x.value, dtype) if isinstance(x, Scalar) else constant(x, dtype) for x in operands]


def _arithmetic(name: str, a: Any, b: Any) -> Scalar:
    x, y = _together(a, b)
    if str(x.type) == "i1":
        x, y = (_converted(v, "i64") for v in (x, y))
    kind = "f" if is_float(str(x.type)) else "i"
    return Scalar(getattr(arith, f"{name}{kind}")(x, y))


def _divided(a: Any, b: Any) -> Scalar:
    x, y = _together(a, b, floats=True)
    return Scalar(arith.divf(x, y))


def _whole(a: Scalar, b: Any) -> tuple[Scalar, Scalar]:
    """Quotient, rounded down, and remainder by a positive whole number."""
    if is_float(a.dtype) or isinstance(b, bool) or not isinstance(b, int) or b < 1:
        raise error("// and % divide integers by a positive whole number of Python's")
    x, y = _together(a, b)
    dtype = str(x.type)
    quotient, rest = arith.divsi(x, y), arith.remsi(x, y)
    below = arith.cmpi(arith.CmpIPredicate.slt, rest, constant(0, dtype))
    down = arith.select(below, arith.subi(quotient, constant(1, dtype)), quotient)
    return Scalar(down), Scalar(arith.select(below, arith.addi(rest, y), rest))


_FLOAT = {"eq": "OEQ", "ne": "UNE", "lt": "OLT", "le": "OLE", "gt": "OGT", "ge": "OGE"}
_INTEGER = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


def _compared(name: str, a: Any, b: Any) -> Scalar:
    x, y = _together(a, b)
    if is_float(str(x.type)):
        return Scalar(arith.cmpf(getattr(arith.CmpFPredicate, _FLOAT[name]), x, y))
    if str(x.type) == "i1":
        x, y = (_converted(v, "i32") for v in (x, y))
    return Scalar(arith.cmpi(getattr(arith.CmpIPredicate, _INTEGER[name]), x, y))


def _bits(function: Callable, sign: str, a: Any, b: Any) -> Scalar:
    x, y = _together(a, b)
    if is_float(str(x.type)):
        raise error(f"{sign} takes integers and booleans, not {x.type}")
    return Scalar(function(x, y))


def _converted(value: ir.Value, to: str) -> ir.Value:
    if isinstance(value.type, ir.IndexType):
        value = arith.index_cast(element_type("i64"), value)
    have, type_ = str(value.type), element_type(to)
    if have == to:
        return value
    if is_float(have) and is_float(to):
        return _resized(value, have, to)
    if is_float(have):
        if to == "i1":
            return arith.cmpf(arith.CmpFPredicate.UNE, value, constant(0.0, have))
        return arith.fptosi(type_, _resized(value, have, computed(have)))
    if is_float(to):
        wide = element_type(computed(to))
        number = arith.uitofp(wide, value) if have == "i1" else arith.sitofp(wide, value)
        return _resized(number, computed(to), to)
    if to == "i1":
        return arith.cmpi(arith.CmpIPredicate.ne, value, constant(0, have))
    if have == "i1":
        return arith.extui(type_, value)
    return arith.extsi(type_, value) if INTEGERS[to] > INTEGERS[have] else arith.trunci(type_, value)


def _resized(value: ir.Value, have: str, to: str) -> ir.Value:
    if have == to:
        return value
    if FLOATS[to] == FLOATS[have]:  # f16 and bf16: neither holds the other
        value, have = arith.extf(element_type("f32"), value), "f32"
    return arith.extf(element_type(to), value) if FLOATS[to] > FLOATS[have] else arith.truncf(element_type(to), value)


def unary(name: str, x: Scalar) -> Scalar:
    """A function of MLIR's `math` dialect of a number, as a float."""
    [wide] = _together(x, floats=True)
    return Scalar(getattr(math, name)(wide))


def larger(a: Any, b: Any) -> Scalar:
    """The larger of two numbers; NaN where one is."""
    return _extremum("max", a, b)


def smaller(a: Any, b: Any) -> Scalar:
    """The smaller of two numbers; NaN where one is."""
    return _extremum("min", a, b)


def _extremum(name: str, a: Any, b: Any) -> Scalar:
    x, y = _together(a, b)
    if is_float(str(x.type)):
        return Scalar(getattr(arith, f"{name}imumf")(x, y))
    return Scalar(getattr(arith, f"{name}{'ui' if str(x.type) == 'i1' else 'si'}")(x, y))


def chosen(condition: Any, a: Any, b: Any) -> Scalar:
    """`a` where the condition holds, else `b`."""
    if not isinstance(condition, Scalar) or condition.dtype != "i1":
        raise error("where takes a condition of booleans, as x > 0 is one")
    if not isinstance(a, Scalar) and not isinstance(b, Scalar):
        kind = "f32" if isinstance(a, float) or isinstance(b, float) else "i64"
        a = scalar(a, kind)
    if isinstance(a, Scalar) and isinstance(b, Scalar) and a.dtype == b.dtype:
        return Scalar(arith.select(condition.value, a.value, b.value))
    x, y = _together(a, b)
    return Scalar(arith.select(condition.value, x, y))


LOWEST = -python_math.inf
