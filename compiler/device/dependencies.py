"""What the launches before one may still do to its buffers, for kernels that start before those have ended
(programmatic dependent launches: CUDA programming guide, "Programmatic Dependent Launch and Synchronization")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mlirc.device.memory import Buffer


class Earlier:
    """Keeps for each buffer, by its number, whether an earlier launch of the run reads or writes it."""

    def __init__(self, before: Collection[int] | None = None, fresh: Iterable[int] = ()):
        """`before`: the buffers that launches before the first one may write; None: there were none. `fresh`: those for
        results and intermediate values, which may lie where an earlier launch still reads something else."""
        self.does: dict[int, str] = {}
        if before is not None:
            self.does = dict.fromkeys(fresh, "reads") | dict.fromkeys(before, "writes")

    def mark(self, buffers: Sequence[Buffer]) -> None:
        """Tells the buffers, for the next launch."""
        for i, buffer in enumerate(buffers):
            buffer.earlier = self.does.get(i, "")

    def add(self, used: Iterable[int], stored: Iterable[int]) -> None:
        """Adds a launch by the buffers that it takes, and those of them that it writes."""
        for i in used:
            self.does.setdefault(i, "reads")
        self.does.update(dict.fromkeys(stored, "writes"))
