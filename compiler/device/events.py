"""What a step that is a generator yields to the scheduler (sync.Scheduler)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass
class Wait:
    """Go on when `ready()` holds. `what` says what is waited for (by the threads of a block of the batch), `who` which
    threads wait; `spins`: in a loop that looks for a change of memory; `free`: for nothing, only that others may run in
    between. For a report: `still` says which of them wait in vain (bool [blocks, threads]; None: all), and `missing`
    who of a block would have to come (bool [threads])."""

    ready: Callable[[], bool]
    what: str | Callable[[int], str]
    who: np.ndarray
    op: object
    spins: bool = False
    free: bool = False
    still: Callable[[], np.ndarray] | None = None
    missing: Callable[[int], np.ndarray] | None = None

    def stuck(self) -> np.ndarray:
        """The threads that wait in vain, bool [blocks, threads]."""
        return self.who if self.still is None else self.still()


@dataclass
class Fork:
    """Go on when these (code, state) have run."""

    branches: list
