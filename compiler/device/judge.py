"""Which elements of a kernel's results are wrong."""

from __future__ import annotations

import numpy as np

from mlirc.host.rounding.values import LEAST, ROUNDOFF

PEAK = 16  # times a relative error that is stated: what the worst element of a row may be off by, of the row's size
# The names of NumPy's types in MLIR.
SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
SHORT |= {"float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2"}
# Where no bounds are known: the largest difference that rounding explains, relative to the largest element.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}
_TOLERANCE |= {"float8_e4m3fn": 0.25, "float8_e5m2": 0.5}
# Rounding to nearest goes either way: how many deviations the mean of its errors, row by row, may be from 0.
_DEVIATIONS, _ROWS = 6.0, 32

_SMALL, _TINY = 1e-3, 1e-30  # of the largest element, or at all: what may be so far from a number near 0


def allowed(expected: np.ndarray, bound: np.ndarray | None, tolerance: float = 0.0) -> np.ndarray:
    """How far each element of a result may be from what is expected, in f64: by its error bound, and one more rounding
    where that does not count the last one, else by the largest element; infinity or NaN where nothing is known. Of
    integers and booleans 0 or infinity."""
    if expected.dtype.kind in "iub":
        return np.zeros(expected.shape) if bound is None else bound
    if tolerance:  # as `mlirc.check` has it of the worst element
        return allowed(expected, bound) + PEAK * tolerance * _row_sizes(expected)
    if bound is not None and expected.dtype.itemsize <= 2:
        return bound
    e = np.abs(expected.astype(np.float64))
    if bound is None:
        return np.full(e.shape, _TOLERANCE[expected.dtype.name] * e[np.isfinite(e)].max(initial=0.0))
    short = SHORT[expected.dtype.name]
    with np.errstate(invalid="ignore"):
        return bound + np.where(np.isfinite(e), ROUNDOFF[short] * e + LEAST[short], 0.0)


def _row_sizes(expected: np.ndarray) -> np.ndarray:
    """The root mean square of each element's row, or a tenth of the whole's where that is more."""
    e = np.where(np.isfinite(expected.astype(np.float64)), expected.astype(np.float64), 0.0)
    whole = np.sqrt(np.square(e).mean()) if e.size else 0.0
    rows = np.sqrt(np.square(e).mean(-1, keepdims=True)) if e.ndim else np.abs(e)
    return np.broadcast_to(np.maximum(rows, 0.1 * whole), e.shape)


def wrong(
    found: np.ndarray, expected: np.ndarray, bound: np.ndarray | None = None, tolerance: float = 0.0
) -> np.ndarray:
    """Which elements of a result differ by more than rounding explains: bool, of the result's shape. `bound`: f64, what
    rounding may do to each. Integers and booleans must be equal; NaN and infinities must be where they are expected,
    and nowhere else; but where the bound is infinite or NaN anything may be."""
    limit = allowed(expected, bound, tolerance)
    if expected.dtype.kind in "iub":
        return (found != expected) & ~(limit > 0)
    f, e = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(f - e) <= limit)
        bad = np.where(np.isfinite(e), far, (f != e) & ~(np.isnan(f) & np.isnan(e)))
        return bad & (limit < np.inf)


def lean(found: np.ndarray, expected: np.ndarray, bound: np.ndarray | None, known: np.ndarray | None) -> float:
    """How far the elements of a result lie towards 0 on average, in deviations of that mean, where that is more than
    rounding to nearest explains; else 0. Rows along the last dimension may share what is rounded, and count once: an
    error is taken relative to its bound, a row has the mean of its elements, and the deviation is that of the rows.
    For inputs that are independent random numbers."""
    limit = allowed(expected, bound)
    f, e = found.astype(np.float64), expected.astype(np.float64)
    sure = np.isfinite(limit) & (limit > 0) & np.isfinite(e) & np.isfinite(f)
    if known is not None:
        sure &= known
    part = np.divide(np.sign(e) * (e - f), limit, out=np.zeros(f.shape), where=sure)
    rows, weights = (x.reshape(-1, x.shape[-1] if x.ndim else 1).sum(-1) for x in (part, sure))
    means = rows[weights > 0] / weights[weights > 0]
    if len(means) < _ROWS or np.count_nonzero(means) < len(means) / 2:
        return 0.0
    deviations = float(means.mean() / (means.std(ddof=1) / np.sqrt(len(means))))
    return deviations if abs(deviations) > _DEVIATIONS else 0.0


def judged(expected: np.ndarray, bound: np.ndarray | None) -> np.ndarray:
    """Which elements of a result a wrong number would show in: bool, of the result's shape. Their bound is less than
    their own size, or than a thousandth of the largest element; of integers, NaN and infinities it is 0."""
    limit = allowed(expected, bound)
    if expected.dtype.kind in "iub":
        return ~(limit > 0)
    e = np.abs(expected.astype(np.float64))
    number = np.isfinite(e)
    size = np.maximum(e, max(_SMALL * e[number].max(initial=0.0), _TINY))
    return (limit == 0) | number & (limit < size)
