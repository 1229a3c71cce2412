"""Errors of schedule scripts: the script's file and line, the transform op, and the payload op it met."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule_places import without_tag

_excluded = False


@contextmanager
def script_frames() -> Iterator[None]:
    """Ops built inside carry the Python frames of the script as their location; frames of builders are left out."""
    global _excluded
    if not _excluded:
        from mlirc import dialects
        from mlirc.mlir import transform

        folders = (
            os.path.dirname(os.path.dirname(transform.__file__)),
            os.path.join(os.path.dirname(dialects.__file__), "schedule"),
            contextlib.__file__,  # of `with script(...)`
            # not their whole folder: in an installed package the scripts lie inside of it
            *(
                os.path.join(os.path.dirname(__file__), f"{name}.py")
                for name in ("verbs", "schedule", "schedule_apply")
            ),
        )
        for folder in folders:
            ir._globals.register_traceback_file_exclusion(folder)
        _excluded = True
    with ir.loc_tracebacks():
        yield


_FRAME = re.compile(r'"([^"]+)":(\d+):\d+')


def script_place(location: str) -> str:
    """`file:line` of the innermost script frame in a printed location; "" when it holds none."""
    frames = _FRAME.findall(location)
    return ":".join(frames[0]) if frames else ""


def apply_error(text: str, kernel: str, failing: ir.Operation | None, file: str) -> MlircError:
    """The error for a failed application.

    `text` is the interpreter's message with its diagnostics, `failing` the transform op that failed, `file` the .mlir
    file the script was parsed from, if it was.
    """
    messages = []
    for part in text.split("Diagnostic message at ")[1:]:
        location, message = _split_location(part)
        message = " ".join(message.split())
        if failing is not None and location != str(failing.location):
            message += f" [payload op at {without_tag(location.removeprefix('loc(').removesuffix(')'))}]"
        messages.append(message)
    what = "; ".join(messages) or " ".join(text.split())
    place = ""
    if failing is not None:
        place = script_place(str(failing.location))
        if file and place.startswith("-:"):
            place = file + place[1:]
        if not what.startswith(failing.name):
            what = f"{failing.name}: {what}"
    return MlircError(f"{place + ': ' if place else ''}schedule of kernel '{kernel}' failed: {what}")


def _split_location(text: str) -> tuple[str, str]:
    """Splits `loc(...): message` at the end of the balanced location."""
    depth, quoted = 0, False
    for i, c in enumerate(text):
        if c == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        elif not quoted and c in "()":
            depth += 1 if c == "(" else -1
            if depth == 0:
                return text[: i + 1], text[i + 1 :].lstrip(": ")
    return "", text


def python_error(file: str, error: BaseException) -> MlircError:
    """The error for a Python exception from a user's script, at the last line of that file on the stack."""
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if os.path.abspath(frame.filename) == os.path.abspath(file):
            line = frame.lineno
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return MlircError(f"{file}{f':{line}' if line else ''}: {type(error).__name__}: {message}")
