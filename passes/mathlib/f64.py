"""f64 functions, with an error of a few ulp; f32 functions that are seldom used go through them too.

After W. J. Cody and W. Waite, "Software Manual for the Elementary Functions" (1980), and T. J. Dekker's error-free
transformations (1971); the polynomials are our own fits.
"""

from __future__ import annotations

from mlirc.passes.mathlib import coefficients as co
from mlirc.passes.mathlib.builder import Number, fma, polynomial, select

INF = float("inf")
NAN = float("nan")
LOG2E = 1.4426950408889634
LN2_HI = 0.6931471803691238  # 32 bits, so that its product with an exponent is exact
LN2_LO = 1.9082149292705877e-10
PI = 3.141592653589793
PI_LO = 1.2246467991473532e-16
_SMALLEST_NORMAL = 2.2250738585072014e-308


def _power_of_two(exponent: Number) -> Number:
    return ((exponent + 1023) << 52).bits()


def _scale(x: Number, exponent: Number) -> Number:
    half = exponent >> 1
    return x * _power_of_two(half) * _power_of_two(exponent - half)


def _expm1_parts(x: Number) -> tuple[Number, Number]:
    """(p, i) with e^x = (1 + p) 2^i, for |x| < 1100."""
    n = (x * LOG2E).round_even()
    r = fma(n, -LN2_LO, fma(n, -LN2_HI, x))
    return fma(r * r, polynomial(r, co.EXPM1_64), r), n.to_int()


def exp(x: Number) -> Number:
    """e^x."""
    p, i = _expm1_parts(x.clamp(-746.0, 710.0))
    return _keep_nan(x, _scale(p + 1.0, i))


def _keep_nan(x: Number, result: Number) -> Number:
    return select(x.is_nan(), x, result)


def exp2(x: Number) -> Number:
    """2^x."""
    clamped = x.clamp(-1076.0, 1025.0)
    n = clamped.round_even()
    f = clamped - n
    high = f * 0.6931471805599453
    low = fma(f, 0.6931471805599453, -high) + f * 2.3190468138462996e-17
    p = fma(high * high, polynomial(high, co.EXPM1_64), high + low)
    return _keep_nan(x, _scale(p + 1.0, n.to_int()))


def expm1(x: Number) -> Number:
    """e^x - 1."""
    p, i = _expm1_parts(x.clamp(-40.0, 710.0))
    half = _power_of_two(i - 1)
    result = fma(half, p, half - 0.5)
    result = select(abs(x).compare("lt", 2.0**-54), x, result + result)
    return _keep_nan(x, result)


def _split(x: Number) -> tuple[Number, Number]:
    """(exponent as f64, m - 1) with x = m 2^e and m in [sqrt(1/2), sqrt(2)), for positive finite x."""
    tiny = x.compare("lt", _SMALLEST_NORMAL)
    bits = select(tiny, x * 18014398509481984.0, x).bits()  # 2^54
    e = (bits - 0x3FE6A09E667F3BCD) & -0x10000000000000
    exponent = (e >> 52).to_float() + select(tiny, x.const(-54.0), 0.0)
    return exponent, (bits - e).bits() - 1.0


def _log_parts(x: Number) -> tuple[Number, Number]:
    """log(x) as an unevaluated sum high + low, for positive finite x."""
    exponent, f = _split(x)
    u = f + 2.0
    u_lost = f - (u - 2.0)
    s = f / u
    s_low = (fma(-s, u, f) - s * u_lost) / u
    square = s * s
    # log((1+s)/(1-s)) = 2s + 2 s^3 P(s^2)
    tail = (s + s) * square * polynomial(square, co.ATANH64) + (s_low + s_low) + exponent * LN2_LO
    base, head = exponent * LN2_HI, s + s
    # Two-sum: |base| is 0 or larger than |head|.
    high = base + head
    low = (base - high) + head + tail
    low = select(exponent.compare("eq", 0.0), tail, low)
    total = high + low
    return total, (high - total) + low


def _log_special(x: Number, result: Number) -> Number:
    result = select(x.compare("eq", INF), x, result)
    result = select(x.compare("eq", 0.0), -INF, result)
    return select(x.compare("ge", 0.0), result, NAN)


def log(x: Number) -> Number:
    """Natural logarithm."""
    return _log_special(x, _log_parts(x)[0])


def log2(x: Number) -> Number:
    """Logarithm to base 2; exact for powers of two."""
    exponent, f = _split(x)
    s = f / (f + 2.0)
    square = s * s
    log_m = fma((s + s) * square, polynomial(square, co.ATANH64), s + s)
    return _log_special(x, fma(log_m, LOG2E, fma(log_m, 2.0355273740931033e-17, exponent)))


