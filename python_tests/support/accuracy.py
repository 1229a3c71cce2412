"""How far results are from references of higher precision, and where functions are sampled."""

from __future__ import annotations

import math as host

import numpy as np


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """Largest distance from a more precise reference, in units of the last place of the result's type."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = want.astype(got.dtype)
    finite = np.isfinite(rounded) & np.isfinite(want)
    assert np.array_equal(np.isnan(got), np.isnan(rounded)), "NaN in different places"
    edge = ~finite & ~np.isnan(rounded)
    assert np.array_equal(got[edge], rounded[edge]), "infinities differ"
    distance = np.abs(got[finite].astype(np.longdouble) - want[finite].astype(np.longdouble))
    return float(np.max(distance / np.spacing(np.abs(rounded[finite])).astype(np.longdouble), initial=0.0))


def samples(low: float, high: float, dtype: type, positive: bool = False) -> np.ndarray:
    rng = np.random.default_rng(7)
    uniform = rng.uniform(low, high, 20000)
    near = np.ldexp(rng.uniform(0.5, 1.0, 20000), rng.integers(-40, 5, 20000))
    near = near if positive else near * rng.choice([-1.0, 1.0], 20000)
    near = near[(near >= low) & (near <= high)]
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, low, high])
    return np.concatenate([uniform, near, special]).astype(dtype)


def high_precision(name: str, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """The reference in long double (64-bit mantissa); mpmath where NumPy has no such function."""
    import mpmath

    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        if y is not None:
            function = {"powf": np.power, "atan2": np.arctan2}[name]
            return function(wide, y.astype(np.longdouble))
        numpy_names = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
                       "atanh": "arctanh"}  # fmt: skip
        function = getattr(np, numpy_names.get(name, name), None)
        if function is not None:
            return function(wide)
        if name == "rsqrt":
            return 1 / np.sqrt(wide)
        with mpmath.workdps(40):
            values = [mpmath.mpf(float(v)) if np.isfinite(v) else None for v in x]
            limits = {"erf": (-1.0, 1.0), "erfc": (2.0, 0.0)}[name]
            function = getattr(mpmath, name)
            return np.array(
                [
                    _long(function(v)) if v is not None else np.nan if host.isnan(w) else limits[int(w > 0)]
                    for v, w in zip(values, x, strict=True)
                ],
                dtype=np.longdouble,
            )


def _long(value) -> np.longdouble:
    high = float(value)
    return np.longdouble(high) + np.longdouble(float(value - high))


def angles(dtype: type) -> np.ndarray:
    """Numbers of every exponent of the type: at random, and those that are nearest to multiples of pi/2."""
    import mpmath

    info = np.finfo(dtype)
    bits, least, most = info.nmant + 1, int(info.minexp) - info.nmant, int(info.maxexp)
    found = []
    with mpmath.workprec(most + 4 * bits + 64):
        for exponent in range(2 - bits, most - bits + 1):  # of the last bit
            found += [float(m) * 2.0**exponent for m in _near_integers(mpmath.ldexp(2 / mpmath.pi, exponent), bits)]
    rng = np.random.default_rng(13)
    exponents = np.repeat(np.arange(least, most), 4)
    random = np.ldexp(rng.uniform(1, 2, len(exponents)), exponents) * rng.choice([-1.0, 1.0], len(exponents))
    return np.concatenate([found, random, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(dtype)


def everywhere(dtype: type) -> np.ndarray:
    """Numbers of every exponent of the type, with both signs, and where functions begin or end."""
    info, rng = np.finfo(dtype), np.random.default_rng(14)
    exponents = np.repeat(np.arange(int(info.minexp) - info.nmant, int(info.maxexp)), 3)
    random = np.ldexp(rng.uniform(1, 2, len(exponents)), exponents) * rng.choice([-1.0, 1.0], len(exponents))
    ends = [0.0, info.max, info.tiny, info.smallest_subnormal, 1.0, 1.0 + info.eps, 1.0 - info.epsneg, np.inf, 0.5]
    ends += [88.72284, 88.72283935546875, 103.97208, 87.33655, 709.782712893384, 745.13321910194, 128.0, 127.99999]
    ends += [149.0, 150.0, 126.0, 1024.0, 1074.0, 1075.0, 89.41598, 89.41599, 710.4758, 9.010913]
    return np.concatenate([random, ends, np.negative(ends), [np.nan]]).astype(dtype)


def signs_of_zeros_differ(name: str, x: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Where a result is a zero of another sign than the argument's, of functions that are odd."""
    odd = name in ("expm1", "log1p", "sin", "tan", "sinh", "tanh", "asinh", "atanh", "atan", "asin", "erf", "cbrt")
    return (got == 0) & odd & (np.signbit(got) != np.signbit(x))


