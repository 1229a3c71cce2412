"""What all machines of a launch share of the order in global memory (global_order.py): who accessed what, and what was
left at atomic variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirc.device.memory import Buffer
from mlirc.device.order.stamps import Shadow

BLOCK, CLUSTER, DEVICE = 0, 1, 2  # scopes; the whole system is one device here


@dataclass
class Mark:
    """A row left by a releasing thread: for global memory, and for the shared memory of its block or cluster (None
    where that is watched otherwise)."""

    row: np.ndarray
    shared: np.ndarray | None

    def join(self, other: Mark) -> Mark:
        """What both have seen."""
        shared = other.shared if self.shared is None else self.shared
        if self.shared is not None and other.shared is not None:
            shared = np.maximum(self.shared, other.shared)
        return Mark(np.maximum(self.row, other.row), shared)


@dataclass
class Location:
    """What was left at an atomic variable: per audience (scope, and which block or cluster), and by whom last."""

    left: dict[tuple, Mark] = field(default_factory=dict)
    own: dict[int, tuple[int, Mark]] = field(default_factory=dict)  # thread -> scope and row of its release


class Order:
    """The part that all machines of a launch share. `blocks`: how many; they are counted in the order in which they
    start, and so are their threads."""

    def __init__(self, blocks: int, threads: int, granule: int):
        self.nt, self.granule = threads, granule
        self.threads = blocks * threads
        self.blocks = np.zeros(blocks, np.int64)  # linear numbers
        self.shadows: dict[int, Shadow] = {}
        self.locations: dict[tuple[int, int], Location] = {}
        self.released = np.zeros((DEVICE + 1, self.threads), np.int32)  # the epochs that some release covers, by scope
        self.generic: dict[int, Buffer] = {}  # those that threads write, where bulk copies may read it
        self.async_reads: dict[int, dict] = {}  # see async_reads.py
        self.ops: list[Any] = []
        self.scopes: list[int] = []  # of each operation
        self._numbers: dict[int, int] = {}

    def shadow(self, buffer: Buffer) -> Shadow:
        found = self.shadows.get(id(buffer))
        if found is None:
            found = self.shadows[id(buffer)] = Shadow(len(buffer.data) // self.granule, self.threads)
        return found

    def number(self, op, scope: int) -> int:
        """An operation as a number."""
        n = self._numbers.get(hash(op))
        if n is None:
            n = self._numbers[hash(op)] = len(self.ops)
            self.ops.append(op)
            self.scopes.append(scope)
        return n
