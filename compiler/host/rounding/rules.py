"""What each operation on numbers does to errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mlirc.host.rounding import overflow
from mlirc.host.rounding.cuts import is_fp8
from mlirc.host.rounding.factors import FACTORS, lost_by_two_parts, with_narrow_factors
from mlirc.host.rounding.operation import At
from mlirc.host.rounding.values import EXACT, LARGEST, LEAST, NORMAL, ROUNDOFF, SHORT, Builder, Known
from mlirc.ir.levels import ROUNDED, WEIGHT
from mlirc.mlir import arith, ir

_FUNCTION = 4.0  # roundings that a function such as exp may cost
_LARGEST_TF32 = 2.0**128 - 2.0**116
_RULES: dict[str, Callable[[At], Known]] = {}
_WAVES = ("math.sin", "math.cos")
_STEPS = ("math.floor", "math.ceil", "math.round", "math.roundeven", "math.trunc")
_FLAGS = "fastmath"
_CASTS = ("arith.sitofp", "arith.uitofp")


def apply(b: Builder, op: ir.Operation, known: dict[ir.Value, Known]) -> None:
    """Adds to `known` what is known of the operation's results."""
    if not op.results:
        return
    rule = _RULES.get(op.name)
    at = At(b, op, known)
    if rule is not None:
        known[at.result] = rule(at)
    elif isinstance(at.result.type, ir.FloatType):
        floats = [v for v in at.operands if isinstance(v.type, ir.FloatType)]
        known[at.result] = _function(at) if len(floats) == len(at.operands) == 1 else _unknown(at)
    else:
        doubt = b.any([_doubt(b, k) for k in at.known])
        if doubt is not None:
            known.update({r: Known(other=doubt) for r in op.results})


def _doubt(b: Builder, known: Known) -> ir.Value | None:
    """Whether a value may be another one at all."""
    return known.other if known.error is None else b.above(known.error, b.zero)


def _unknown(at: At) -> Known:
    """A function of several numbers: exact operands give a rounded result, others give nothing to rely on."""
    doubt = at.b.any([_doubt(at.b, k) for k in at.known])
    v = at.b.wide(at.result)
    made = at.finish(v, None, at.b.absolute(v), 4 * _FUNCTION, NORMAL[at.type])
    assert made.error is not None
    return made if doubt is None else Known(at.b.select(doubt, at.b.infinity, made.error), made.size)


def _rule(*names: str) -> Callable:
    def register(function: Callable[[At], Known]) -> Callable[[At], Known]:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


_ADDITIONS = ("arith.addf", "arith.subf")


@_rule(*_ADDITIONS)
def _sum(at: At) -> Known:
    """Numbers of memory and of functions are finished: what they are made of is not added in another order with what
    they are added to. Only sums of several terms here, and those over a loop, are."""
    b = at.b
    exact = (arith.addf if at.op.name == "arith.addf" else arith.subf)(at.value(0), at.value(1))
    errors = [at.error(i) for i in (0, 1)]
    spread = b.add(*errors) if any(e is not None for e in errors) else None
    size = b.add(at.rough_size(0), at.rough_size(1))
    if at.op in b.sums:
        found = at.finish(exact, spread, size, 0.0)
    elif not any(_is_term(at, i) for i in (0, 1)):
        found = at.finish(exact, spread, b.add(b.absolute(exact), spread), exactly=True)
    else:
        found = at.finish(exact, spread, size)
    second = at.value(1) if at.op.name == "arith.addf" else arith.negf(at.value(1))
    return overflow.of_sum(at, [at.value(0), second], exact, size, found)


def _is_term(at: At, i: int) -> bool:
    """Whether an operand is a sum itself, or what a loop has added up so far."""
    op = at.operands[i].owner
    if isinstance(op, ir.Block):
        return False
    if op.name in (*_ADDITIONS, "math.fma"):
        return True
    if op.name != "memref.load":
        return False
    return any(
        use.owner.operation.name == "memref.store" and list(use.owner.operands)[1:] == list(op.operands)
        for use in at.result.uses
    )


