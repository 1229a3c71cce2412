"""Tensor copies among each other, within a block or cluster: the elements of an array in global memory that stores by
tensor copies write, until their whole group is waited for, and that loads read, until the phase of their mbarrier."""

from __future__ import annotations

from typing import Any

import numpy as np


class TensorOrder:
    """Who has accessed the elements of an array by tensor copies, in one launch. A unit is a cluster or block of the
    launch; what copies of other units do is the business of tensor_maps.Writers."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self.under_way: np.ndarray | None = None  # 2 * unit of the store that is writing, and 1 more for a reduction
        self.writer: np.ndarray | None = None  # [..., 3]: unit, row and epoch of who has waited for the last store
        self.reads: dict[tuple, tuple[tuple, int]] = {}  # (elements, unit, column) -> index of the array, epoch

    def access(self, m: Any, at: tuple, who: tuple[int, int], kind: str, op) -> None:
        """Checks a copy of some elements by a thread (block of the batch, thread): `kind` is read, write or reduce."""
        lone, unit = m.one(*who), _unit(m, who[0])
        if self.under_way is not None and self.writer is not None:
            there = self.under_way[at]
            busy = there == 2 * unit if kind == "reduce" else there // 2 == unit  # reductions come in any order
            if busy.any():
                found = "overlapping copies" if kind == "write" else "unfinished copy"
                m.complain(found, lone, f"{kind}s elements of a tensor that a tensor copy is writing", op)
            elif self._unseen(m, self.writer[at], unit, who):
                message = f"{kind}s elements of a tensor that a tensor copy wrote: nothing is behind the wait for it"
                m.complain("race", lone, message, op)
        if kind == "read":
            return
        for (_, other, column), (there, epoch) in self.reads.items():
            if other == unit and not m.clocks.sees(*who, column, epoch) and self._overlap(at, there):
                message = f"{kind}s elements of a tensor that a tensor copy reads, before the wait for it"
                m.complain("race", lone, message, op)
                return

    def _unseen(self, m: Any, stamps: np.ndarray, unit: int, who: tuple[int, int]) -> bool:
        """Whether a thread has not seen one of the stamps of its unit."""
        mine = stamps[stamps[..., 0] == unit]
        return len(mine) > 0 and any(not m.clocks.sees(*who, int(c), int(e)) for _, c, e in np.unique(mine, axis=0))

    def _overlap(self, a: tuple, b: tuple) -> bool:
        if all(isinstance(x, slice) for x in (*a, *b)):
            return all(x.start < y.stop and y.start < x.stop for x, y in zip(a, b, strict=True))
        here = np.zeros(self.shape, bool)
        here[a] = True
        return bool(here[b].any())

    def begin_write(self, m: Any, at: tuple, b: int, kind: str) -> None:
        if self.under_way is None:
            self.under_way, self.writer = np.zeros(self.shape, np.int64), np.zeros((*self.shape, 3), np.int32)
        self.under_way[at] = 2 * _unit(m, b) + (kind == "reduce")

    def end_write(self, m: Any, at: tuple, who: tuple[int, int]) -> None:
        """A thread has waited for its store."""
        assert self.under_way is not None and self.writer is not None
        self.under_way[at] = 0
        row = m.clocks.row(*who)
        self.writer[at] = _unit(m, who[0]), row, m.clocks.seen(who[0], row)[row]

    def begin_read(self, m: Any, at: tuple, b: int, agent: tuple[int, int]) -> None:
        """A load is known by (column, epoch) of its cluster's clocks."""
        key = tuple((x.start, x.stop) if isinstance(x, slice) else np.asarray(x).tobytes() for x in at)
        self.reads[key, _unit(m, b), agent[0]] = at, agent[1]


def _unit(m: Any, b: int) -> int:
    """The number of a block's cluster in the launch, from 1 on."""
    return (m.order.first // m.nt + b) // m.cluster_size + 1
