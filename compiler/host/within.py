"""Calls that must come back: compiled code of a level above `gpu` may never end, and nobody could interrupt it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from mlirc.errors import MlircError


class OutOfTime(MlircError):
    """A call that took longer than it may. It goes on in its own thread, until the process ends."""


def within(seconds: float | None, what: str, function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, or OutOfTime if it is still at work after so many seconds (None: as long as it takes); `what`
    it is, in words. With a limit it runs beside this thread."""
    if seconds is None:
        return function(*args)
    outcome: list[tuple[Any, BaseException | None]] = []
    values = contextvars.copy_context()  # NumPy's way with errors is one of them

    def run() -> None:
        try:
            outcome.append((values.run(function, *args), None))
        except BaseException as e:  # which is the caller's business
            outcome.append((None, e))

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise OutOfTime(
            f"{what} is still at work after {seconds:g} s: allow more (--seconds), unless it would never end"
        )
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