def _product_spread(at: At, first: ir.Value | None) -> ir.Value | None:
    b, second = at.b, at.error(1)
    terms = [
        b.times(b.absolute(at.value(1)), first),
        b.times(b.absolute(at.value(0)), second),
        b.times(first, second) if first is not None else None,
    ]
    return b.add(*terms) if any(t is not None for t in terms) else None


def _is_added(value: ir.Value) -> bool:
    """Whether a product may become part of an fma."""
    return any(use.owner.operation.name in ("arith.addf", "arith.subf") for use in value.uses)


@_rule("arith.mulf")
def _product(at: At) -> Known:
    b, first = at.b, at.error(0)
    if all(k.error is None and is_fp8(v) for k, v in zip(at.known, at.operands, strict=True)):
        return EXACT  # no bit is lost
    taken = at.op.attributes[WEIGHT].value if WEIGHT in at.op.attributes else ""
    if taken not in ("", at.type):
        first = b.add(first, b.times(ROUNDOFF[taken], b.absolute(at.value(0))), b.constant(LEAST[taken]))
    exact = arith.mulf(at.value(0), at.value(1))
    way = at.op.attributes[ROUNDED].value if ROUNDED in at.op.attributes else ""
    roundings = FACTORS.get(way, 1.0)
    size = arith.mulf(at.rough_size(0), at.rough_size(1))
    spread = _product_spread(at, first)
    if way == "tf32x3":
        spread = b.add(spread, lost_by_two_parts(at))
    found = at.finish(exact, spread, size, roundings, exactly=roundings == 1.0, overflows=True)
    found = overflow.of_product(at, found)
    if way == "tf32":  # to which the largest f32 are rounded as infinities
        larger = b.larger(*(b.absolute(at.value(i)) for i in (0, 1)))
        doubt = b.all([b.below(b.constant(_LARGEST_TF32), larger), b.below(larger, b.infinity)])
        found = Known(b.unless(doubt, b.error_of(found)), found.size)
    if way in ("f16", "bf16"):
        found = with_narrow_factors(at, found, way)
    if not taken:
        return found
    # What nobody attends to, or so little that its weight may be rounded to 0, may be left out or meet an infinity.
    least = first if first is not None else b.zero
    nothing = arith.cmpf(arith.CmpFPredicate.ULE, b.absolute(at.value(0)), least)
    left_out = b.all([nothing, b.above(b.absolute(at.value(1)), b.constant(LARGEST[at.type]))])
    return Known(b.select(left_out, b.infinity, found.error), found.size)


@_rule("arith.divf")
def _quotient(at: At) -> Known:
    b, exact = at.b, arith.divf(at.value(0), at.value(1))
    size = arith.divf(at.size(0), b.absolute(at.value(1)))
    first, second = at.error(0), at.error(1)
    if second is None:
        spread = None if first is None else arith.divf(first, b.absolute(at.value(1)))
    else:
        left = arith.subf(b.absolute(at.value(1)), second)
        spread = arith.divf(b.add(first, b.times(b.absolute(exact), second)), left)
        certain = b.equal(second, b.zero)  # a divisor of 0, or infinity
        kept = first if first is not None else b.zero
        spread = b.select(b.above(left, b.zero), spread, b.select(certain, kept, b.infinity))
    made = overflow.of_quotient(at, at.finish(exact, spread, size, 2.0, exactly=True, overflows=True))
    assert made.size is not None  # an infinity by a divisor of 0 is one in every order
    return replace(made, size=b.select(b.equal(at.value(1), b.zero), b.zero, made.size))


