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
    edge = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, np.inf, -np.inf, np.nan])
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
