"""Lanes that meet without the rest of their warp (bar.warp.sync with a mask of some lanes), for the race detector: what
they did before is ordered before what they do after, and before nothing that the other lanes do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

MOST = 16  # meetings of a part that are kept until the whole warp meets


class Parts:
    """Accesses in front of meetings of some lanes, each with who met (bool, counted through the batch), in order.
    `cut` divides accesses by threads, `examine` looks for races among accesses, `of_warps` gives all threads of the
    warps of some."""

    def __init__(self, cut: Callable, examine: Callable, of_warps: Callable):
        self._cut, self._examine, self._of_warps = cut, examine, of_warps
        self.chunks: list[tuple[list[Any], np.ndarray]] = []

    def meet(self, accesses: list[Any], who: np.ndarray) -> tuple[list[Any], list[Any]]:
        """Some lanes meet: takes what they have done out of the accesses since the last meeting, and returns the rest;
        and what is so long ago that it is no longer kept here."""
        done, kept = self._cut(accesses, who)
        self._examine(done)
        self.chunks.append((done, who))
        if len(self.chunks) <= MOST:
            return kept, []
        (oldest, met), *self.chunks = self.chunks
        self._across(oldest, met, [*self.chunks, (kept, met)])
        return kept, oldest

    def settle(self, threads: np.ndarray | None, done: list[Any]) -> list[Any]:
        """Whole warps (their threads; None: all) have met, and have done the last accesses since their parts did.
        Compares what nothing orders; returns what they did in front of meetings of their parts."""
        mine, left, found = [], [], []
        for accesses, met in self.chunks:
            here, others = self._cut(accesses, threads)
            mine.append((here, met if threads is None else met & threads))
            if threads is not None and (met & ~threads).any():
                left.append((others, met & ~threads))
            found += here
        self.chunks = left
        for i, (accesses, met) in enumerate(mine):
            self._across(accesses, met, [*mine[i + 1 :], (done, met)])
        return found

    def _across(self, accesses: list[Any], met: np.ndarray, later: list[tuple[list[Any], np.ndarray]]) -> None:
        """Compares accesses with later ones by lanes that have not heard of their end: neither by the meeting that
        followed, nor by those who met there."""
        if not accesses:
            return
        reached = met.copy()
        for others, who in later:
            unordered, _ = self._cut(others, ~reached)
            if unordered:
                self._examine(accesses + unordered)
            linked = self._of_warps(reached & who)
            reached |= who & linked