@_rule("arith.remf")
def _remainder(at: At) -> Known:
    """Exact, but where another right dividend or divisor has another quotient."""
    b, (first, second) = at.b, (at.error(0), at.error(1))
    if first is None and second is None:
        return EXACT
    x, y = (b.absolute(at.value(i)) for i in (0, 1))
    low = arith.divf(arith.subf(x, b.add(first)), b.add(y, second))
    high = arith.divf(b.add(x, first), arith.subf(y, b.add(second)))
    near = [_unary("math.trunc", b.times(1 + k * 2.0**-50, q)) for k, q in ((-1, low), (1, high))]
    spread = b.add(first, b.times(_unary("math.trunc", high), second))
    spread = b.select(b.equal(*near), spread, b.infinity)
    spread = b.select(b.equal(b.add(first, second), b.zero), b.zero, spread)
    return at.finish(b.wide(at.result), spread, b.absolute(b.wide(at.result)), 0.0, exactly=True)


@_rule("math.fma")
def _fused(at: At) -> Known:
    b = at.b
    factors = arith.mulf(at.value(0), at.value(1))
    exact = arith.addf(factors, at.value(2))
    product = _product_spread(at, at.error(0))
    spread = None if product is None and at.error(2) is None else b.add(product, at.error(2))
    size = b.add(arith.mulf(at.size(0), at.size(1)), at.size(2))
    found = at.finish(exact, spread, size, 2.0 if at.type in SHORT else 1.0)  # the level above rounds once more
    return overflow.of_sum(at, [factors, at.value(2)], exact, size, found)


@_rule("arith.negf", "math.absf", "arith.extf")
def _same(at: At) -> Known:
    return at.known[0]


@_rule("arith.truncf")
def _narrower(at: At) -> Known:
    b = at.b
    made = at.finish(at.value(0), at.error(0), b.absolute(at.value(0)), 0.0 if at.type in SHORT else 1.0)
    error, v = made.error, b.wide(at.result)
    becomes = b.all([b.below(b.absolute(at.value(0)), b.infinity), b.equal(b.absolute(v), b.infinity)])
    size = b.select(becomes, b.infinity, at.size(0))
    assert error is not None
    if _is_contracted(at):  # then it is not rounded
        unrounded = b.add(at.error(0), b.absolute(arith.subf(at.value(0), v)))
        error = b.select(b.below(b.absolute(v), b.infinity), b.larger(error, unrounded), error)
    return Known(error, size, rounded=made.rounded)


def _is_contracted(at: At) -> bool:
    """Whether this rounds a product of 16 bits, computed in f32, that may become part of an fma."""
    source = at.operands[0].owner
    if (
        isinstance(source, ir.Block)
        or source.name != "arith.mulf"
        or "contract" not in str(at.op.attributes.get(_FLAGS))
    ):
        return False
    wide = [use.owner.operation.results[0] for use in at.result.uses if use.owner.operation.name == "arith.extf"]
    return any(_is_added(v) for v in wide)


@_rule("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf")
def _extreme(at: At) -> Known:
    errors = [k.error for k in at.known if k.error is not None]
    if not errors:
        return EXACT
    b, error = at.b, errors[0] if len(errors) == 1 else at.b.larger(errors[0], errors[1])
    absolute = b.absolute(b.wide(at.result))
    number, size = b.below(absolute, b.infinity), b.larger(at.size(0), at.size(1))
    error = b.select(number, error, b.select(b.below(error, b.infinity), b.zero, b.infinity))
    return Known(error, b.select(number, absolute, size))


