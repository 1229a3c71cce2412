"""Infinities by overflow, which the order of a sum or product decides.

A number whose terms add up to more than its type holds may overflow in another order, whatever it is in this one, and
may be NaN, where terms of both signs do. So an infinity has a size, too: that of its finite terms where it comes from
an infinite operand (or a function), which no order changes, and infinity where it comes from numbers.
An overflow is certain where its terms have one sign, or those of the other one cannot overflow by themselves, and as
long as nothing of the other sign is added to it, and it is not made smaller: a product may be added before it is
rounded (a fused multiply-add), and factors in another order may not overflow."""

from __future__ import annotations

from typing import Any

from mlirc.host.rounding.values import LARGEST, Known
from mlirc.mlir import arith, ir

_SUMMED = ("f32", "f64")  # sums of 16-bit floats are not taken in other orders, but may be fused
_NEAR = 1e-6  # of the largest number: so near to it factors in another order may overflow


def of_sum(at: Any, parts: list[ir.Value], exact: ir.Value, size: ir.Value, made: Known) -> Known:
    """What is known of a sum of two numbers (in f64), whose sizes add up to `size`: `made`, unless another order may
    overflow."""
    b = at.b
    largest = b.constant(LARGEST[at.type])
    finite = b.all([b.below(b.absolute(p), b.infinity) for p in parts])
    lesser = arith.subf(size, b.absolute(exact))  # twice the terms of the other sign
    one_sign = arith.xori(b.below(arith.mulf(*parts), b.zero), b.true)
    overflows = arith.ori(
        arith.cmpf(arith.CmpFPredicate.UNO, *parts),  # NaN in every order
        b.select(finite, b.below(lesser, b.times(2.0, largest)), one_sign),
    )
    number = b.below(b.absolute(b.wide(at.result)), b.infinity)
    sure = b.all([arith.xori(number, b.true), overflows])
    doubt = b.all([b.above(size, largest), arith.xori(sure, b.true)])
    if all(k.size is None for k in at.known) and len(at.known) == 2:  # two numbers: there is one order
        doubt = None
    size = b.select(b.all([finite, arith.xori(number, b.true)]), b.infinity, size)
    if doubt is not None and at.type not in _SUMMED:
        doubt = b.all([doubt, arith.xori(finite, b.true)])
    return Known(b.unless(doubt, b.error_of(made)), size)


def _by_overflow(at: Any, i: int) -> ir.Value | None:
    """Whether an operand is an infinity by overflow; None: it is not."""
    b, known = at.b, at.known[i]
    if known.size is None:
        return None
    infinite = b.equal(b.absolute(at.value(i)), b.infinity)
    return b.all([infinite, b.above(known.size, b.constant(LARGEST[at.type]))])


def of_product(at: Any, made: Known) -> Known:
    """What is known of a product: `made`, unless a factor has overflowed and the other one makes it smaller."""
    b, one, doubts = at.b, at.b.constant(1.0), []
    for i in (0, 1):
        over = _by_overflow(at, i)
        if over is not None:
            doubts.append(b.all([over, b.below(b.absolute(at.value(1 - i)), one)]))
    size = made.size
    if _accumulates(at):  # of what a factor of 0 belongs to, the others may overflow
        product, size = b.absolute(b.wide(at.result)), made.size
        others = arith.mulf(at.size(0), b.larger(at.size(1), one))
        others = b.select(b.equal(at.value(1), b.zero), at.size(0), others)
        size = b.select(b.equal(product, b.zero), others, size)
        near = b.above(size, b.constant(LARGEST[at.type] * _NEAR))
        doubts.append(b.all([b.below(product, b.infinity), near]))
    doubt = b.any(doubts)
    return Known(b.unless(doubt, b.error_of(made)), size)


def of_quotient(at: Any, made: Known) -> Known:
    """What is known of a quotient: likewise, where the dividend has overflowed, or both are infinite and one has."""
    b, doubts = at.b, []
    over, under = _by_overflow(at, 0), _by_overflow(at, 1)
    if over is not None:
        doubts.append(b.all([over, b.above(b.absolute(at.value(1)), b.constant(1.0))]))
    if under is not None:
        doubts.append(b.all([under, b.equal(b.absolute(at.value(0)), b.infinity)]))
    return Known(b.unless(b.any(doubts), b.error_of(made)), made.size)


def _accumulates(at: Any) -> bool:
    """Whether a product's first factor is the product so far of a reduction: it is stored where that was loaded."""
    owner = at.operands[0].owner
    if isinstance(owner, ir.Block) or owner.name != "memref.load":
        return False
    uses = [use.owner for use in at.result.uses]
    return any(u.name == "memref.store" and u.operands[1] == owner.operands[0] for u in uses)
