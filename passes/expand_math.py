"""`mlirc-expand-math`: math ops that NVPTX has no instruction for become arithmetic, on scalars and vectors.

Left in place are the ops that LLVM's NVPTX back end selects itself: absf, ceil, floor, trunc, round, roundeven,
copysign, fma, sqrt, the bit counts, and exp2 of f32 (ex2.approx). f16 and bf16 go through f32, where the fast variants
are accurate enough; f32 functions without an f32 version of their own go through f64. `fastmath<afn>` or `<fast>` on an
op picks the fast variant.
"""

from __future__ import annotations

from math import isfinite

from mlirc.errors import MlircError
from mlirc.mlir import arith, ir, math, scf
from mlirc.passes import register
from mlirc.passes.mathlib import f32, f64
from mlirc.passes.mathlib.angles import reduced_f32, reduced_f64
from mlirc.passes.mathlib.builder import Number, any_of, constant, element_type, fma, select

_NATIVE = {
    "absf", "absi", "ceil", "floor", "trunc", "round", "roundeven", "copysign", "fma", "sqrt", "ctlz", "cttz", "ctpop",
    "isfinite", "isinf", "isnan", "isnormal",
}  # fmt: skip
_NAMES = {"powf": "pow"}
_LARGEST_POWER = 16
Angles = dict[tuple[ir.Value, ir.Block], tuple[Number, Number]]  # the parts of angles, by where they are used


def _splat(value: ir.Value) -> float | None:
    """The number that a constant (or a constant extended or broadcast) holds in every element, or None."""
    owner = value.owner
    if not isinstance(owner, ir.Operation | ir.OpView):
        return None
    op = owner.operation
    if op.name in ("arith.extf", "arith.truncf", "vector.broadcast", "arith.sitofp"):
        return _splat(op.operands[0])
    if op.name != "arith.constant":
        return None
    attr = op.attributes["value"]
    if isinstance(attr, ir.DenseElementsAttr):
        if not attr.is_splat:
            return None
        attr = attr.get_splat_value()
    if isinstance(attr, ir.FloatAttr | ir.IntegerAttr):
        return float(attr.value)
    return None


def _integral_power(x: Number, exponent: int) -> Number:
    """x^exponent by repeated squaring, for a small constant exponent."""
    if exponent < 0:
        return 1.0 / _integral_power(x, -exponent)
    result: Number | None = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return x.const(1.0) if result is None else result


def _constant_power(x: Number, exponent: float | None) -> Number | None:
    """x^exponent without logarithms where the exponent allows."""
    if exponent is None or not isfinite(exponent):
        return None
    if exponent == int(exponent) and abs(exponent) <= _LARGEST_POWER:
        return _integral_power(x, int(exponent))
    if exponent == 0.5:
        return x.sqrt()
    if exponent == -0.5:
        return 1.0 / x.sqrt()
    return None


def _squaring_loop(base: Number, exponent: Number) -> Number:
    """base^exponent for a runtime exponent >= 0, one bit of it per trip."""
    zero, one = ir.IntegerAttr.get(ir.IndexType.get(), 0), ir.IntegerAttr.get(ir.IndexType.get(), 1)
    count = ir.IntegerAttr.get(ir.IndexType.get(), exponent.width)
    bounds = [arith.ConstantOp(ir.IndexType.get(), a).result for a in (zero, count, one)]
    loop = scf.ForOp(*bounds, [base.const(1).value, base.value, exponent.value])
    with ir.InsertionPoint(loop.body):
        result, square, bits = (Number(a) for a in loop.inner_iter_args)
        taken = select((bits & 1).compare("ne", 0), result * square, result)
        scf.YieldOp([taken.value, (square * square).value, (bits >> 1).value])
    return Number(loop.results[0])


def _ipowi(base: Number, exponent: Number) -> Number:
    """Integer power; for a negative exponent the integer part of 1 / base^|exponent|."""
    power = _squaring_loop(base, select(exponent.compare("lt", 0), exponent.const(0), exponent))
    odd_sign = select((exponent & 1).compare("ne", 0), base, base.const(1))
    unit = select(abs(base).compare("eq", 1), odd_sign, base.const(0))
    return select(exponent.compare("lt", 0), unit, power)


