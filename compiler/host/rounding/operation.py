"""An operation on numbers, and what its own rounding does."""

from __future__ import annotations

from mlirc.host.rounding.values import EXACT, LARGEST, LEAST, ROUNDOFF, SHORT, Builder, Known
from mlirc.mlir import arith, ir, math

_SMALL_PRODUCT = 2.0**-960  # of f64: what it loses may be less than the least number


class At:
    """An operation, with what is known of its operands."""

    def __init__(self, b: Builder, op: ir.Operation, known: dict[ir.Value, Known]):
        self.b, self.op = b, op
        self.result = op.results[0]
        self.operands = list(op.operands)
        self.known = [known.get(v, EXACT) for v in self.operands]

    @property
    def type(self) -> str:
        return str(self.result.type)

    def value(self, i: int) -> ir.Value:
        return self.b.wide(self.operands[i])

    def size(self, i: int) -> ir.Value:
        return self.b.size_of(self.operands[i], self.known[i])

    def rough_size(self, i: int) -> ir.Value:
        """The size of an operand, which may be infinite or NaN where an exact operand is."""
        known = self.known[i].size
        return self.b.absolute(self.value(i)) if known is None else known

    def error(self, i: int) -> ir.Value | None:
        return self.known[i].error

    def finish(self, exact: ir.Value, spread: ir.Value | None, size: ir.Value, roundings: float = 1.0,
               floor: float = 0.0, exactly: bool = False, overflows: bool = False) -> Known:  # fmt: skip
        """What is known of a result: `exact` in f64 from operands as they are, `spread` the effect of their errors.
        `exactly`: one operation that rounds nothing where the result is what it should be.
        Where the result is no number it is certain if that of every operand within its error is none, too;
        `overflows`: an infinity of finite operands is one by overflow (overflow.py)."""
        b, v = self.b, self.b.wide(self.result)
        largest = b.constant(LARGEST[self.type])
        rounding = b.times(roundings * ROUNDOFF[self.type], size)
        error = b.add(spread, rounding, b.constant(LEAST[self.type] + floor))
        if exactly:
            lossless = b.equal(exact, v) if self.type != "f64" else self._is_lossless()
            same = lossless if spread is None else b.all([lossless, b.equal(spread, b.zero)])
            error = b.select(same, b.zero, error)
        reach = b.add(b.absolute(exact), error)
        error = b.select(b.above(reach, largest), b.infinity, error)
        if self.type in SHORT:
            if roundings > 1:
                in_f32 = arith.mulf(b.constant(roundings * ROUNDOFF["f32"]), b.absolute(exact))
            else:  # once to f32, and then to its type
                in_f32 = b.absolute(arith.subf(exact, b.wide(arith.truncf(ir.F32Type.get(), exact))))
            in_f32 = b.add(spread, b.select(b.below(b.absolute(exact), b.infinity), in_f32, b.zero), b.constant(floor))
            error = self._rounded_apart(exact, in_f32)
        clean = [b.below(k.error, b.infinity) for k in self.known if k.error is not None]
        low = b.absolute(exact) if spread is None else arith.subf(b.absolute(exact), spread)
        certain = b.all([*clean, b.above(low, largest)])  # NaN is above, too
        number = b.below(b.absolute(v), b.infinity)
        no_error = b.select(certain, b.zero, b.infinity)
        error = b.select(number, error, no_error)
        over = b.zero
        if overflows:
            finite = b.all([b.below(b.absolute(self.value(i)), b.infinity) for i in range(len(self.operands))])
            over = b.select(finite, b.infinity, b.zero)
        return Known(error, b.select(number, size, over), rounded=error if self.type in SHORT else None)

    def _is_lossless(self) -> ir.Value:
        """Whether an operation on two f64 is rounded nowhere: what it leaves over is 0 (Dekker, A
        Floating-Point Technique for Extending the Available Precision, 1971)."""
        b, v, x, y = self.b, self.result, self.operands[0], self.operands[-1]
        if self.op.name == "arith.remf" or len(self.operands) == 1:  # a step
            return b.true
        if self.op.name == "arith.divf":
            return b.equal(math.fma(v, y, arith.negf(x)), b.zero)
        if self.op.name == "arith.mulf":
            factor = arith.minimumf(b.absolute(x), b.absolute(y))
            held = arith.ori(b.above(b.absolute(v), b.constant(_SMALL_PRODUCT)), b.equal(factor, b.zero))
            return b.all([held, b.equal(math.fma(x, y, arith.negf(v)), b.zero)])
        y = arith.negf(y) if self.op.name == "arith.subf" else y
        other = arith.subf(v, x)
        left = arith.addf(arith.subf(x, arith.subf(v, other)), arith.subf(y, other))
        return b.equal(left, b.zero)

    def _rounded_apart(self, exact: ir.Value, spread: ir.Value) -> ir.Value:
        """How far rounding to 16 bits or less may take another right implementation from here, in f64: what it rounds
        is at most twice the error away (once for either), and rounding never changes the order of two numbers. So
        nowhere, but where the number lies near a tie: there a whole unit in the last place."""
        b = self.b
        reach, far = arith.mulf(b.constant(2.0), spread), []
        for end in (arith.subf(exact, reach), arith.addf(exact, reach)):
            short = arith.truncf(self.result.type, arith.truncf(ir.F32Type.get(), end))
            far.append(b.absolute(arith.subf(b.wide(short), b.wide(self.result))))
        return b.larger(*far)
