"""Errors of schedule scripts: the script's file and line, the transform op, and the payload op it met."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule.places import short_place, without_tag
from mlirc.schedule.time_limit import NeverEnds

_excluded = False


class VerbError(Exception):
    """A verb of a script was misused: shown with the script's line, as it is."""


class ValueOutOfRange(VerbError):
    """An attribute was given a value that it does not take: `attribute`, without `mlirc.`, and the `problem`."""

    def __init__(self, attribute: str, problem: str) -> None:
        super().__init__(f"annotate: {problem}")
        self.attribute, self.problem = attribute, problem


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
            os.path.dirname(__file__),
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


def caller_place() -> str:
    """`FILE:LINE` of the script that calls a verb, as people name it."""
    frame = sys._getframe(2)
    return short_place(f"{frame.f_code.co_filename}:{frame.f_lineno}")


def op_place(op: ir.Operation) -> str:
    """`file:line` of a transform op."""
    return script_place(str(op.location))


def apply_error(text: str, kernel: str, failing: ir.Operation) -> MlircError:
    """The error for a failed application: `text` is the interpreter's message with its diagnostics, `failing` the
    transform op that failed."""
    parts = [_split_location(part) for part in text.split("Diagnostic message at ")[1:]]
    messages = []
    for location, message in parts:
        message = " ".join(message.split())
        if "uses a handle" in message:
            messages = [_dead_handle(text)]
            break
        if location != str(failing.location):
            message += f" [payload op at {_cut(without_tag(location.removeprefix('loc(').removesuffix(')')))}]"
        messages.append(message)
    what = "; ".join(messages) or " ".join(text.split())
    place = op_place(failing)
    if not what.startswith(failing.name):
        what = f"{failing.name}: {what}"
    return MlircError(f"{place + ': ' if place else ''}schedule of kernel '{kernel}' failed: {what}")


def _cut(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


def _dead_handle(text: str) -> str:
    """What the interpreter's long story about a handle that is used after its end comes to."""
    for line in text.split("\n"):
        if "invalidated by this transform op" in line:
            number = script_place(line).rpartition(":")[2]
            return f"its handle died at line {number}, where an op consumed it: use what that op returned"
    return "its handle died with an op that consumed it: use what that op returned"


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


def exception_text(error: BaseException) -> str:
    """An exception in one line, with its type unless it speaks for itself, and the line of the code that raised it."""
    if isinstance(error, VerbError | MlircError | NeverEnds):
        return " ".join(str(error).split())
    if isinstance(error, SystemExit):
        return f"SystemExit: it called sys.exit({'' if error.code is None else error.code}): raise an error instead"
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    frames = traceback.extract_tb(error.__traceback__)
    at = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames and not isinstance(error, SyntaxError) else ""
    return f"{type(error).__name__}{': ' if text else ''}{_cut(text)}{at}"


def python_error(file: str, error: BaseException, line: int | None = None) -> MlircError:
    """The error for a Python exception from a user's script, at the last line of that file on the stack, or else at
    `line`."""
    line = line or None
    # A syntax error may be of a file that this one imports, which then has the line.
    syntax = isinstance(error, SyntaxError) and error.filename
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    for frame in () if syntax else traceback.extract_tb(error.__traceback__):
        if os.path.abspath(frame.filename) == os.path.abspath(file):
            line = frame.lineno
    message = re.sub(rf" \(at {re.escape(os.path.abspath(file))}:\d+\)$| \(at {re.escape(file)}:\d+\)$", "",
                     exception_text(error))  # fmt: skip
    return MlircError(f"{file}{f':{line}' if line else ''}: {message}")
