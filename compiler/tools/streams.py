"""Standard input, output and error of a program, whatever its caller made of them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO

_NAMES = ("stdin", "stdout", "stderr")


class _Output(io.TextIOWrapper):
    """Standard output, which knows of an error that whoever wrote did not mind, as argparse does not."""

    failure: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as e:
            self.failure = e
            raise

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as e:
            self.failure = e
            raise


def complete_streams() -> None:
    """Makes streams of those that were closed, so that no file of the program's takes their numbers: nothing is read,
    an error's words are lost, and writing to a closed standard output fails as on a full disk. Characters that an
    output's encoding does not have are written as escapes."""
    for number, name in enumerate(_NAMES):
        stream = getattr(sys, name)
        if stream is None:
            descriptor = _nowhere(number)
            setattr(sys, name, open(descriptor, "w" if number else "r", closefd=False))  # noqa: SIM115
        elif number and isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    given = sys.stdout
    if type(given) is io.TextIOWrapper:  # and no one's of Python's that calls this, as a test's
        encoding, errors, by_line, through = given.encoding, given.errors, given.line_buffering, given.write_through
        sys.stdout = _Output(given.detach(), encoding, errors, None, by_line, through)


def _nowhere(number: int) -> int:
    """A descriptor to nothing: `number` where that is free. Standard output's cannot be written."""
    descriptor = os.open(os.devnull, os.O_RDWR if number == 2 else os.O_RDONLY)
    try:
        os.fstat(number)
    except OSError:
        os.dup2(descriptor, number)
        os.close(descriptor)
    else:
        number = descriptor
    os.set_inheritable(number, True)
    return number


def output_error() -> OSError | None:
    """What kept standard output from being written, None where nothing did. What it still held is dropped then, and
    nobody fails with it at the program's end."""
    failure = None
    try:
        sys.stdout.flush()
    except OSError as e:
        failure = e
    failure = failure or getattr(sys.stdout, "failure", None)
    if failure is not None:
        _drop(sys.stdout)
    return failure


def say(text: str) -> None:
    """Writes a line on standard error, if that can be."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Sends what a stream holds, and what it will be given, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
