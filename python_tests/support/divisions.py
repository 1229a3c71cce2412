"""Operands of divisions over all of f32, and when their quotients are right."""

from __future__ import annotations

import numpy as np

from support.randomness import generator

SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 2.0**-128, -(2.0**-126), 2.0**-64, 2.0**64, 2.0**127, 3.4e38, 1.0,
    3.0, 7.0, -10.0,
]  # fmt: skip


def operands(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of `count` f32: every pair of special values, then random bits, half of them of
    dividends that are tiny, then numbers near 1."""
    rng = generator()
    x, y = (rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32) for _ in range(2))
    near = count // 2
    # The tiniest by what is small, whose quotients are ordinary numbers again.
    with np.errstate(invalid="ignore"):
        x[: near // 2] *= np.float32(2.0**-100)
    x[near:], y[near:] = (rng.uniform(0.5, 2.0, count - near).astype(np.float32) for _ in range(2))
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32)
    x[: len(pairs)], y[: len(pairs)] = pairs[:, 0], pairs[:, 1]
    return x, y


def same(got: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Raises AssertionError unless `got` is x / y, rounded: to the last bit where the result is not subnormal, else to
    one in the last place."""
    with np.errstate(all="ignore"):
        want = x / y
    assert np.array_equal(np.isnan(got), np.isnan(want))
    known = ~np.isnan(want)
    off = np.abs(got[known].view(np.int32).astype(np.int64) - want[known].view(np.int32))
    allowed = np.where(np.abs(want[known]) >= 2.0**-126, 0, 1)
    wrong = np.flatnonzero(off > allowed)
    shown = [(a[known][wrong[:5]].tolist()) for a in (x, y, got, want)]
    assert not len(wrong), f"{len(wrong)} quotients, the first of x, y, got, wanted: {shown}"
