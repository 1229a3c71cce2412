"""mbarriers of the PTX interpreter (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier")."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.errors import MlircError


@dataclass
class MBarrier:
    """`pending` of `count` arrivals, and `bytes`, are still to come in this phase; `phase` of them have ended."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def arrive(self, arrivals: int, expected: int = 0) -> bool:
        """Arrivals, and bytes that are to come as well; whether the phase ends."""
        self.bytes += expected
        self.pending -= arrivals
        if self.pending < 0:
            raise MlircError(f"{-self.pending} arrivals more than the {self.count} that it was initialized for")
        return self._ended()

    def complete(self, size: int) -> bool:
        """Bytes that have come; whether the phase ends."""
        self.bytes -= size
        return self._ended()

    def _ended(self) -> bool:
        if self.pending or self.bytes:
            return False
        self.phase, self.pending = self.phase + 1, self.count
        return True