def _fpowi(base: Number, exponent: Number) -> Number:
    power = _squaring_loop(base, abs(exponent))
    return select(exponent.compare("lt", 0), 1.0 / power, power)


def _round_to(value: Number, type_: ir.Type) -> Number:
    if value.type == type_:
        return value
    return Number(arith.TruncFOp(type_, value.value).result)


def _in_f64(name: str, operands: list[Number]) -> Number:
    wide = [x if x.width == 64 else x.to_f64() for x in operands]
    return f64.FUNCTIONS[name](*wide)


def _of_angle(op: ir.Operation, name: str, angles: Angles) -> Number:
    """Sine, cosine or tangent; those of one angle in one block share its parts."""
    x, type_ = Number(op.operands[0]), op.results[0].type
    deep = x.width == 64
    key = (op.operands[0], op.block)
    if key not in angles:
        angles[key] = reduced_f64(x) if deep else reduced_f32(x.to_f32())
    return _round_to((f64 if deep else f32).OF_ANGLES[name](*angles[key]), type_)


def _float_function(op: ir.Operation, name: str, angles: Angles) -> Number | None:
    """The expansion of a float function of float operands, in the op's own type."""
    if name in f64.OF_ANGLES:
        return _of_angle(op, name, angles)
    type_ = op.results[0].type
    width = element_type(type_).width
    operands = [Number(v) for v in op.operands]
    if name == "powf":
        power = _constant_power(operands[0].to_f32() if width < 32 else operands[0], _splat(op.operands[1]))
        if power is not None:
            return _round_to(power, type_)
    name = _NAMES.get(name, name)
    if name not in f64.FUNCTIONS:
        return None
    if width == 64:
        return _in_f64(name, operands)
    narrow = [x.to_f32() for x in operands]
    flags = str(op.attributes["fastmath"]) if "fastmath" in op.attributes else ""
    if name == "exp2":
        if width == 32 and "afn" in flags:
            return f32.ex2_flushed(narrow[0])
        return _round_to(f32.ex2(narrow[0]), type_) if width < 32 else None
    if name in f32.FUNCTIONS:
        fast = width < 32 or "afn" in flags or "<fast>" in flags
        return _round_to(f32.FUNCTIONS[name](narrow[0], fast=fast), type_)
    return _round_to(_in_f64(name, narrow), type_)


def _remainder(op: ir.Operation) -> Number:
    """arith.remf, C's fmod, exact for every quotient: a step of f64 arithmetic takes 52 bits of the quotient, and one
    step is enough below 2^53. The products are rounded with what is taken from them, by FMA, and these differences of
    a correctly rounded quotient's have no bits to lose."""
    type_ = op.results[0].type
    x, y = (Number(v) for v in op.operands)
    if x.width < 32:
        x, y = x.to_f32(), y.to_f32()
    deep = x.width == 64  # where quotients overflow
    if not deep:
        x, y = x.to_f64(), y.to_f64()
    size, step = abs(x), abs(y)
    defined = size.compare("lt", float("inf")) & step.compare("gt", 0.0)
    rest = _reduced(select(defined, size, 0.0), step, deep)
    rest = select(defined, rest, float("nan")).with_sign_of(x)
    if element_type(type_).width < 64:
        rest = rest.to_f32()
    return _round_to(rest, type_)


