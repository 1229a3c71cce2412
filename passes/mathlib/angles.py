"""Angles as x = r + quadrant pi/2 with |r| <= pi/4, for every finite x of f32 and f64.

Small ones by multiples of pi/2 in several parts (Cody and Waite, "Software Manual for the Elementary Functions", 1980).
Large ones in integers, from those bits of 2/pi that count for their exponent (Payne and Hanek, "Radian reduction for
trigonometric functions", 1983). These are behind a branch: small angles pay for a comparison.
"""

from __future__ import annotations

from mlirc.mlir import ir, scf
from mlirc.passes.mathlib.builder import Number, any_of, constant, fma, select, wide_product

LARGE32 = 2.0**30
LARGE64 = 2.0**20
_TWO_OVER_PI = 0.6366197723675814
_HALF_PI, _HALF_PI_LO = 1.5707963267948966, 6.123233995736766e-17
# pi/2: 33 bits each, so that their products with a quadrant below 2^20 are exact, but the last.
_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
_ROUNDER = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the nearest integer in the low bits
_MANTISSA = 52
_LEAST_EXPONENT = -32  # of the last bit of the least angle that is large
_WINDOW = 4  # words that hold the bits that count, wherever they begin


def _inverse_tangent(divisor: int, bits: int) -> int:
    """atan(1 / divisor) 2^bits by its series, in integers."""
    term = (1 << bits) // divisor
    total, n, sign = term, 1, 1
    while term:
        term //= divisor * divisor
        n, sign = n + 2, -sign
        total += sign * (term // n)
    return total


def _two_over_pi(words: int, zeros: int) -> list[int]:
    """The first 64-bit words of 2/pi, whose binary point has so many zeros behind it."""
    bits, guard = 64 * words - zeros, 64
    pi = 16 * _inverse_tangent(5, bits + guard) - 4 * _inverse_tangent(239, bits + guard)  # Machin, 1706
    fraction = ((2 << 2 * (bits + guard)) // pi) >> guard
    return [(fraction >> 64 * (words - 1 - i)) & (2**64 - 1) for i in range(words)]


def _window(offset: Number, most: int) -> list[Number]:
    """Three words of the table of 2/pi from bit `offset` (i64, at most `most`) on, the first bits first."""
    levels = (most >> 6).bit_length()
    table = _two_over_pi((1 << levels) + _WINDOW - 1, 2 - _LEAST_EXPONENT)
    words: list[Number] = [constant(w, offset.type) for w in table]
    for level in reversed(range(levels)):
        taken = (offset & (64 << level)).compare("ne", 0)
        kept = (1 << level) + _WINDOW - 1
        words = [select(taken, words[i + (1 << level)], words[i]) for i in range(kept)]
    shift = offset & 63
    rest = 63 - shift
    return [(words[i] << shift) | words[i + 1].logical_shift_right(1).logical_shift_right(rest) for i in range(3)]


def _payne_hanek(x: Number, most: int) -> tuple[Number, Number]:
    """(r, quadrant as i32) of f64 x at least `LARGE64` and below 2^most; NaN of infinities and NaN."""
    bits = x.bits()
    exponent = ((bits >> _MANTISSA) & 0x7FF) - (1023 + _MANTISSA)
    mantissa = (bits & ((1 << _MANTISSA) - 1)) | (1 << _MANTISSA)
    high, middle, low = _window(exponent - _LEAST_EXPONENT, most - 1 - _MANTISSA - _LEAST_EXPONENT)
    # x 2/pi modulo 4 as a number of 2 bits in front of the point and 126 behind it: `top` and `bottom`
    _, carried = wide_product(mantissa, low)
    first, second = wide_product(mantissa, middle)
    bottom = carried + first
    top = second + mantissa * high
    top = select(bottom.unsigned_below(first), top + 1, top)
    # Without the first two bits, and with a sign, that is the distance from the nearest integer in units of 2^-128.
    far = (top << 2) | bottom.logical_shift_right(62)
    near = bottom << 2
    quadrant = (top.logical_shift_right(62) + far.logical_shift_right(63)).to_i32()
    head = far.to_float()
    tail = fma(near.unsigned_to_float(), 2.0**-128, (far - head.to_int()).to_float() * 2.0**-64)
    head = head * 2.0**-64
    product = head * _HALF_PI
    r = product + fma(tail, _HALF_PI, fma(head, _HALF_PI_LO, fma(head, _HALF_PI, -product)))
    r = select(abs(x).compare("lt", float("inf")), r, float("nan"))
    negative = bits.compare("lt", 0)
    return select(negative, -r, r), select(negative, -quadrant, quadrant)


def _beyond(limit: float, most: int, x: Number, wide: Number, small: tuple[Number, Number]) -> tuple[Number, Number]:
    """`small`, but where |x| is at least `limit` what `_payne_hanek` finds of `wide`, the same numbers in f64."""
    large = abs(x).compare("ge", limit)
    branch = scf.IfOp(any_of(large).value, [part.type for part in small], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        parts = zip(_payne_hanek(wide, most), small, strict=True)
        scf.YieldOp([select(large, far, near).value for far, near in parts])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([part.value for part in small])
    return Number(branch.results[0]), Number(branch.results[1])


def _nearest(x: Number) -> tuple[Number, Number]:
    """(the integer n nearest to x 2/pi as f64, n modulo 2^32 as i32) for |x| < 2^50."""
    shifted = fma(x, _TWO_OVER_PI, _ROUNDER)
    return shifted - _ROUNDER, shifted.bits().to_i32()


def reduced_f32(x: Number) -> tuple[Number, Number]:
    """(r as f64, quadrant as i32) of f32 x: r is right to more bits than f32 has."""
    wide = x.to_f64()
    n, quadrant = _nearest(wide)
    r = fma(n, -_HALF_PI_LO, fma(n, -_HALF_PI, wide))
    return _beyond(LARGE32, 128, x, wide, (r, quadrant))


def reduced_f64(x: Number) -> tuple[Number, Number]:
    """(r, quadrant as i32) of f64 x: r is within an ulp, multiples of pi/2 that x is close to included."""
    n, quadrant = _nearest(x)
    r = fma(n, -_PARTS[0], x)  # exact
    lost = r.const(0.0)
    for part in _PARTS[1:3]:
        product = n * part
        rest = r - product
        lost = lost + ((r - rest) - product)
        r = rest
    r = select(n.compare("eq", 0.0), x, r + fma(n, -_PARTS[3], lost))  # which keeps the sign of 0
    return _beyond(LARGE64, 1024, x, x, (r, quadrant))
