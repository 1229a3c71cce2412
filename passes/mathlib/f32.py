"""f32 functions whose speed matters: within 2 ulp of the correct result, NaN, infinities and subnormals right.

Ranges are reduced as in Cody and Waite, "Software Manual for the Elementary Functions" (1980); the polynomials are our
own fits. `ex2` is one instruction (ex2.approx.f32, relative error 2^-22 at most, PTX ISA section on ex2).
"""

from __future__ import annotations

import itertools

from mlirc.mlir import ir, math, nvvm, vector
from mlirc.passes.mathlib import coefficients as co
from mlirc.passes.mathlib import f64
from mlirc.passes.mathlib.builder import Number, fma, polynomial, select

LOG2E = 1.4426950408889634
LOG2E_HI = 1.44269502162933349609375  # LOG2E rounded to f32
LOG2E_LO = LOG2E - LOG2E_HI
LN2 = 0.6931471805599453
LN2_HI = 0.693145751953125  # 15 bits, so that its product with an exponent is exact
LN2_LO = LN2 - LN2_HI
_ROUNDER = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
_SMALLEST_NORMAL = 1.1754943508222875e-38


def ex2(x: Number) -> Number:
    """2^x by the hardware's instruction."""
    return Number(math.Exp2Op(x.value).result)


def ex2_flushed(x: Number) -> Number:
    """The same, but 0 for what is below the least normal number (ex2.approx.ftz.f32): one instruction, where the other
    one is four, for those."""
    if not isinstance(x.type, ir.VectorType):
        return Number(nvvm.Ex2Op(x.value, ftz=True).result)
    places = itertools.product(*map(range, x.type.shape))
    elements = [nvvm.Ex2Op(vector.ExtractOp(x.value, [], list(at)).result, ftz=True).result for at in places]
    return Number(vector.FromElementsOp(x.type, elements).result)


def _power_of_two(exponent: Number) -> Number:
    """2^i as f32 for an i32 i in [-126, 127]."""
    return ((exponent + 127) << 23).bits()


def _split_exponent(x: Number) -> tuple[Number, Number]:
    """(round(x log2(e)) as f32, as i32) for |x| < 2^20."""
    shifted = fma(x, LOG2E_HI, _ROUNDER)
    return shifted - _ROUNDER, shifted.bits() - x.const(_ROUNDER).bits()


def exp(x: Number, fast: bool = False) -> Number:
    """e^x. Fast: 2^(x log2 e), relative error near |x| 2^-24."""
    if fast:
        return ex2(x * LOG2E)
    clamped = x.clamp(-104.0, 89.0)
    power = clamped * LOG2E_HI
    lost = fma(clamped, LOG2E_LO, fma(clamped, LOG2E_HI, -power))
    # 2^lost is 1 + lost ln 2: lost is at most 2^-18.
    return ex2(power) * fma(lost, LN2, 1.0)


def expm1(x: Number, fast: bool = False) -> Number:
    """e^x - 1, exact near 0."""
    clamped = x.clamp(-18.0, 89.0)
    n, i = _split_exponent(clamped)
    r = fma(n, -LN2_LO, fma(n, -LN2_HI, clamped))
    p = fma(r * r, polynomial(r, co.EXPM1_32), r)
    # 2^i overflows for i = 128 while e^x may not: halve, and double at the end.
    half = _power_of_two(i - 1)
    result = fma(half, p, half - 0.5)
    return select(abs(x).compare("lt", 2.0**-25), x, result + result)


def _log_parts(x: Number) -> tuple[Number, Number]:
    """(exponent as f32, log(m)) with x = m 2^e and m in [2/3, 4/3), for positive finite x."""
    tiny = x.compare("lt", _SMALLEST_NORMAL)
    bits = select(tiny, x * 8388608.0, x).bits()
    e = (bits - 0x3F2AAAAB) & -0x800000
    f = (bits - e).bits() - 1.0
    exponent = (e >> 23).to_float() + select(tiny, x.const(-23.0), 0.0)
    return exponent, _log_near(f)


def _log_near(f: Number) -> Number:
    """log(1 + f) for f in [-1/3, 1/3]."""
    tail = fma(polynomial(f, co.LOG32), f, -0.5)
    return fma(tail, f * f, f)


def _log_special(x: Number, result: Number) -> Number:
    result = select(x.compare("eq", float("inf")), x, result)
    result = select(x.compare("eq", 0.0), float("-inf"), result)
    return select(x.compare("ge", 0.0), result, float("nan"))