def _reduced(size: Number, step: Number, deep: bool) -> Number:
    """size mod step of f64 >= 0, by a loop until every element is below its step."""
    loop = scf.WhileOp([size.type], [size.value])
    before, after = (region.blocks.append(size.type) for region in loop.regions)
    with ir.InsertionPoint(before):
        left = any_of(Number(before.arguments[0]).compare("ge", step))
        scf.ConditionOp(left.value, before.arguments)
    with ir.InsertionPoint(after):
        rest, part = Number(after.arguments[0]), step
        if deep:  # a multiple of the step whose quotient is finite
            for _ in range(2):
                part = select((rest / part).compare("eq", float("inf")), part * 2.0**1000, part)
        quotient = Number(math.TruncOp((rest / part).value).result)
        ulp = quotient - quotient * (1 - 2.0**-53)  # of the quotient, or of numbers below it at a power of two
        below = fma(-quotient, part, rest)
        raised = fma(select(ulp.compare("lt", 1.0), 1.0, ulp), part, below)
        below = select(below.compare("lt", 0.0), raised, below)  # the quotient had been rounded up
        # What is below its step waits for other elements; 0 * inf would make NaN of it where the step is infinite.
        below = select(rest.compare("lt", step), rest, below)
        scf.YieldOp([below.value])
    return Number(loop.results[0])


def _division(op: ir.Operation) -> Number:
    """arith.ceildivsi, ceildivui and floordivsi by quotient and remainder."""
    a, b = op.operands
    zero, one = constant(0, a.type).value, constant(1, a.type).value
    signed = op.name != "arith.ceildivui"
    quotient = (arith.DivSIOp if signed else arith.DivUIOp)(a, b).result
    remainder = (arith.RemSIOp if signed else arith.RemUIOp)(a, b).result
    inexact = arith.CmpIOp(1, remainder, zero).result
    if signed:
        unlike = op.name == "arith.floordivsi"  # signs that differ round the quotient up
        same = arith.CmpIOp(unlike, arith.CmpIOp(2, a, zero).result, arith.CmpIOp(2, b, zero).result).result
        inexact = arith.AndIOp(inexact, same).result
    step = arith.SelectOp(inexact, one, zero).result
    build = arith.SubIOp if op.name == "arith.floordivsi" else arith.AddIOp
    return Number(build(quotient, step).result)


def _expand(op: ir.Operation, angles: Angles) -> list[Number] | None:
    name = op.name.split(".")[1]
    if op.name == "arith.remf":
        return [_remainder(op)]
    if op.name.startswith("arith."):
        return [_division(op)]
    if name in _NATIVE:
        return None
    operands = [Number(v) for v in op.operands]
    if name == "ipowi":
        return [_ipowi(*operands)]
    if name == "fpowi":
        base = operands[0].to_f32() if operands[0].width < 32 else operands[0]
        return [_round_to(_fpowi(base, operands[1]), op.results[0].type)]
    if name == "clampf":
        raised = arith.MaximumFOp(op.operands[0], op.operands[1]).result
        return [Number(arith.MinimumFOp(raised, op.operands[2]).result)]
    if name == "sincos":
        parts = [math.SinOp(op.operands[0]).operation, math.CosOp(op.operands[0]).operation]
        results = [_float_function(part, part.name.split(".")[1], angles) for part in parts]
        for part in parts:
            part.erase()
        return results  # type: ignore[return-value]
    result = _float_function(op, name, angles)
    if result is None and name != "exp2":
        raise MlircError(f"{op.name} at {op.location} has no expansion: add one to passes/mathlib")
    return None if result is None else [result]


_ARITH = {"arith.remf", "arith.ceildivsi", "arith.ceildivui", "arith.floordivsi"}


def _math_ops(op: ir.Operation, found: list[ir.Operation]) -> list[ir.Operation]:
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                inner = view.operation
                name = inner.name
                if name.startswith("math.") or name in _ARITH:
                    found.append(inner)
                elif inner.regions:
                    _math_ops(inner, found)
    return found


def expand_math(op: ir.Operation) -> None:
    """Expands the math ops nested in an operation, in place; raises MlircError for an op it does not know."""
    with op.context:
        angles: Angles = {}
        for inner in _math_ops(op, []):
            with inner.location, ir.InsertionPoint(inner):
                results = _expand(inner, angles)
            if results is not None:
                for old, new in zip(inner.results, results, strict=True):
                    old.replace_all_uses_with(new.value)
                inner.erase()


@register("mlirc-expand-math")
def run(module: ir.Module) -> None:
    """Expands math ops into arithmetic; see the file's head."""
    expand_math(module.operation)
