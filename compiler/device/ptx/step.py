"""What the functions of instructions share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlirc.device.ptx.machine import Machine
from mlirc.device.ptx.parse import Instruction, Unknown

Active = np.ndarray | None
Step = Callable[[Machine, Instruction, Active], None]
# Parts of an opcode that say which memory, how it is ordered and cached, and for whom.
SPACES = {"global": "global", "shared": "shared", "shared::cta": "shared", "shared::cluster": "shared"}
ORDERS = ("acquire", "release", "relaxed", "acq_rel", "volatile", "weak")
SCOPES = ("cta", "cluster", "gpu", "sys")


def unknown(at: Instruction) -> Unknown:
    """The error for an instruction that is not known here."""
    return Unknown(f"line {at.line}: `{at.name}` is not known here")


def all_of(m: Machine, active: Active) -> np.ndarray:
    """The threads that execute an instruction, as a mask."""
    return np.ones(m.count, bool) if active is None else active


def nothing(m: Machine, at: Instruction, active: Active) -> None:
    """What orders, or waits for what is done at once here."""
