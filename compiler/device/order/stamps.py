"""Who accessed the granules of a buffer in global memory, and when: for each granule the last plain write, and all
plain reads, atomic loads and atomic writes since. A stamp is a thread of the launch, an epoch of its warp, and the
operation."""

from __future__ import annotations

import numpy as np


class Stamps:
    """Any number of stamps per granule, one per thread (its latest)."""

    def __init__(self, cells: int, threads: int):
        self.threads = threads
        self.some = np.zeros(cells, bool)  # whether a granule has any
        self.keys = np.zeros(0, np.int64)  # granule * threads + thread, sorted
        self.values = np.zeros((0, 2), np.int32)  # epoch, operation
        self.fresh: list[tuple[np.ndarray, np.ndarray]] = []  # not sorted in yet

    def add(self, cells: np.ndarray, thread: np.ndarray, epoch: np.ndarray, op: int) -> None:
        """Notes accesses to granules [n, span] by threads [n] in their epochs [n]."""
        self.some[cells] = True
        keys = (cells.astype(np.int64) * self.threads + thread[:, None]).ravel()
        values = np.empty((len(keys), 2), np.int32)
        values[:, 0], values[:, 1] = np.repeat(epoch, cells.shape[1]), op
        self.fresh.append((keys, values))

    def _sort(self) -> None:
        keys = np.concatenate([self.keys, *(k for k, _ in self.fresh)])
        values = np.concatenate([self.values, *(v for _, v in self.fresh)])
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], values[order]
        last = np.append(keys[1:] != keys[:-1], True)  # of equal keys the latest
        self.keys, self.values, self.fresh = keys[last], values[last], []

    def of(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """All stamps of granules [n]: for each which granule of the array it is of, thread, epoch and operation; None
        if there is none."""
        if not self.some[cells].any():
            return None
        if self.fresh:
            self._sort()
        low = np.searchsorted(self.keys, cells.astype(np.int64) * self.threads)
        high = np.searchsorted(self.keys, (cells.astype(np.int64) + 1) * self.threads)
        counts = high - low
        which = np.repeat(np.arange(len(cells)), counts)
        at = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)
        return which, self.keys[at] % self.threads, self.values[at, 0], self.values[at, 1]

    def forget(self, cells: np.ndarray) -> None:
        """A write that comes after all of them makes them irrelevant."""
        self.some[cells] = False


class Shadow:
    """The stamps of one buffer."""

    def __init__(self, cells: int, threads: int):
        self.writer = np.full(cells, -1, np.int32)  # the last plain write: thread, epoch, operation
        self.epoch = np.zeros(cells, np.int32)
        self.op = np.zeros(cells, np.int32)
        self.sets = {kind: Stamps(cells, threads) for kind in ("read", "atomic load", "atomic write")}