@_rule("arith.select")
def _choice(at: At) -> Known:
    b, (condition, yes, no) = at.b, at.known
    doubt = condition.other
    if not isinstance(at.result.type, ir.FloatType):
        either = b.any([yes.other, no.other])
        if doubt is not None:
            doubt = arith.andi(doubt, arith.cmpi(arith.CmpIPredicate.ne, at.operands[1], at.operands[2]))
        found = b.any([doubt, either])
        return EXACT if found is None else Known(other=found)
    if doubt is None and yes.error is None and no.error is None:
        return EXACT
    chosen = at.operands[0]
    error = b.select(chosen, b.error_of(yes), b.error_of(no))
    if doubt is not None:
        apart = b.add(b.absolute(arith.subf(at.value(1), at.value(2))), b.larger(b.error_of(yes), b.error_of(no)))
        apart = b.select(b.equal(at.value(1), at.value(2)), b.larger(b.error_of(yes), b.error_of(no)), apart)
        error = b.select(doubt, apart, error)
    return Known(error, b.select(chosen, at.size(1), at.size(2)))


@_rule("arith.cmpf")
def _comparison(at: At) -> Known:
    b, errors = at.b, [k.error for k in at.known if k.error is not None]
    if not errors:
        return EXACT
    error = b.add(*errors)
    ordered = ir.IntegerAttr(at.op.attributes["predicate"]).value in (arith.CmpFPredicate.ORD, arith.CmpFPredicate.UNO)
    if ordered or at.operands[0] == at.operands[1]:  # looks for NaN
        return Known(other=arith.xori(b.below(error, b.infinity), b.true))
    apart = b.below(error, b.absolute(arith.subf(at.value(0), at.value(1))))
    no_number = arith.cmpf(arith.CmpFPredicate.UNO, at.value(0), at.value(1))
    sure = b.any([apart, b.equal(error, b.zero), arith.andi(no_number, b.below(error, b.infinity))])
    return Known(other=arith.xori(sure, b.true))


@_rule(*_CASTS)
def _from_integer(at: At) -> Known:
    b, v, doubt = at.b, at.b.wide(at.result), at.known[0].other
    if 2.0 ** ir.IntegerType(at.operands[0].type).width <= 1 / ROUNDOFF[at.type]:  # no bit is lost
        return EXACT if doubt is None else b.unknown(at.result, doubt)
    made = at.finish(v, None, b.absolute(v))
    error = b.select(b.below(b.absolute(v), b.constant(1 / ROUNDOFF[at.type])), b.zero, b.error_of(made))
    return replace(made, error=b.unless(doubt, error))


@_rule("arith.fptosi", "arith.fptoui")
def _to_integer(at: At) -> Known:
    """Another integer where the error reaches one; anything for what the type does not hold."""
    b, v = at.b, at.value(0)
    width = ir.IntegerType(at.result.type).width
    signed = at.op.name == "arith.fptosi"
    low, high = (-(2.0 ** (width - 1)), 2.0 ** (width - 1)) if signed else (0.0, 2.0**width)
    outside = arith.ori(b.above(v, b.constant(high - 0.5)), b.above(b.constant(low - 0.5), v))
    error = at.error(0)
    if error is None:
        return Known(other=outside)
    ends = [_unary("math.trunc", end) for end in (arith.subf(v, error), arith.addf(v, error))]
    return Known(other=arith.ori(outside, arith.xori(b.equal(*ends), b.true)))


@_rule("math.powf", "math.atan2")
def _of_corners(at: At) -> Known:
    """A function that grows or falls along every line of either number, as long as a base stays on its side of 0, and a
    point on its side of the half line of negative x: so the others lie between the values at the corners."""
    b, v = at.b, at.b.wide(at.result)
    if at.error(0) is None and at.error(1) is None:
        return _unknown(at)
    errors = [b.add(at.error(i)) for i in (0, 1)]
    ends = [[arith.subf(at.value(i), errors[i]), arith.addf(at.value(i), errors[i])] for i in (0, 1)]
    corners = [ir.Operation.create(at.op.name, [b.f64], [x, y]).results[0] for x in ends[0] for y in ends[1]]
    far = [b.absolute(arith.subf(corner, v)) for corner in corners]
    aside = b.below(errors[0], b.absolute(at.value(0)))  # the base, or y, is not 0
    if at.op.name == "math.powf":
        aside = b.all([aside, arith.ori(b.below(b.zero, at.value(0)), b.equal(errors[1], b.zero))])
    else:
        aside = arith.ori(aside, b.below(errors[1], at.value(1)))
    spread = b.select(aside, b.larger(b.larger(far[0], far[1]), b.larger(far[2], far[3])), b.infinity)
    spread = b.select(b.equal(b.add(*errors), b.zero), b.zero, spread)
    return at.finish(v, spread, b.absolute(v), 4 * _FUNCTION, NORMAL[at.type])


