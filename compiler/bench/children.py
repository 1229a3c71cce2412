"""What processes that measure for another have in common."""

from __future__ import annotations

import contextlib
import ctypes
import signal


def end_with_parent() -> None:
    """Has Linux end this process when its parent does, in the middle of whatever it does: nobody would read on."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
