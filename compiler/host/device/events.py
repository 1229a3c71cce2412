"""What a step that is a generator yields to the scheduler (sync.Scheduler)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass
class Wait:
    """Go on when `ready()` holds. `what` says what is waited for, `who` which threads wait; `spins`: in a loop that
    looks for a change of memory; `free`: for nothing, only that others may run in between."""

    ready: Callable[[], bool]
    what: str | Callable[[], str]
    who: np.ndarray
    op: object
    spins: bool = False
    free: bool = False


@dataclass
class Fork:
    """Go on when these (code, state) have run."""

    branches: list