@_rule("arith.bitcast")
def _bits(at: At) -> Known:
    doubt = _doubt(at.b, at.known[0])
    return EXACT if doubt is None else at.b.unknown(at.result, doubt)


def _terms(b: Builder, value: ir.Value) -> ir.Value:
    """The sum of the absolute values of the terms of a sum: each may be multiplied by a constant before."""
    op = value.owner
    if isinstance(op, ir.Block) or op.name not in _ADDITIONS:
        return b.absolute(b.wide(value))
    return b.add(*(_terms(b, v) for v in op.operands))


def _unary(name: str, value: ir.Value) -> ir.Value:
    return ir.Operation.create(name, [value.type], [value]).results[0]


def _function(at: At) -> Known:
    """A function of one number, between whose values at both ends of what the number may be the others lie. Where it is
    0 at 0, that is exact."""
    b, made = at.b, _of_ends(at)
    if at.op.name in _STEPS:
        return made
    zero = b.all(
        [b.equal(at.value(0), b.zero), b.equal(b.wide(at.result), b.zero), b.equal(b.add(at.error(0)), b.zero)]
    )
    return replace(made, error=b.select(zero, b.zero, b.error_of(made)))


def _of_ends(at: At) -> Known:
    b, v, x = at.b, at.b.wide(at.result), at.value(0)
    name = at.op.name
    size = b.absolute(v)
    if name in _STEPS and at.error(0) is None:
        return EXACT
    if name in _WAVES:
        spread = at.error(0)
        if spread is not None:  # two of its values are at most 2 apart
            spread = b.select(b.below(spread, b.infinity), arith.minimumf(spread, b.constant(2.0)), spread)
        return at.finish(v, spread, size, _FUNCTION)
    error = at.error(0)
    if name in ("math.exp", "math.exp2", "math.expm1"):  # of a product with log2(e), say
        rounding = b.times(2 * ROUNDOFF[at.type], b.larger(at.size(0), _terms(b, at.operands[0])))
        error = b.add(error, b.select(b.below(b.absolute(x), b.infinity), rounding, b.zero))
    if error is None:
        return at.finish(v, None, size, _FUNCTION, NORMAL[at.type])
    ends = [_unary(name, arith.subf(x, error)), _unary(name, arith.addf(x, error))]
    if name in ("math.sqrt", "math.rsqrt"):  # of what cannot be negative
        ends[0] = _unary(name, b.larger(arith.subf(x, error), b.zero))
        ends[0] = b.select(b.below(x, b.zero), v, ends[0])
    largest = b.constant(LARGEST[at.type])
    far = [b.absolute(arith.subf(end, v)) for end in ends]
    if name in _STEPS:
        made = at.finish(v, b.larger(*far), size, 0.0, exactly=True)
    else:
        made = at.finish(v, b.larger(*far), size, _FUNCTION, NORMAL[at.type])
    beyond = [b.above(b.absolute(end), largest) for end in ends]
    alike = arith.ori(b.equal(*ends), b.all([arith.cmpf(arith.CmpFPredicate.UNO, e, e) for e in ends]))
    both = b.all([b.below(error, b.infinity), *beyond, arith.ori(alike, b.below(b.zero, arith.mulf(*ends)))])
    number = b.below(size, b.infinity)
    no_error = b.select(both, b.zero, b.infinity)
    return Known(b.select(number, made.error, no_error), made.size)
