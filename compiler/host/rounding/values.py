"""What is known of a value's error, and how to write that down in `arith`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mlirc.mlir import arith, ir, math

# Half a unit in the last place, relative; the smallest number, and the largest one, of each type.
ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
LEAST = {"f64": 2.0**-1074, "f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}
NORMAL = {"f64": 2.0**-1022, "f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}
LARGEST = {"f64": 1.7976931348623157e308, "f32": 3.4028235677973366e38, "f16": 65520.0, "bf16": 3.3961775292304957e38}
ROUNDOFF |= {"f8E4M3FN": 2.0**-4, "f8E5M2": 2.0**-3}
LEAST |= {"f8E4M3FN": 2.0**-9, "f8E5M2": 2.0**-16}
NORMAL |= {"f8E4M3FN": 2.0**-6, "f8E5M2": 2.0**-14}
LARGEST |= {"f8E4M3FN": 464.0, "f8E5M2": 61440.0}

SHORT = ("f16", "bf16", "f8E4M3FN", "f8E5M2")


@dataclass(frozen=True)
class Known:
    """Of a float `error` and `size` (f64; None: 0 and |v|), of an integer or boolean `other` (i1: it may be another;
    None: it is that). Of a float of 16 bits or less `rounded`, too (f64; None: not known): how far the value of another
    right implementation may be where it is a result, which must be rounded to that type."""

    error: ir.Value | None = None
    size: ir.Value | None = None
    other: ir.Value | None = None
    rounded: ir.Value | None = None


EXACT = Known()


class Builder:
    """Operations on f64 at the current insertion point. Its constants stand where it is made. `sums`: additions whose
    rounding is counted behind their loop."""

    def __init__(self, sums: Collection[ir.Operation] = ()) -> None:
        self.f64, self.sums = ir.F64Type.get(), sums
        self._top = ir.InsertionPoint.current
        self._constants: dict[float, ir.Value] = {}
        self.zero, self.infinity = self.constant(0.0), self.constant(float("inf"))
        with self._top:
            self.true = arith.constant(ir.IntegerType.get_signless(1), 1)

    def constant(self, number: float) -> ir.Value:
        if number not in self._constants:
            with self._top:
                self._constants[number] = arith.constant(self.f64, number)
        return self._constants[number]

    def wide(self, value: ir.Value) -> ir.Value:
        """A float in f64."""
        return value if value.type == self.f64 else arith.extf(self.f64, value)

    def add(self, *terms: ir.Value | None) -> ir.Value:
        """The sum of those that there are."""
        found = [t for t in terms if t is not None]
        total = found[0] if found else self.zero
        for term in found[1:]:
            total = arith.addf(total, term)
        return total

    def times(self, a: ir.Value | float, b: ir.Value | None) -> ir.Value | None:
        """The product; None where b is."""
        if b is None:
            return None
        return arith.mulf(self.constant(a) if isinstance(a, float) else a, b)

    def absolute(self, a: ir.Value) -> ir.Value:
        return math.absf(a)

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """NaN where one is."""
        return arith.maximumf(a, b)

    def select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.select(condition, a, b)

    def above(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a > b, or one of them is NaN."""
        return arith.cmpf(arith.CmpFPredicate.UGT, a, b)

    def below(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a < b, and neither is NaN."""
        return arith.cmpf(arith.CmpFPredicate.OLT, a, b)

    def equal(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.cmpf(arith.CmpFPredicate.OEQ, a, b)

    def any(self, conditions: Sequence[ir.Value | None]) -> ir.Value | None:
        """Whether one holds; None where there is none."""
        found = [c for c in conditions if c is not None]
        if not found:
            return None
        total = found[0]
        for c in found[1:]:
            total = arith.ori(total, c)
        return total

    def all(self, conditions: Sequence[ir.Value]) -> ir.Value:
        total = self.true
        for i, c in enumerate(conditions):
            total = c if i == 0 else arith.andi(total, c)
        return total

    def error_of(self, known: Known | None) -> ir.Value:
        """The error of a stored value; for an integer infinity or 0."""
        if known is None or (known.error is None and known.other is None):
            return self.zero
        return known.error if known.error is not None else self.select(known.other, self.infinity, self.zero)

    def unless(self, doubt: ir.Value | None, error: ir.Value) -> ir.Value:
        """An error, which is infinite where `doubt` holds."""
        return error if doubt is None else self.select(doubt, self.infinity, error)

    def rounded_of(self, value: ir.Value, known: Known | None) -> ir.Value:
        """How far a float may be where it is a result: what is known, else its error and one more rounding."""
        if known is not None and known.rounded is not None:
            return known.rounded
        size, error = self.absolute(self.wide(value)), self.error_of(known)
        rounding = self.add(self.times(ROUNDOFF[str(value.type)], size), self.constant(LEAST[str(value.type)]))
        return self.select(self.below(size, self.infinity), self.add(error, rounding), error)

    def size_of(self, value: ir.Value, known: Known | None) -> ir.Value:
        """What is known, else the absolute value; 0 for NaN and infinities (overflow.py)."""
        if known is not None and known.size is not None:
            return known.size
        size = self.absolute(self.wide(value))
        return self.select(self.below(size, self.infinity), size, self.zero)

    def unknown(self, value: ir.Value, doubt: ir.Value) -> Known:
        """Of a value that is exact where `doubt` does not hold, and may be anything where it does."""
        if isinstance(value.type, ir.FloatType):
            return Known(self.select(doubt, self.infinity, self.zero))
        return Known(other=doubt)
