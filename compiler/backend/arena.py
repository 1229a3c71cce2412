"""Packing buffers with known lifetimes into one arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlirc.runtime.plan import aligned


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `size` bytes that is in use from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def pack(buffers: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Places buffers so that no two that live at the same step overlap; returns (byte offsets, arena size in bytes).

    Greedy by size: the largest first, each into the smallest gap that holds it (Pisarchyk and Lee, "Efficient Memory
    Management for Deep Neural Net Inference", 2020). Offsets are multiples of ARENA_ALIGNMENT; empty
    buffers take no space.
    """
    count = len(buffers)
    sizes = np.array([aligned(b.size) for b in buffers], dtype=np.int64)
    firsts = np.array([b.first for b in buffers], dtype=np.int64)
    lasts = np.array([b.last for b in buffers], dtype=np.int64)
    offsets = np.zeros(count, dtype=np.int64)
    order = sorted(range(count), key=lambda i: (-int(sizes[i]), int(firsts[i]), i))
    placed = np.zeros(count, dtype=np.int64)
    done = 0
    for index in order:
        size = int(sizes[index])
        if size == 0:
            continue
        earlier = placed[:done]
        conflicts = earlier[(firsts[earlier] <= lasts[index]) & (lasts[earlier] >= firsts[index])]
        offsets[index] = _best_gap(offsets[conflicts], sizes[conflicts], size)
        placed[done] = index
        done += 1
    return offsets.tolist(), int((offsets + sizes).max(initial=0))


def _best_gap(starts: np.ndarray, sizes: np.ndarray, size: int) -> int:
    """The start of the smallest gap of at least `size` bytes between the given ranges, or the end of them all."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    ends = np.maximum.accumulate(starts + sizes[order])
    gap_starts = np.concatenate(([0], ends[:-1]))
    gaps = starts - gap_starts
    gaps[gaps < size] = np.iinfo(np.int64).max
    best = int(np.argmin(gaps))
    return int(ends[-1] if gaps[best] == np.iinfo(np.int64).max else gap_starts[best])


def peak_live(buffers: Sequence[Lifetime]) -> int:
    """The most bytes that live at one step: no packing can do with less."""
    if not buffers:
        return 0
    deltas = np.zeros(max(b.last for b in buffers) + 2, dtype=np.int64)
    for b in buffers:
        deltas[b.first] += aligned(b.size)
        deltas[b.last + 1] -= aligned(b.size)
    return int(np.cumsum(deltas).max())