def log10(x: Number) -> Number:
    """Logarithm to base 10."""
    high, low = _log_parts(x)
    scale = 0.4342944819032518
    return _log_special(x, fma(high, scale, fma(low, scale, high * 1.098319650216765e-17)))


def log1p(x: Number) -> Number:
    """log(1 + x)."""
    u = x + 1.0
    lost = select(u.compare("gt", 2.0), 1.0 - (u - x), x - (u - 1.0))
    result = _log_parts(u)[0] + lost / u
    result = select(abs(x).compare("lt", 2.0**-54), x, result)
    result = select(x.compare("eq", INF), x, result)
    result = select(x.compare("eq", -1.0), -INF, result)
    return select(x.compare("ge", -1.0), result, NAN)


def _sin_of(r: Number) -> Number:
    square = r * r
    return fma(fma(polynomial(square, co.SIN64), square, 0.0), r, r)  # a product would be -0 for 0, and lose its sign


def _cos_of(r: Number) -> Number:
    square = r * r
    half = square * 0.5
    one = 1.0 - half
    return one + ((1.0 - one) - half + square * square * polynomial(square, co.COS64))


def _quadrant(r: Number, quadrant: Number) -> Number:
    """sin(r + quadrant pi/2); the quadrant is an i32."""
    value = select((quadrant & 1).compare("eq", 0), _sin_of(r), _cos_of(r))
    return select((quadrant & 2).compare("eq", 0), value, -value)


def sin(r: Number, quadrant: Number) -> Number:
    """Sine of an angle in parts, as `reduced_f64` finds them."""
    return _quadrant(r, quadrant)


def cos(r: Number, quadrant: Number) -> Number:
    """Cosine."""
    return _quadrant(r, quadrant + 1)


def tan(r: Number, quadrant: Number) -> Number:
    """Tangent."""
    s, c = _sin_of(r), _cos_of(r)
    odd = (quadrant & 1).compare("ne", 0)
    return select(odd, -c, s) / select(odd, s, c)


def sinh(x: Number) -> Number:
    """Hyperbolic sine."""
    size = abs(x)
    t = expm1(size)
    small = (t + t / (t + 1.0)) * 0.5
    root = exp(size * 0.5)
    return select(size.compare("lt", 40.0), small, root * 0.5 * root).with_sign_of(x)


def cosh(x: Number) -> Number:
    """Hyperbolic cosine."""
    root = exp(abs(x) * 0.5)
    half = root * 0.5
    return fma(half, root, 0.5 / root / root)


def tanh(x: Number) -> Number:
    """Hyperbolic tangent."""
    t = expm1((abs(x) * 2.0).at_most(50.0))
    return (t / (t + 2.0)).with_sign_of(x)


def asinh(x: Number) -> Number:
    """Inverse hyperbolic sine."""
    size = abs(x)
    square = size * size
    near = log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    far = log(size) + 0.6931471805599453
    return select(size.compare("lt", 1e8), near, far).with_sign_of(x)


def acosh(x: Number) -> Number:
    """Inverse hyperbolic cosine; NaN below 1."""
    t = x - 1.0
    near = log1p(t + (t * (x + 1.0)).sqrt())
    return select(x.compare("lt", 1e8), select(x.compare("ge", 1.0), near, NAN), log(x) + 0.6931471805599453)


def atanh(x: Number) -> Number:
    """Inverse hyperbolic tangent; NaN outside [-1, 1]."""
    size = abs(x)
    return (log1p((size + size) / (1.0 - size)) * 0.5).with_sign_of(x)


def _atan_of_ratio(y: Number, x: Number) -> Number:
    """atan(y/x) for y, x >= 0, not both 0 and not both infinite."""
    swap = y.compare("gt", x)
    low, high = select(swap, x, y), select(swap, y, x)
    z = low / high
    fold = z.compare("gt", 0.41421356237309503)
    z = select(fold, (low - high) / (low + high), z)
    square = z * z
    angle = fma(polynomial(square, co.ATAN64) * square, z, z)
    angle = select(fold, angle + 0.7853981633974483, angle)
    return select(swap, 1.5707963267948966 - (angle - 6.123233995736766e-17), angle)


def atan(x: Number) -> Number:
    """Inverse tangent."""
    size = abs(x)
    angle = select(size.compare("lt", 1e20), _atan_of_ratio(size, x.const(1.0)), 1.5707963267948966)
    return _keep_nan(x, angle).with_sign_of(x)


def atan2(y: Number, x: Number) -> Number:
    """Angle of the point (x, y), with C's rules for signed zeros and infinities."""
    ay, ax = abs(y), abs(x)
    angle = _atan_of_ratio(ay, ax)
    angle = select(ay.compare("eq", ax), y.const(0.7853981633974483), angle)
    angle = select(ax.compare("eq", INF) & ay.compare("lt", INF), 0.0, angle)
    angle = select(ay.compare("eq", INF) & ax.compare("lt", INF), 1.5707963267948966, angle)
    angle = select(ay.compare("eq", 0.0), 0.0, angle)
    left = x.const(1.0).with_sign_of(x).compare("lt", 0.0)
    angle = select(left, PI - (angle - PI_LO), angle).with_sign_of(y)
    return select(x.is_nan(), x, select(y.is_nan(), y, angle))


