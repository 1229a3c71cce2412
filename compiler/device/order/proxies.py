"""Proxies (PTX ISA, "Memory Consistency Model: Proxies"): what threads write through the generic proxy, and tensor
copies, bulk copies and wgmma read or overwrite through the asynchronous one, needs a proxy fence in between, of a kind
that includes the memory.

A fence covers the writes that its threads have seen. In shared memory who covers what is part of the clocks: behind the
columns of clocks.py come, for the shared memory of each block of the cluster, those up to which epoch of each warp its
writes are fenced; like all that is known, that is handed on by arrivals and waits. So a fence counts only where it
comes before the asynchronous access, and behind the write. (Reads by threads, and a copy that then overwrites what was
read, need no fence here: no kernel has one there.)"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirc.device.memory import Buffer

KIND = "missing proxy fence"
KINDS = ("alias", "async", "async.global", "async.shared")


class Proxies:
    """What is fenced in the shared memory of a batch of blocks, and who knows."""

    def __init__(self, clocks: Any, first: int):
        self.clocks, self.first = clocks, first  # column

    def columns(self, owner: int) -> slice:
        """The columns of the shared memory of a block (of the batch)."""
        rows = self.clocks.rows
        return slice(self.first + owner % self.clocks.size * rows, self.first + (owner % self.clocks.size + 1) * rows)

    def fence(self, mask, cluster: bool) -> None:
        """A proxy fence of shared memory by the active threads: of their block's, or of all blocks' of the cluster."""
        c = self.clocks
        for b, row in c.active(mask):
            lanes = c.lanes.lanes_of(mask, b, row % c.warps)
            if lanes is not None:
                c.lanes.hold_back(b, row % c.warps, lanes)
            mine = c.now[c.unit(b), row]
            known, more = mine[: c.rows], c.lanes.more(b, row % c.warps, lanes)
            known = known.copy() if more is None else np.maximum(known, more[: c.rows])
            for owner in range(c.size) if cluster else (b,):
                here = mine[self.columns(owner)]
                np.maximum(here, known, out=here)
            mine[row] += 1  # what comes now is not fenced

    def unfenced(self, buffer: Buffer, cells: np.ndarray, owner: int, b: int, t: int, warps: int = 1) -> bool:
        """Whether some granules [n] of a block's shared memory were written by threads, and `warps` warps from thread t
        of block b on do not know of a fence behind that."""
        c = self.clocks
        table = c.table(buffer)
        cells = table.at(cells)
        writer = table.writer[cells]
        by_threads = (writer >= 0) & (writer < c.rows)
        if not by_threads.any():
            return False
        writer, epoch = writer[by_threads], table.epoch[cells][by_threads]
        row = int(c.row(b, t))
        known = c.now[c.unit(b), row : row + warps, self.columns(owner)].min(axis=0)
        if warps == 1:
            more = c.lanes.more(b, t // 32, np.arange(32) == t % 32)
            known = known if more is None else np.maximum(known, more[self.columns(owner)])
        return bool((known[writer] < epoch).any())
