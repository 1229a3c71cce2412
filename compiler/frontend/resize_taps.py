"""Which elements of a dimension each element of a resized one is made of, and their weights, by PyTorch's rules.

The rules are those of `aten/src/ATen/native/cpu/UpSampleKernel.cpp` and `UpSample.h`, in the precision that these
compute in: a source index just below an integer decides which element is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Filter = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Taps:
    """For each element of a resized dimension the same number of source elements, and their weights."""

    indices: np.ndarray  # int64 [out, taps]
    weights: np.ndarray  # floats [out, taps]
    used: np.ndarray  # bool [out, taps]: a tap that is not repeats the first, to fill its row, and counts for nothing

    def transposed(self, size: int) -> Taps:
        """The taps of the gradient of a source of `size` elements: the results that each element is a part of."""
        rows: list[list[tuple[int, float]]] = [[] for _ in range(size)]
        for (row, tap), source in np.ndenumerate(self.indices):
            if self.used[row, tap]:
                rows[source].append((row, self.weights[row, tap]))
        most = max(1, *map(len, rows))
        used = np.array([[tap < len(row) for tap in range(most)] for row in rows])
        filled = [row + [row[0] if row else (0, 0.0)] * (most - len(row)) for row in rows]
        pairs = np.array(filled, dtype=np.float64).reshape(size, most, 2)
        return Taps(pairs[..., 0].astype(np.int64), pairs[..., 1].astype(self.weights.dtype), used)

    def rounded(self, bf16: bool, linear: bool) -> Taps:
        """With weights of 16 bits, as PyTorch keeps them beside 16-bit elements; the first of two linear ones is what
        the second one leaves of 1."""
        weights = _to_16_bits(self.weights, bf16)
        if linear:
            weights = np.stack([_to_16_bits(1 - weights[:, 1], bf16), weights[:, 1]], 1)
        return Taps(self.indices, weights, self.used)

    def fixed_point(self) -> tuple[np.ndarray, int]:
        """The weights as 16-bit integers, and how many of their bits are behind the point: those of bytes.

        The most bits with which the largest weight stays below 2^15; halves are rounded away from zero.
        """
        largest, bits = max(0.0, float(self.weights.max())), 0
        while bits < 22 and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
            bits += 1
        return np.trunc(self.weights * (1 << bits) + np.copysign(0.5, self.weights)).astype(np.int64), bits


def nearest(old: int, new: int, factor: float | None, exact: bool, plain: bool, wide: bool) -> np.ndarray:
    """The element that each of `new` elements is, int64 [new].

    `exact`: of the mode nearest-exact. `plain`: by the rule of PyTorch's kernel for pixels whose channels lie side by
    side, which keeps a size that stays, and halves indices of one that doubles. `wide`: the scale is FP64.
    """
    place = np.arange(new, dtype=np.float64)
    if not plain:
        step = _step(old, new, False, factor, np.float64 if wide else np.float32)
        if exact:
            found = np.floor((_source(step, new, False, False).astype(np.float64) + 0.5).astype(np.float32))
        else:
            found = np.floor((step * np.arange(new).astype(step.dtype)).astype(np.float32))
    elif exact:
        found = np.floor(((place + 0.5) * float(_ratio(old, new, factor, np.float32))).astype(np.float32))
    elif new == old:
        found = place
    elif new == 2 * old:
        found = place // 2
    else:
        found = np.floor(np.arange(new).astype(np.float32) * _ratio(old, new, factor, np.float32))
    return np.minimum(found.astype(np.int64), old - 1)


def linear(old: int, new: int, align: bool, factor: float | None, dtype: type) -> Taps:
    """Two taps of each of `new` elements between which it lies."""
    if new == old:
        place = np.arange(new)
        return _all_used(np.stack([place, place], 1), np.array([[1, 0]] * new, dtype=dtype))
    first, beyond = _split(_source(_step(old, new, align, factor, dtype), new, align, False), old)
    return _all_used(np.stack([first, np.minimum(first + 1, old - 1)], 1), np.stack([1 - beyond, beyond], 1))


def cubic(old: int, new: int, align: bool, factor: float | None, dtype: type) -> Taps:
    """Four taps of each of `new` elements; those outside are the border's."""
    first, beyond = _split(_source(_step(old, new, align, factor, dtype), new, align, True), old)
    indices = np.clip(first[:, None] + np.arange(-1, 3), 0, old - 1)
    rest, a = 1 - beyond, dtype(-0.75)
    weights = [cubic_far(beyond + 1, a), cubic_near(beyond, a), cubic_near(rest, a), cubic_far(rest + 1, a)]
    return _all_used(indices, np.stack(weights, 1).astype(dtype))


def cubic_near(x: Any, a: Any) -> Any:
    """The weight of an element at a distance x of 0 to 1; `a` is the free number of Keys' convolution (IEEE ASSP 29,
    1981)."""
    return ((a + 2) * x - (a + 3)) * x * x + 1