def asin(x: Number) -> Number:
    """Inverse sine; NaN outside [-1, 1]."""
    size = abs(x)
    angle = _atan_of_ratio(size, ((1.0 - size) * (size + 1.0)).sqrt())
    return select(size.compare("le", 1.0), angle, NAN).with_sign_of(x)


def acos(x: Number) -> Number:
    """Inverse cosine; NaN outside [-1, 1]."""
    angle = _atan_of_ratio((1.0 - x).sqrt(), (x + 1.0).sqrt()) * 2.0
    return select(abs(x).compare("le", 1.0), angle, NAN)


def _erfc_positive(x: Number) -> Number:
    """erfc(x) for x >= 0."""
    x = x.at_most(28.0)
    t = (x - 4.0) / (x + 4.0)
    scaled = polynomial(t, co.ERFCX64) / fma(x, 2.0, 1.0)
    square = x * x
    lost = fma(x, x, -square)
    e = exp(-square)
    return scaled * fma(e, -lost, e)


def erf(x: Number) -> Number:
    """Error function."""
    size = abs(x)
    near = polynomial(x * x, co.ERF64) * x
    far = (1.0 - _erfc_positive(size)).with_sign_of(x)
    return select(size.compare("lt", 1.0), near, _keep_nan(x, far))


def erfc(x: Number) -> Number:
    """1 - erf(x)."""
    far = _erfc_positive(abs(x))
    result = select(x.compare("lt", 0.0), 2.0 - far, far)
    return _keep_nan(x, select(abs(x).compare("lt", 0.25), 1.0 - polynomial(x * x, co.ERF64) * x, result))


def cbrt(x: Number) -> Number:
    """Cube root: e^(log/3), then one step of Newton."""
    tiny = abs(x).compare("lt", 2.0**-900)  # whose rounding errors are no numbers
    size = select(tiny, abs(x) * 2.0**300, abs(x))
    root = exp(log(size) * (1.0 / 3.0))
    square = root * root
    root = root - fma(square, root, -size) / (square * 3.0)
    root = select(tiny, root * 2.0**-100, root)
    special = size.compare("eq", 0.0) | size.compare("eq", INF)
    return select(special, x, root.with_sign_of(x))


def rsqrt(x: Number) -> Number:
    """1 / sqrt(x)."""
    return 1.0 / x.sqrt()


def pow(x: Number, y: Number) -> Number:  # noqa: A001
    """x^y with C's rules for special values."""
    size = abs(x)
    high, low = _log_parts(size)
    product = y * high
    lost = fma(y, high, -product) + y * low
    limited = product.clamp(-750.0, 715.0)
    p, i = _expm1_parts(limited)
    moderate = abs(product).compare("lt", 740.0)
    factor = p + 1.0
    result = _scale(select(moderate, fma(factor, lost, factor), factor), i)

    y_integral = y.compare("eq", y.floor())
    y_odd = y_integral & (y * 0.5).compare("ne", (y * 0.5).floor())
    y_positive = y.compare("gt", 0.0)
    at_zero = select(y_positive, x.const(0.0), INF)
    at_infinity = select(y_positive, x.const(INF), 0.0)
    result = select(size.compare("eq", 0.0), at_zero, result)
    result = select(size.compare("eq", INF), at_infinity, result)
    grows = size.compare("gt", 1.0)
    y_infinite = abs(y).compare("eq", INF)
    up = (grows & y_positive) | (size.compare("lt", 1.0) & y.compare("lt", 0.0))
    result = select(y_infinite, select(up, x.const(INF), 0.0), result)
    result = select(y_infinite & size.compare("eq", 1.0), 1.0, result)
    result = select(y_odd, result.with_sign_of(x), result)
    finite_negative = x.compare("lt", 0.0) & x.compare("gt", -INF)
    has_root = y_integral | y_infinite
    result = select(finite_negative & (has_root ^ True), NAN, result)
    result = select(x.is_nan(), x, select(y.is_nan(), y, result))
    return select(x.compare("eq", 1.0) | y.compare("eq", 0.0), 1.0, result)


FUNCTIONS = {
    f.__name__: f
    for f in (
        exp, exp2, expm1, log, log2, log10, log1p, sinh, cosh, tanh, asinh, acosh, atanh,
        atan, atan2, asin, acos, erf, erfc, cbrt, rsqrt, pow,
    )
}  # fmt: skip
OF_ANGLES = {"sin": sin, "cos": cos, "tan": tan}
