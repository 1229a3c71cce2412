"""What orders the lanes of one warp among each other, between two barriers of the warp: releases and acquires by some
of them (mbarriers, flags). PTX orders nothing by a warp's convergence, nor by shuffles, votes or `elect.sync`.

A release by some lanes covers what they have done so far, and is known by the epoch of the warp's clock in which it is
made (clocks.py). A lane that acquires that epoch, or a later one, comes after it, by whatever chain of warps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_ALL = (1 << 32) - 1
_NEVER = 1 << 62

Sync = tuple[int, int, int]  # time, lanes (bits), epoch


@dataclass
class Syncs:
    """The releases and acquires of each warp (block of the batch, warp) since its lanes last met, in order. Times are
    numbers of accesses (lanes.py)."""

    lanes: Any  # Lanes, whose time it is
    releases: dict[tuple[int, int], list[Sync]] = field(default_factory=dict)
    acquires: dict[tuple[int, int], list[Sync]] = field(default_factory=dict)

    def release(self, b: int, w: int, lanes: np.ndarray | None, epoch: int) -> None:
        """Some lanes (bool [32]; None: all) release in an epoch of their warp."""
        self.releases.setdefault((b, w), []).append((self.lanes.time, _bits(lanes), epoch))

    def acquire(self, b: int, w: int, lanes: np.ndarray | None, epoch: int) -> None:
        """Some lanes learn of the epochs of their own warp up to this one."""
        if epoch:
            self.acquires.setdefault((b, w), []).append((self.lanes.time, _bits(lanes), epoch))

    def meet(self, b: int, w: int) -> None:
        """All lanes of a warp meet."""
        self.releases.pop((b, w), None)
        self.acquires.pop((b, w), None)

    def released(self, b: int, w: int, lane: int, time: int) -> int:
        """The first epoch in which a lane released what it did at some time."""
        return next((e for t, bits, e in self.releases.get((b, w), ()) if t >= time and bits >> lane & 1), _NEVER)

    def learned(self, b: int, w: int, lane: int, time: int) -> int:
        """The last epoch of its own warp that a lane had learned of before some time."""
        return max((e for t, bits, e in self.acquires.get((b, w), ()) if t < time and bits >> lane & 1), default=-1)

    def ordered(self, b: int, w: int, first: tuple[int, int], then: tuple[int, int]) -> bool:
        """Whether what a lane did comes before what another one did later: (lane, time) of both."""
        return self.released(b, w, *first) <= self.learned(b, w, *then)

    def known(self, b: int, w: int, count: int) -> list[int]:
        """For each of a warp's first `count` lanes, up to which time all lanes know what it did; 0: nothing."""
        if (b, w) not in self.acquires:
            return [0] * count
        least = min(self.learned(b, w, lane, _NEVER) for lane in range(count))
        releases = [x for x in self.releases.get((b, w), ()) if x[2] <= least]
        return [max((t for t, bits, _ in releases if bits >> lane & 1), default=0) for lane in range(count)]

    def forget(self, b: int, w: int, time: int) -> None:
        """No access of a warp that is as old as `time` will be asked for any more."""
        if (b, w) in self.releases:
            self.releases[b, w] = [x for x in self.releases[b, w] if x[0] > time]
        old: dict[int, Sync] = {}
        late = []
        for sync in self.acquires.get((b, w), ()):
            if sync[0] > time:
                late.append(sync)
            elif sync[1] not in old or old[sync[1]][2] < sync[2]:
                old[sync[1]] = sync
        if old or late:
            self.acquires[b, w] = [*old.values(), *late]


def _bits(lanes: np.ndarray | None) -> int:
    return _ALL if lanes is None else int(np.packbits(lanes, bitorder="little").view("<u4")[0])


def unordered(syncs: Syncs, nt: int, accesses: list[Any], cells: np.ndarray) -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Pairs of accesses (races.Access, the earlier one first) by lanes of one warp to some granules [n] of a buffer,
    one of them a write, that nothing orders; each with [m, 3]: the granule and both threads (of blocks of `nt`)."""
    cells = np.unique(cells)
    parts = []
    for a in sorted(accesses, key=lambda a: a.time):
        near = a.first[:, None] + np.arange(a.span)
        hit = np.isin(near, cells)
        if hit.any():
            row = np.nonzero(hit)[0]
            order = np.argsort(near[hit], kind="stable")
            parts.append((a, near[hit][order], a.thread[row][order]))
    for i, one in enumerate(parts):
        for other in parts[i:]:
            a, b = one[0], other[0]
            if (a.write or b.write) and not (a.atomic and b.atomic):
                pairs = _pairs(one, other)
                pairs = pairs[_unordered(syncs, nt, pairs, a.time, b.time)]
                if len(pairs):
                    yield a, b, pairs


def _pairs(one: tuple, other: tuple) -> np.ndarray:
    """The granules that two accesses (access, granules in order, threads) share, and by whom: [n, 3]."""
    (_, here, mine), (_, there, others) = one, other
    low, high = np.searchsorted(there, here, "left"), np.searchsorted(there, here, "right")
    count = high - low
    at = np.repeat(np.arange(len(here)), count)
    to = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    pairs = np.stack([here[at], mine[at], others[to]], axis=1).astype(np.int64)
    return pairs[pairs[:, 1] != pairs[:, 2]]


def _unordered(syncs: Syncs, nt: int, pairs: np.ndarray, earlier: int, later: int) -> np.ndarray:
    """Which of the pairs are of one warp, with nothing that orders the earlier access before the later one."""
    b, w = pairs[:, 1] // nt, pairs[:, 1] % nt // 32
    same = (b == pairs[:, 2] // nt) & (w == pairs[:, 2] % nt // 32)
    left = np.full(len(pairs), _NEVER)
    seen = np.full(len(pairs), -1)
    for column, into, ask, time in ((1, left, syncs.released, earlier), (2, seen, syncs.learned, later)):
        threads, which = np.unique(pairs[:, column], return_inverse=True)
        found = [ask(int(t) // nt, int(t) % nt // 32, int(t) % nt % 32, time) for t in threads]
        into[:] = np.array(found, np.int64)[which.ravel()] if found else 0
    return same & (left > seen)
