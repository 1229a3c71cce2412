"""A user's Python that never ends is stopped, at the line where it is."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mlirc.errors import MlircError

VARIABLE = "MLIRC_SCRIPT_SECONDS"
_DEFAULT = 120.0
_inside = threading.local()


class NeverEnds(BaseException):
    """Raised in code that takes longer than it may; no `Exception`, which such code might catch and go on."""

    def __str__(self) -> str:
        return f"still at work after {_seconds():g} s: does it end? {VARIABLE}=N in the environment allows N seconds"


@contextmanager
def limited_time() -> Iterator[None]:
    """Raises NeverEnds inside of the body, in this thread and between two steps of Python, once it has taken as many
    seconds as the environment's MLIRC_SCRIPT_SECONDS says (120 where it says nothing). Of bodies inside of each other
    the outermost one counts. Raises MlircError where the variable is no number above 0."""
    if getattr(_inside, "limited", False):
        yield
        return
    thread, lock, ended = threading.get_ident(), threading.Lock(), False

    def stop() -> None:
        with lock:
            if not ended:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(NeverEnds))

    timer = threading.Timer(_seconds(), stop)
    timer.daemon = True
    _inside.limited = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            ended = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)  # one that has not come yet
        timer.cancel()
        _inside.limited = False


def _seconds() -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text) if text else _DEFAULT
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise MlircError(f"{VARIABLE}={text!r}: give a number of seconds above 0")
    return seconds
