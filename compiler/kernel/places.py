"""Where in the user's file a kernel is being built: what errors and locations of its operations name."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule.time_limit import NeverEnds, limited_time

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep


class KernelError(MlircError):
    """A builder was misused, or a call does not fit a kernel: the message begins with the user's line."""


def user_line() -> str:
    """`FILE:LINE` of the innermost frame outside of this package; "" where there is none."""
    frame = sys._getframe(1)
    while frame is not None and _is_own(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def _is_own(file: str) -> bool:
    return os.path.abspath(file).startswith(_OWN) or file == contextlib.__file__


def shown(file: str) -> str:
    """A file as messages name it: relative to the working directory where it lies below it."""
    here = os.path.join(os.getcwd(), "")
    path = os.path.abspath(file)
    return path.removeprefix(here) if path.startswith(here) else file


def error(message: str) -> KernelError:
    """An error at the user's line."""
    return KernelError(f"{user_line()}: {message}")


_excluded = False


@contextlib.contextmanager
def user_locations() -> Iterator[None]:
    """Operations built inside have the user's file and line as their location."""
    global _excluded
    if not _excluded:
        for file in (_OWN, contextlib.__file__, os.path.dirname(os.path.dirname(ir.__file__)), traceback.__file__):
            ir._globals.register_traceback_file_exclusion(file)
        _excluded = True
    with ir.loc_tracebacks(max_depth=1):
        yield


@contextlib.contextmanager
def user_code(file: str, what: str) -> Iterator[None]:
    """Runs the user's function: an exception of Python or of MLIR becomes a KernelError at the last line of `file`."""
    try:
        with limited_time():
            yield
    except (MlircError, KeyboardInterrupt):
        raise
    except (Exception, NeverEnds) as e:
        lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if os.path.abspath(f.filename) == file]
        text = " ".join(str(e).split())
        raise KernelError(f"{shown(file)}:{lines[-1] if lines else 1}: {what}: {type(e).__name__}: {text}") from e
