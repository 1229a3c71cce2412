"""Builds arith and math ops on values of one shape, with Python's operators.

A `Number` is an SSA value, a scalar or a vector. Python numbers mix in as constants of the other operand's type. Ops
carry no fastmath flags, so that error-free transformations survive.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.ir.vectors import flat
from mlirc.mlir import arith, ir, math, vector

_ORDERED = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 6}  # arith.CmpFPredicate: oeq ogt oge olt ole one
_UNORDERED = 7 + 7  # arith.CmpFPredicate: uno
_UNSIGNED_BELOW = 6  # arith.CmpIPredicate: ult
_SIGNED = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}  # arith.CmpIPredicate


def element_type(type_: ir.Type) -> ir.Type:
    """The type itself, or a vector's element type."""
    return type_.element_type if isinstance(type_, ir.VectorType) else type_


def like(type_: ir.Type, element: ir.Type) -> ir.Type:
    """`type_` with another element type."""
    return ir.VectorType.get(type_.shape, element) if isinstance(type_, ir.VectorType) else element


def constant(number: float | int, type_: ir.Type) -> Number:
    """A constant of a scalar or vector type."""
    element = element_type(type_)
    if isinstance(element, ir.IndexType):
        attr: ir.Attribute = ir.IntegerAttr.get(element, int(number))
    elif isinstance(element, ir.IntegerType):
        width = element.width
        wrapped = (int(number) + (1 << (width - 1))) % (1 << width) - (1 << (width - 1)) if width > 1 else int(number)
        attr = ir.IntegerAttr.get(element, wrapped)
    else:
        attr = ir.FloatAttr.get(element, float(number))
    if isinstance(type_, ir.VectorType):
        attr = ir.DenseElementsAttr.get_splat(type_, attr)
    return Number(arith.ConstantOp(type_, attr).result)


