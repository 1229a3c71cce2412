"""Lanes that synchronize without the rest of their warp, for the clocks of shared memory (clocks.py).

A warp has one clock, so that an arrival leaves all that the warp has done. Where only some lanes arrive, what the
others have done since the warp last met is moved to the warp's next epoch: nobody has been told of it. Where only some
lanes wait, what they learn is kept beside the warp's clock, for them alone, until the warp meets. Lanes meet at
barriers of the warp (bar.warp.sync), of the block and of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mlirc.device.order.lane_order import Syncs

_MANY = 256  # accesses that are kept before those that all warps have met behind are looked for


class Lanes:
    """What the lanes of each warp know and have done by themselves."""

    def __init__(self, clocks: Any):
        self.clocks, self.nt = clocks, clocks.machine.nt
        blocks = clocks.machine.nb
        self.time = 0  # counts accesses
        self.syncs = Syncs(self)
        self.met = np.zeros((blocks, clocks.warps), np.int64)  # when each warp last met
        self.accesses: dict[tuple, tuple[int, Any]] = {}  # since then, the last one of each operation and place
        self.apart = np.zeros((blocks, clocks.warps, 32), bool)  # lanes that know more than their warp
        self.known: np.ndarray | None = None  # and what: a clock per warp, [unit, row, column]

    def note(self, a: Any) -> None:
        """Keeps an access to shared memory (races.Access)."""
        if not len(a.first):
            return
        self.time += 1
        a.time = self.time
        key = (id(a.buffer), id(a.op), a.write, int(a.first[0]), int(a.thread[0]), len(a.first))
        self.accesses[key] = self.time, a
        if len(self.accesses) > _MANY and self.time % _MANY == 0:
            oldest = int(self.met.min())
            self.accesses = {k: x for k, x in self.accesses.items() if x[0] > oldest}

    def lanes_of(self, mask: np.ndarray | None, b: int, w: int) -> np.ndarray | None:
        """The active lanes of a warp (bool [32]); None: all that it has."""
        if mask is None:
            return None
        machine = self.clocks.machine
        here = np.broadcast_to(mask, (machine.nb, self.nt))[b, 32 * w : 32 * w + 32]
        return None if here.all() else np.pad(here, (0, 32 - len(here)))

    def meet(self, b: int, w: int) -> None:
        """The lanes of a warp meet."""
        self.met[b, w] = self.time
        self.syncs.meet(b, w)
        self._share(b, w)

    def _share(self, b: int, w: int) -> None:
        """What some lanes of a warp know, all do."""
        if self.known is not None and self.apart[b, w].any():
            unit, row = self.clocks.unit(b), b % self.clocks.size * self.clocks.warps + w
            mine = self.clocks.now[unit, row]
            np.maximum(mine, self.known[unit, row], out=mine)
            self.apart[b, w] = False
            self.known[unit, row] = 0

    def learn(self, b: int, w: int, lanes: np.ndarray, from_: np.ndarray) -> None:
        """Some lanes of a warp learn what was left somewhere."""
        if self.known is None:
            self.known = np.zeros_like(self.clocks.now)
        known = self.known[self.clocks.unit(b), b % self.clocks.size * self.clocks.warps + w]
        np.maximum(known, from_, out=known)
        self.apart[b, w] |= lanes
        if self.apart[b, w, : self.nt - 32 * w].all():  # each by itself: as if they had met
            self._share(b, w)

    def more(self, b: int, w: int, lanes: np.ndarray | None) -> np.ndarray | None:
        """What some lanes (None: all) know beyond their warp's clock; None: nothing."""
        if self.known is None or not (self.apart[b, w] if lanes is None else self.apart[b, w] & lanes).any():
            return None
        return self.known[self.clocks.unit(b), b % self.clocks.size * self.clocks.warps + w]

    def beyond(self, thread: np.ndarray, columns: np.ndarray) -> np.ndarray | int:
        """What threads (counted through the batch [n]) know beyond their warps' clocks, of columns [n, span]."""
        if self.known is None:
            return 0
        b, t = thread // self.nt, thread % self.nt
        apart = self.apart[b, t // 32, t % 32]
        if not apart.any():
            return 0
        unit, row = self.clocks.unit(b), self.clocks.row(b, t)
        return np.where(apart[:, None], self.known[unit[:, None], row[:, None], columns], 0)

    def alike(self) -> bool:
        """Whether lanes of all units know the same."""
        units = len(self.clocks.now)
        apart = self.apart.reshape(units, -1)
        return bool((apart == apart[0]).all()) and (self.known is None or bool((self.known == self.known[0]).all()))

    def apart_of(self, thread: np.ndarray) -> np.ndarray:
        """Whether threads (counted through the batch [n]) know more than their warps."""
        return self.apart[thread // self.nt, thread % self.nt // 32, thread % self.nt % 32]

    def ordered(self, b: int, first: tuple[int, int], t: int) -> bool:
        """Whether what a thread did (thread, time) comes before what thread t of its warp does now."""
        w, (done, time) = t // 32, first
        if done == t or self.met[b, w] >= time:
            return True
        return self.syncs.ordered(b, w, (done % 32, time), (t % 32, self.time + 1))

    def others(self, b: int, w: int, lanes: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
        """Accesses since the warp last met, and which of their threads are of its other lanes."""
        first = b * self.nt + 32 * w
        for time, a in self.accesses.values():
            if time <= self.met[b, w] or a.thread[-1] < first or a.thread[0] > first + 31:
                continue
            lane = a.thread - first
            chosen = (lane >= 0) & (lane < 32)
            chosen[chosen] = ~lanes[lane[chosen]]
            if chosen.any():
                yield a, chosen

    def hold_back(self, b: int, w: int, lanes: np.ndarray) -> None:
        """Some lanes of a warp release: what the others have done counts as done in the warp's next epoch."""
        clocks = self.clocks
        row = b % clocks.size * clocks.warps + w
        epoch = int(clocks.now[clocks.unit(b), row, row])
        for a, chosen in self.others(b, w, lanes):
            table, cells = clocks.table(a.buffer), _cells(a, chosen)
            if not self._last(table, cells, a.write, row, epoch).any():
                continue
            table.divide()
            here = cells[self._last(table, cells, a.write, row, epoch)]
            if a.write:
                table.epoch[here] = epoch + 1
            else:
                table.note_read(here[:, None], row, epoch + 1)

    @staticmethod
    def _last(table: Any, cells: np.ndarray, write: bool, row: int, epoch: int) -> np.ndarray:
        """Of which granules [n] a warp's write (or read) in an epoch is the last one."""
        at = table.at(cells)
        return (table.writer[at] == row) & (table.epoch[at] == epoch) if write else table.last_read(row, at) == epoch


def _cells(a: Any, chosen: np.ndarray) -> np.ndarray:
    """All granules of some threads' accesses."""
    return (a.first[chosen][:, None] + np.arange(a.span)).ravel()