def _near_integers(value, bits: int) -> list[int]:
    """An integer of so many bits whose product with `value` is near an integer: a multiple of the largest denominator
    of its continued fraction."""
    import mpmath

    before, now, rest, found = 0, 1, value, []
    while now < 1 << bits:
        found = [now << (bits - now.bit_length())]
        rest = rest - mpmath.floor(rest)
        if not rest:
            break
        rest = 1 / rest
        before, now = now, int(mpmath.floor(rest)) * now + before
    return found


def of_angles(name: str, x: np.ndarray) -> np.ndarray:
    """sin, cos or tan in long double, of numbers of any size."""
    import mpmath

    with mpmath.workprec(int(np.finfo(x.dtype).maxexp) + 200):
        function = getattr(mpmath, name)
        values = [_long(function(mpmath.mpf(float(v)))) if np.isfinite(v) else np.nan for v in x]
    found = np.array(values, np.longdouble)
    return np.where((found == 0) & (x == 0), x, found)


RANGES = {
    "exp": (-110.0, 92.0), "exp2": (-155.0, 130.0), "expm1": (-40.0, 90.0), "log": (0.0, 1e30), "log2": (0.0, 1e30),
    "log10": (0.0, 1e30), "log1p": (-1.0, 1e6), "sin": (-1e6, 1e6), "cos": (-1e6, 1e6), "tan": (-1e4, 1e4),
    "sinh": (-90.0, 90.0), "cosh": (-90.0, 90.0), "tanh": (-12.0, 12.0), "asinh": (-1e6, 1e6), "acosh": (1.0, 1e6),
    "atanh": (-1.0, 1.0), "atan": (-50.0, 50.0), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0), "erf": (-6.0, 6.0),
    "erfc": (-6.0, 10.0), "cbrt": (-1e9, 1e9), "rsqrt": (0.0, 1e9),
}  # fmt: skip
F64_ULPS = {"erfc": 12, "erf": 6, "tan": 8, "sin": 6, "cos": 6}


def pairs(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    edge = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 5.0, np.inf, -np.inf, np.nan])
    grid = np.array(np.meshgrid(edge, edge)).reshape(2, -1)
    x = np.concatenate([grid[0], rng.uniform(0, 40, 5000), rng.uniform(-3, 3, 5000)])
    y = np.concatenate([grid[1], rng.uniform(-20, 20, 5000), rng.integers(-9, 9, 5000)])
    return x.astype(dtype), y.astype(dtype)


def far_pairs(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Of every size that the type has, subnormal numbers too."""
    rng, bits = np.random.default_rng(12), np.dtype(dtype).itemsize * 8
    word = np.dtype(f"u{bits // 8}")
    x, y = (rng.integers(0, 1 << bits, 20_000, dtype=word).view(dtype) for _ in range(2))
    tiny, large = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    special = np.array([tiny, 3 * tiny, large, 1.0, 3.0, 1e20, -1e20, 2.0**53, 2.0**54 + 4], dtype)
    grid = np.array(np.meshgrid(special, special), dtype).reshape(2, -1)
    return np.concatenate([grid[0], x]), np.concatenate([grid[1], y])