class Number:
    """An SSA value with arithmetic. Comparisons are methods and give i1 of the same shape."""

    __slots__ = ("value",)

    def __init__(self, value: ir.Value):
        self.value = value

    @property
    def type(self) -> ir.Type:
        return self.value.type

    @property
    def width(self) -> int:
        return element_type(self.type).width

    @property
    def is_float(self) -> bool:
        return not isinstance(element_type(self.type), ir.IntegerType)

    def const(self, number: float | int) -> Number:
        return constant(number, self.type)

    def _other(self, other: Number | float | int) -> Number:
        return other if isinstance(other, Number) else self.const(other)

    def _binary(self, other, for_float, for_int) -> Number:
        other = self._other(other)
        return Number((for_float if self.is_float else for_int)(self.value, other.value).result)

    def __add__(self, other) -> Number:
        return self._binary(other, arith.AddFOp, arith.AddIOp)

    def __sub__(self, other) -> Number:
        return self._binary(other, arith.SubFOp, arith.SubIOp)

    def __mul__(self, other) -> Number:
        return self._binary(other, arith.MulFOp, arith.MulIOp)

    def __truediv__(self, other) -> Number:
        return self._binary(other, arith.DivFOp, arith.DivSIOp)

    def __rsub__(self, other) -> Number:
        return self.const(other) - self

    def __rtruediv__(self, other) -> Number:
        return self.const(other) / self

    __radd__ = __add__
    __rmul__ = __mul__

    def __and__(self, other) -> Number:
        return Number(arith.AndIOp(self.value, self._other(other).value).result)

    def __or__(self, other) -> Number:
        return Number(arith.OrIOp(self.value, self._other(other).value).result)

    def __xor__(self, other) -> Number:
        return Number(arith.XOrIOp(self.value, self._other(other).value).result)

    def __lshift__(self, other) -> Number:
        return Number(arith.ShLIOp(self.value, self._other(other).value).result)

    def __rshift__(self, other) -> Number:
        return Number(arith.ShRSIOp(self.value, self._other(other).value).result)

    def logical_shift_right(self, other) -> Number:
        return Number(arith.ShRUIOp(self.value, self._other(other).value).result)

    def __neg__(self) -> Number:
        return Number(arith.NegFOp(self.value).result) if self.is_float else 0 - self

    def __abs__(self) -> Number:
        return Number((math.AbsFOp if self.is_float else math.AbsIOp)(self.value).result)

    def compare(self, how: str, other) -> Number:
        """i1: `how` is one of eq ne lt le gt ge; false where an operand is NaN."""
        other = self._other(other)
        if self.is_float:
            return Number(arith.CmpFOp(_ORDERED[how], self.value, other.value).result)
        return Number(arith.CmpIOp(_SIGNED[how], self.value, other.value).result)

    def unsigned_below(self, other) -> Number:
        return Number(arith.CmpIOp(_UNSIGNED_BELOW, self.value, self._other(other).value).result)

    def is_nan(self) -> Number:
        return Number(arith.CmpFOp(_UNORDERED, self.value, self.value).result)

    def clamp(self, low: float, high: float) -> Number:
        """min(max(x, low), high) that keeps NaN."""
        raised = arith.MaximumFOp(self.value, self.const(low).value).result
        return Number(arith.MinimumFOp(raised, self.const(high).value).result)

    def at_most(self, high: float) -> Number:
        return Number(arith.MinimumFOp(self.value, self.const(high).value).result)

    def round_even(self) -> Number:
        return Number(math.RoundEvenOp(self.value).result)

    def floor(self) -> Number:
        return Number(math.FloorOp(self.value).result)

    def sqrt(self) -> Number:
        return Number(math.SqrtOp(self.value).result)

    def with_sign_of(self, other: Number) -> Number:
        return Number(math.CopySignOp(self.value, other.value).result)

    def bits(self) -> Number:
        """Float to the integer with the same bits, or back."""
        element = element_type(self.type)
        if self.is_float:
            target: ir.Type = ir.IntegerType.get_signless(element.width)
        else:
            target = ir.F32Type.get() if element.width == 32 else ir.F64Type.get()
        return Number(arith.BitcastOp(like(self.type, target), self.value).result)

    def to_int(self) -> Number:
        """Float with an integral value to the integer of the same width."""
        target = like(self.type, ir.IntegerType.get_signless(self.width))
        return Number(arith.FPToSIOp(target, self.value).result)

    def to_float(self) -> Number:
        """Integer to the float of the same width."""
        target = ir.F32Type.get() if self.width == 32 else ir.F64Type.get()
        return Number(arith.SIToFPOp(like(self.type, target), self.value).result)

    def unsigned_to_float(self) -> Number:
        target = ir.F32Type.get() if self.width == 32 else ir.F64Type.get()
        return Number(arith.UIToFPOp(like(self.type, target), self.value).result)

    def to_f64(self) -> Number:
        return Number(arith.ExtFOp(like(self.type, ir.F64Type.get()), self.value).result)

    def to_f32(self) -> Number:
        """Extends a 16-bit float, or rounds an f64, to f32."""
        target = like(self.type, ir.F32Type.get())
        if self.width == 32:
            return self
        build = arith.ExtFOp if self.width < 32 else arith.TruncFOp
        return Number(build(target, self.value).result)

    def to_i32(self) -> Number:
        """i64 to i32, dropping the high bits."""
        return Number(arith.TruncIOp(like(self.type, ir.IntegerType.get_signless(32)), self.value).result)


def fma(a: Number, b: Number | float, c: Number | float) -> Number:
    """a * b + c, rounded once."""
    return Number(math.FmaOp(a.value, a._other(b).value, a._other(c).value).result)


def select(condition: Number, yes: Number | float, no: Number | float) -> Number:
    """Where the condition holds `yes`, else `no`; at most one of the two is a Python number."""
    if not isinstance(yes, Number):
        yes = no.const(yes)  # type: ignore[union-attr]
    return Number(arith.SelectOp(condition.value, yes.value, yes._other(no).value).result)


def wide_product(a: Number, b: Number) -> tuple[Number, Number]:
    """(low half, high half) of the product of two unsigned integers."""
    product = arith.MulUIExtendedOp(a.value, b.value)
    return Number(product.low), Number(product.high)


def any_of(condition: Number) -> Number:
    """i1: whether a condition holds for an element."""
    if not isinstance(condition.type, ir.VectorType):
        return condition
    i1 = element_type(condition.type)
    return Number(vector.ReductionOp(i1, vector.CombiningKind.OR, flat(condition.value)).result)


def polynomial(x: Number, coefficients: Sequence[float]) -> Number:
    """Horner's rule with FMA; lowest power first."""
    result: Number | float = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        result = fma(x, result, c)
    return result if isinstance(result, Number) else x.const(result)