def cubic_far(x: Any, a: Any) -> Any:
    """The weight of an element at a distance of 1 to 2."""
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _keys(a: float) -> Filter:
    def weigh(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        return np.where(
            x < 1, cubic_near(x, x.dtype.type(a)), np.where(x < 2, cubic_far(x, x.dtype.type(a)), 0)
        ).astype(x.dtype)

    return weigh


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where((x >= -3) & (x < 3), np.sinc(x) * np.sinc(x / 3), 0).astype(x.dtype)


# By mode: how many elements its filter spans, and the filter with and without smoothing of what a smaller size loses.
_FILTERS: dict[str, tuple[int, Filter, Filter]] = {
    "linear": (2, _triangle, _triangle),
    "cubic": (4, _keys(-0.5), _keys(-0.75)),
    "lanczos": (6, _lanczos, _lanczos),
}


def smoothed(mode: str, old: int, new: int, align: bool, factor: float | None, dtype: type) -> Taps:
    """The taps of an antialiased resize: the filter is as wide as the step between results, where that is over 1."""
    size, filter_, _ = _FILTERS[mode]
    step = _step(old, new, align, factor, dtype)
    reach = dtype(size * 0.5) * step if step >= 1 else dtype(size * 0.5)
    most = math.ceil(reach) * 2 + 1
    inverse = dtype(1) / step if step >= 1 else dtype(1)
    center: np.ndarray = (float(step) * (np.arange(new) + 0.5)).astype(dtype)
    first = np.maximum((center - reach + 0.5).astype(np.int64), 0)
    count = np.clip(np.minimum((center + reach + 0.5).astype(np.int64), old) - first, 0, most)
    place = first[:, None] + np.arange(most)
    used = np.arange(most) < count[:, None]
    weights = filter_(((place - center[:, None].astype(np.float64) + 0.5) * float(inverse)).astype(dtype))
    weights = np.where(used, weights, 0)
    total = weights.sum(1, keepdims=True)
    weights = np.where(total != 0, weights / np.where(total != 0, total, 1), weights)
    kept = max(1, int(count.max()))
    place = np.where(used, place, np.minimum(first, old - 1)[:, None])
    return Taps(place[:, :kept], weights[:, :kept].astype(dtype), used[:, :kept])


def of_bytes(mode: str, old: int, new: int, align: bool, factor: float | None) -> Taps:
    """The taps of a resize of bytes, in FP64: weights of taps outside are the border's."""
    size, _, filter_ = _FILTERS[mode]
    first, beyond = _split(_source(_step(old, new, align, factor, np.float64), new, align, size > 2), old)
    low = first - size // 2 + 1
    start = np.maximum(low, 0)
    count = np.clip(np.minimum(first + size // 2 + 1, old) - start, 0, size)
    weights = np.zeros((new, size))
    for row in range(new):
        at = 0
        for tap in range(size):
            if low[row] + tap <= 0:
                at = 0
            elif low[row] + tap >= old - 1:
                at = count[row] - 1
            weights[row, at] += filter_(np.array(tap + 1 - size // 2 - beyond[row]))
            at += 1
    used = np.arange(size) < count[:, None]
    return Taps(np.where(used, start[:, None] + np.arange(size), start[:, None]), weights, used)


def _to_16_bits(values: np.ndarray, bf16: bool) -> np.ndarray:
    """f32 numbers rounded to bf16 or f16, to even in ties."""
    if not bf16:
        return values.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _all_used(indices: np.ndarray, weights: np.ndarray) -> Taps:
    return Taps(indices.astype(np.int64), weights, np.ones(indices.shape, dtype=bool))


def _ratio(old: int, new: int, factor: float | None, dtype: type) -> np.ndarray:
    return dtype(1.0 / factor) if factor is not None and factor > 0 else dtype(old) / dtype(new)


def _step(old: int, new: int, align: bool, factor: float | None, dtype: type) -> np.ndarray:
    """How far apart in the source the elements of the result are."""
    if not align:
        return _ratio(old, new, factor, dtype)
    return dtype(old - 1) / dtype(new - 1) if new > 1 else dtype(0)


def _source(step: np.ndarray, new: int, align: bool, below: bool) -> np.ndarray:
    """Where in the source each element of the result is, in the dtype of `step`; negative only with `below`."""
    dtype = step.dtype.type
    if align:
        return step * np.arange(new).astype(dtype)
    found = (float(step) * (np.arange(new) + 0.5) - 0.5).astype(dtype)  # rounded once, as by an FMA
    return found if below else np.maximum(found, dtype(0))


def _split(place: np.ndarray, old: int) -> tuple[np.ndarray, np.ndarray]:
    """The element at or below each place, and how far the place is beyond it, 0 to 1."""
    first = np.minimum(np.floor(place).astype(np.int64), old - 1)
    return first, np.clip(place - first.astype(place.dtype), 0, 1).astype(place.dtype)