def log(x: Number, fast: bool = False) -> Number:
    """Natural logarithm."""
    exponent, log_m = _log_parts(x)
    return _log_special(x, fma(exponent, LN2_HI, fma(exponent, LN2_LO, log_m)))


def _log_base(x: Number, scale: float, per_octave: float) -> Number:
    exponent, log_m = _log_parts(x)
    high = scale_hi = _f32(scale)
    product = log_m * high
    low = fma(log_m, high, -product)
    low = fma(log_m, scale - scale_hi, low)
    octave_hi = _f32(per_octave, bits=12)
    low = fma(exponent, per_octave - octave_hi, low)
    return _log_special(x, fma(exponent, octave_hi, product + low))


def _f32(x: float, bits: int = 24) -> float:
    """x rounded to so many bits."""
    import math as host

    mantissa, exponent = host.frexp(x)
    return host.ldexp(round(mantissa * 2.0**bits), exponent - bits)


def log2(x: Number, fast: bool = False) -> Number:
    """Logarithm to base 2; exact for powers of two."""
    return _log_base(x, LOG2E, 1.0)


def log10(x: Number, fast: bool = False) -> Number:
    """Logarithm to base 10."""
    return _log_base(x, 0.4342944819032518, 0.3010299956639812)


def log1p(x: Number, fast: bool = False) -> Number:
    """log(1 + x): of 1 + x = m 2^e, m - 1 is made from x itself, x 2^-e + (2^-e - 1), of which nothing is lost."""
    e = ((x + 1.0).bits() - 0x3F2AAAAB) & -0x800000
    four = (0x40800000 - e).bits()  # 4 * 2^-e, which is no subnormal for any e
    log_m = _log_near((x.bits() - e).bits() + fma(four, 0.25, -1.0))
    exponent = (e >> 23).to_float()
    result = fma(exponent, LN2_HI, fma(exponent, LN2_LO, log_m)).with_sign_of(x)
    result = select(x.compare("eq", float("inf")), x, result)
    result = select(x.compare("eq", -1.0), float("-inf"), result)
    return select(x.compare("ge", -1.0), result, float("nan"))


def tanh(x: Number, fast: bool = False) -> Number:
    """Hyperbolic tangent: a polynomial near 0, 1 - 2/(e^2x + 1) elsewhere."""
    size = abs(x)
    square = x * x
    near = fma(polynomial(square, co.TANH32) * square, x, x)
    far = 1.0 - 2.0 / (ex2(size.at_most(10.0) * (2.0 * LOG2E)) + 1.0)
    return select(size.compare("lt", 0.55), near, far).with_sign_of(x)


def erf(x: Number, fast: bool = False) -> Number:
    """Error function: a polynomial near 0, 1 - 2^q(|x|) with q near log2(erfc) elsewhere."""
    size = abs(x)
    near = fma(polynomial(x * x, co.ERF32_SMALL), x, x)
    far = 1.0 - ex2(polynomial(size.at_most(4.0), co.ERF32_LARGE))
    return select(size.compare("lt", 0.93), near, far.with_sign_of(x))


def _sin_of(r: Number) -> Number:
    square = r * r
    return fma(fma(polynomial(square, co.SIN32), square, 0.0), r, r)  # a product would be -0 for 0, and lose its sign


def _cos_of(r: Number) -> Number:
    square = r * r
    return fma(square * square, polynomial(square, co.COS32), fma(square, -0.5, 1.0))


def _quadrant(r: Number, quadrant: Number) -> Number:
    """sin(r + quadrant pi/2)."""
    value = select((quadrant & 1).compare("eq", 0), _sin_of(r), _cos_of(r))
    return (value.bits() ^ ((quadrant & 2) << 30)).bits()


def sin(r: Number, quadrant: Number) -> Number:
    """Sine of an angle in parts, as `reduced_f32` finds them."""
    return _quadrant(r.to_f32(), quadrant)


def cos(r: Number, quadrant: Number) -> Number:
    """Cosine."""
    return _quadrant(r.to_f32(), quadrant + 1)


def tan(r: Number, quadrant: Number) -> Number:
    """Tangent, computed in f64."""
    return f64.tan(r, quadrant).to_f32()


def rsqrt(x: Number, fast: bool = False) -> Number:
    """1 / sqrt(x), each step rounded to nearest."""
    return 1.0 / x.sqrt()


FUNCTIONS = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
    "rsqrt": rsqrt,
}
OF_ANGLES = {"sin": sin, "cos": cos, "tan": tan}
