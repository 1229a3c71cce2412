"""Exceptions that nobody foresaw, as one line for the person at the command line: what mlirc was doing, and where."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlirc.errors import MlircError, memory_error, missing_package

VARIABLE = "MLIRC_TRACEBACK"


class InternalError(MlircError):
    """A model that mlirc should have compiled, or refused for a reason: a bug in mlirc, with its cause attached."""


@contextmanager
def step(what: str) -> Iterator[None]:
    """Runs a step of the compilation, `what` in words; an exception that is no MlircError becomes an InternalError."""
    try:
        yield
    except MlircError:
        raise
    except Exception as e:
        if isinstance(e, ImportError) and (needed := missing_package(e)):
            raise needed from e
        if needed := memory_error(e, what):
            raise needed from e
        frame = traceback.extract_tb(e.__traceback__)[-1]
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        message = " ".join([type(e).__name__ + ":", (lines or ["no message"])[0][:300], *getattr(e, "__notes__", [])])
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        raise InternalError(
            f"internal error while {what}: {message} (at {place}; a bug in mlirc, not in the model: {VARIABLE}=1 shows "
            "the traceback)"
        ) from e


def show_traceback(error: BaseException) -> None:
    """Prints the traceback of an internal error's cause on standard error where the user asked for it."""
    if isinstance(error, InternalError) and error.__cause__ is not None and os.environ.get(VARIABLE):
        traceback.print_exception(error.__cause__)
