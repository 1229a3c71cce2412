"""Products whose factors are rounded to a narrower type, or taken as two numbers of one."""

from __future__ import annotations

from mlirc.host.rounding.operation import At
from mlirc.host.rounding.values import LARGEST, LEAST, Known
from mlirc.mlir import arith, ir, scf

# Roundings in f32 that a product may cost whose factors are rounded to a narrower type, and which is cut where it is
# summed. Those of 8-bit floats are exact, and cut as cuts.py says.
FACTORS = {name: 2.25 * 2.0 ** (24 - bits) for name, bits in (("tf32", 11), ("f16", 11), ("bf16", 8))}


def lost_by_two_parts(at: At) -> ir.Value:
    """What a product of two f32 loses where each is taken as two TF32 numbers: the second one has no bits below 2^-136,
    which matters below 2^-112."""
    b = at.b
    sizes = [b.absolute(at.value(i)) for i in (0, 1)]
    small = scf.IfOp(b.below(arith.minimumf(*sizes), b.constant(2.0**-112)), [b.f64], has_else=True)
    with ir.InsertionPoint(small.then_block):
        lost = [arith.minimumf(size, b.constant(2.0**-136)) for size in sizes]
        scf.yield_([b.add(arith.mulf(lost[0], sizes[1]), arith.mulf(lost[1], sizes[0]))])
    with ir.InsertionPoint(small.else_block):
        scf.yield_([b.zero])
    return small.results[0]


def with_narrow_factors(at: At, found: Known, narrow: str) -> Known:
    """A product whose factors are rounded to a type of a smaller range: what is too large for it becomes infinite, and
    what is too small loses digits, or is 0, which an infinity makes a NaN of."""
    b = at.b
    sizes = [b.absolute(at.value(i)) for i in range(2)]
    largest, least = b.constant(LARGEST[narrow]), b.constant(LEAST[narrow])
    over = [b.all([b.above(x, largest), b.below(x, b.infinity)]) for x in sizes]
    gone = [b.all([b.below(x, least), b.above(y, b.constant(LARGEST[at.type]))]) for x, y in (sizes, sizes[::-1])]
    error = b.add(b.error_of(found), b.times(LEAST[narrow], sizes[0]), b.times(LEAST[narrow], sizes[1]))
    return Known(b.select(b.any([*over, *gone]), b.infinity, error), found.size)
