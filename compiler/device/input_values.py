"""Values of made-up tensors that show what normal ones hide: ties, values that are no numbers, magnitudes, extremes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

FAR, FAR_SHORT = 1e4, 30.0  # where floats that are far from 0 lie, and those of 16 bits
EXTREME = 300.0  # how far an extreme is from the others


def halves(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Multiples of 1/2 from -3 to 3, as x's type: ties of rounding and of comparisons, zeros of both signs. Half of the
    elements are those of every other tensor of this size."""
    values = np.append(np.arange(-6, 7) / 2, -0.0)
    common = np.random.default_rng(x.size).choice(values, x.shape)
    return np.where(rng.random(x.shape) < 0.5, common, rng.choice(values, x.shape)).astype(x.dtype)


def far_from_zero(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Normal floats around 10,000, around 30 in 16 bits, whose squares have large sums: a mean that is not theirs costs
    more digits than the bound of a variance allows."""
    return (x.astype(np.float64) + (FAR if x.dtype.itemsize > 2 else FAR_SHORT)).astype(x.dtype)


def every_magnitude(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Floats of both signs whose exponents are spread over the whole range of their type, subnormal ones, too."""
    info = ml_dtypes.finfo(x.dtype)
    low, high = np.log2(float(info.smallest_subnormal)), np.log2(float(info.max))
    values = np.exp2(rng.uniform(low, high, x.shape)) * rng.choice([-1.0, 1.0], x.shape)
    return np.clip(values, float(info.min), float(info.max)).astype(x.dtype)


def special(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The second half of a tensor has NaN, infinities, zeros, halves, and the ends of the type's range among its
    values; rows of the first half stay numbers."""
    info = ml_dtypes.finfo(x.dtype)
    ends = [float(info.max), float(info.smallest_normal), float(info.smallest_subnormal)]
    found = [*[np.nan] * 4, np.inf, np.inf, -np.inf, -np.inf, 0.0, -0.0, 0.5, -1.5, 2.5, *ends, *(-e for e in ends)]
    values, start = x.reshape(-1).copy(), x.size // 2
    chosen = start + np.flatnonzero(rng.random(x.size - start) < 0.6)
    values[chosen] = rng.choice(found, len(chosen)).astype(x.dtype)
    return values.reshape(x.shape)


def extremes(x: np.ndarray, axis: int, turn: int, turns: int, rng: np.random.Generator) -> np.ndarray:
    """Each row along `axis` has its largest element at a place of its own and its smallest at another; over all turns
    the places are every one where there are rows enough, else some of them, the last one among them."""
    rows = np.moveaxis(x.copy(), axis, -1)
    length, count = rows.shape[-1], x.size // max(x.shape[axis], 1)
    if not x.size:
        return x
    if length <= count * turns:
        largest = (np.arange(count) + turn * -(-length // turns)) % length
    else:
        largest = rng.integers(0, length, count)
        largest[0] = length - 1 if turn == 0 else largest[0]
    top, bottom = (EXTREME, -EXTREME) if x.dtype.kind not in "iu" else (100, max(-100, np.iinfo(x.dtype).min))
    made = rows.reshape(count, length)
    made[np.arange(count), (largest + max(length // 2, 1)) % length] = bottom
    made[np.arange(count), largest] = top
    return np.ascontiguousarray(np.moveaxis(made.reshape(rows.shape), -1, axis))


VALUES = {
    "multiples of a half": halves, "far from 0": far_from_zero, "every magnitude": every_magnitude,
    "special values": special,
}  # fmt: skip
