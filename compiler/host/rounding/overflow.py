"""Infinities by overflow, which the order of a sum or product decides.

A number whose terms add up to more than its type holds may overflow in another order, whatever it is in this one, and
may be NaN, where terms of both signs do. So an infinity has a size, too: that of its finite terms where it comes from
an infinite operand (or a function), which no order changes, and infinity where it comes from numbers.
An overflow is certain where its terms have one sign, or those of the other one cannot overflow by themselves, and as
long as nothing of the other sign is added to it, and it is not made smaller: a product may be added before it is
rounded (a fused multiply-add), and factors in another order may not overflow, or come to 0 before an infinity."""

from __future__ import annotations

from mlirc.host.rounding.operation import At
from mlirc.host.rounding.values import LARGEST, SHORT, Known
from mlirc.mlir import arith, ir, scf

_SUMMED = ("f32", "f64")  # sums of 16-bit floats are not taken in other orders, but may be fused
_NEAR = 1e-6  # of the largest number: so near to it factors in another order may overflow


def _known(at: At, error: ir.Value, size: ir.Value | None) -> Known:
    return Known(error, size, rounded=error if at.type in SHORT else None)


def of_sum(at: At, parts: list[ir.Value], exact: ir.Value, size: ir.Value, made: Known) -> Known:
    """What is known of a sum of two numbers (in f64), whose sizes add up to `size`: `made`, unless another order may
    overflow."""
    b, error = at.b, at.b.error_of(made)
    number = b.below(b.absolute(b.wide(at.result)), b.infinity)
    large = scf.IfOp(b.above(size, b.constant(LARGEST[at.type])), [b.f64, b.f64], has_else=True)  # hardly ever
    with ir.InsertionPoint(large.then_block):
        doubt, infinite = _of_large_sum(at, parts, exact, size)
        scf.yield_([b.unless(doubt, error), b.select(number, made.size, infinite)])
    with ir.InsertionPoint(large.else_block):
        scf.yield_([error, b.select(number, made.size, size)])
    return _known(at, *large.results)


def _of_large_sum(at: At, parts: list[ir.Value], exact: ir.Value, size: ir.Value) -> tuple[ir.Value | None, ir.Value]:
    """Of a sum whose terms may overflow, whether it may be anything (None: it may not), and its size where it is
    infinite."""
    b = at.b
    if len(parts) == len(at.known):
        size = b.add(at.size(0), at.size(1))
    large = b.above(size, b.constant(LARGEST[at.type]))
    finite = b.all([b.below(b.absolute(p), b.infinity) for p in parts])
    lesser = arith.subf(size, b.absolute(exact))  # twice the terms of the other sign
    one_sign = arith.xori(b.below(arith.mulf(*parts), b.zero), b.true)
    overflows = arith.ori(
        arith.cmpf(arith.CmpFPredicate.UNO, *parts),  # NaN in every order
        b.select(finite, b.below(lesser, b.constant(2 * LARGEST[at.type])), one_sign),
    )
    number = b.below(b.absolute(b.wide(at.result)), b.infinity)
    sure = b.all([arith.xori(number, b.true), overflows])
    if at.type not in _SUMMED:
        sure = arith.ori(sure, finite)
    infinite = b.select(finite, b.infinity, size)
    if all(k.size is None for k in at.known) and len(parts) == len(at.known):  # there is one order
        return None, infinite
    return arith.andi(large, arith.xori(sure, b.true)), infinite


def _by_overflow(at: At, i: int) -> ir.Value | None:
    """Whether an operand is an infinity by overflow; None: it is not."""
    b, known = at.b, at.known[i]
    if known.size is None:
        return None
    infinite = b.equal(b.absolute(at.value(i)), b.infinity)
    return b.all([infinite, b.above(known.size, b.constant(LARGEST[at.type]))])


def of_product(at: At, made: Known) -> Known:
    """What is known of a product: `made`, unless a factor has overflowed and the other one makes it smaller."""
    b, one, doubts = at.b, at.b.constant(1.0), []
    for i in (0, 1):
        over = _by_overflow(at, i)
        if over is not None:
            doubts.append(b.all([over, b.below(b.absolute(at.value(1 - i)), one)]))
    size = made.size
    so_far = _product_so_far(at)
    if so_far is not None:  # of what a factor of 0 belongs to, the others may overflow
        factor, product, size = 1 - so_far, b.absolute(b.wide(at.result)), made.size
        others = arith.mulf(at.size(so_far), b.larger(at.size(factor), one))
        others = b.select(b.equal(at.value(factor), b.zero), at.size(so_far), others)
        size = b.select(b.equal(product, b.zero), others, size)
        near = b.above(size, b.constant(LARGEST[at.type] * _NEAR))
        doubts.append(b.all([b.below(product, b.infinity), near]))
        for i in (0, 1):  # in another order the small ones may come to 0 before they meet an infinity
            infinite = b.equal(b.absolute(at.value(i)), b.infinity)
            doubts.append(b.all([infinite, b.below(b.absolute(at.value(1 - i)), one)]))
    doubt = b.any(doubts)
    return _known(at, b.unless(doubt, b.error_of(made)), size)


def of_quotient(at: At, made: Known) -> Known:
    """What is known of a quotient: likewise, where the dividend has overflowed, or both are infinite and one has."""
    b, doubts = at.b, []
    over, under = _by_overflow(at, 0), _by_overflow(at, 1)
    if over is not None:
        doubts.append(b.all([over, b.above(b.absolute(at.value(1)), b.constant(1.0))]))
    if under is not None:
        doubts.append(b.all([under, b.equal(b.absolute(at.value(0)), b.infinity)]))
    return _known(at, b.unless(b.any(doubts), b.error_of(made)), made.size)


def _product_so_far(at: At) -> int | None:
    """Which factor is the product so far of a reduction: what is loaded where the result is stored; None: neither."""
    stores = [use.owner for use in at.result.uses if use.owner.operation.name == "memref.store"]
    for i, value in enumerate(at.operands):
        load = value.owner
        if not isinstance(load, ir.Block) and load.name == "memref.load":
            if any(s.operands[1] == load.operands[0] for s in stores):
                return i
    return None
