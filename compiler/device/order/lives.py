"""The shared memory of a cluster's blocks is there from the start of its block until its end (PTX ISA,
"barrier.cluster"; CUDA C++ Programming Guide, "Distributed Shared Memory"): who uses another block's must know that it
has started, and that block may only end when it knows that nobody uses it any more."""

from __future__ import annotations

from typing import Any

import numpy as np

KIND = "missing cluster barrier"


class Lives:
    """The uses of other blocks' shared memory, in a batch of clusters."""

    def __init__(self, clocks: Any):
        self.clocks = clocks
        self.last: dict[tuple[int, int], tuple[int, int, int, Any]] = {}  # (block of the batch, row of the user) -> its
        # epoch, (block, thread), operation: of the last use

    def check_started(self, b: int, t: int, owner: int, op) -> None:
        """A thread is about to use the shared memory of another block of its cluster."""
        c = self.clocks
        if not c.sees(b, t, c.started + owner % c.size, 1):
            message = f"uses the shared memory of block {owner % c.size} of its cluster, which may not have started"
            c.machine.complain(KIND, c.machine.one(b, t), message, op)

    def use(self, b: int, t: int, owner: int, op) -> None:
        """A thread uses the shared memory of another block of its cluster."""
        self.check_started(b, t, owner, op)
        c = self.clocks
        row = int(c.row(b, t))
        self.last[owner, row] = int(c.now[c.unit(b), row, row]), b, t, op

    def note(self, owner: np.ndarray, thread: np.ndarray, op) -> None:
        """Threads (counted through the batch [n]) access the shared memory of blocks (of the batch [n])."""
        nt = self.clocks.machine.nt
        far = owner != thread // nt
        if not far.any():
            return
        thread, owner = thread[far], owner[far]
        warp = thread // nt * self.clocks.warps + thread % nt // 32
        _, first = np.unique(np.stack([owner, warp, self.clocks.lanes.apart_of(thread)]), axis=1, return_index=True)
        for i in first.tolist():
            self.use(int(thread[i]) // nt, int(thread[i]) % nt, int(owner[i]), op)

    def check_ends(self) -> None:
        """All blocks have ended: each of them must have known that the uses of its shared memory were over."""
        c = self.clocks
        m = c.machine
        for (owner, row), (epoch, b, t, op) in self.last.items():
            if not c.block_knows(owner, row, epoch):
                message = f"uses the shared memory of block {owner % c.size} of its cluster, which may have ended: no "
                m.complain(KIND, m.one(b, t), message + "barrier of the cluster comes after it", op)
