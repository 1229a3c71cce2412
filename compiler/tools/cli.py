"""What the command-line programs share."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NoReturn

from mlirc.errors import MlircError, memory_error, missing_package, one_line
from mlirc.internal import VARIABLE, show_traceback
from mlirc.tools.streams import complete_streams, output_error, say
from mlirc.version import __version__


class _DoneError(BaseException):
    """Raised where argparse has done all that was asked for, as for --help."""

    def __init__(self, status: int) -> None:
        self.status = status


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as every other bad input: one line, status 1. Knows --version."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.add_argument("--version", action="version", version=f"{self.prog} {__version__}")

    def error(self, message: str) -> NoReturn:
        raise MlircError(f"{message} ({self.prog} --help lists what it takes)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        if message:
            say(message.rstrip())
        raise _DoneError(status)


def check_scripts(scripts: Iterable[str]) -> None:
    """Raises MlircError for a script's file that is not there, before the seconds that importing MLIR takes."""
    for script in scripts:
        if script.endswith((".py", ".mlir")) and not os.path.isfile(script):
            raise MlircError(f"--schedule {script}: no such file")


def run_main(fn: Callable[[], int | None]) -> int:
    """Runs a program's body and returns its exit status.

    What cannot be done prints as `error: ...` with status 1 (after the traceback of an internal error's cause, where
    MLIRC_TRACEBACK is set): an MlircError, memory or another thing of the system's that there is not enough of, an
    output that cannot be written, a `sys.exit` in a model's code. An interrupt gives 130, a request to end (SIGTERM,
    SIGHUP) 143 or 129, whatever became of the exception that it was in the body, and a reader that went away (`| head`)
    141, all silently and with no temporary file left behind. Any other exception is a bug in mlirc and keeps its
    traceback.
    """
    complete_streams()
    received = _Signals()
    try:
        with received:
            _check_working_folder()
            status = _body(fn)
    except BaseException as e:
        status = _report(e) if received.number is None else 128 + received.number
    output_error()
    return status


def _body(fn: Callable[[], int | None]) -> int:
    try:
        status = fn() or 0
    except _DoneError as e:
        status = e.status
    if failure := output_error():
        raise failure
    return status


class _EndedError(BaseException):
    """Raised where the program is when it is asked to end, so that every `finally` runs."""


class _Signals:
    """Makes SIGINT, SIGTERM and SIGHUP end the body by an exception. `number` says which came: an exception may turn
    into another one on its way through a callback of native code."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._old: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        usual = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGHUP: signal.SIG_DFL,
        }
        for number, handler in usual.items():
            if signal.getsignal(number) is handler:
                self._old[number] = signal.signal(number, self._end)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _end(self, number: int, _frame: FrameType | None) -> NoReturn:
        self.number = number
        raise KeyboardInterrupt if number == signal.SIGINT else _EndedError


def _check_working_folder() -> None:
    try:
        os.getcwd()
    except OSError as e:
        raise MlircError(f"the working folder cannot be found ({e.strerror}): change to another one (cd)") from e


def _report(error: BaseException) -> int:
    """Says what went wrong, and returns the status for it; raises what nobody foresaw."""
    if isinstance(error, KeyboardInterrupt):  # where signals are somebody else's
        return 130
    if isinstance(error, BrokenPipeError):
        return 141
    words = _words(error)
    if words is None:
        raise error
    if isinstance(error, MlircError):
        show_traceback(error)
    elif os.environ.get(VARIABLE):
        traceback.print_exception(error)
    say(f"error: {one_line(words)}")
    return 1


def _words(error: BaseException) -> str | None:
    """What is said of an exception; None for one that nobody foresaw."""
    if isinstance(error, MlircError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        missing = missing_package(error)
        return None if missing is None else str(missing)
    if isinstance(error, Exception) and (needed := memory_error(error)):
        return str(needed)
    if isinstance(error, ImportError):
        return f"a library cannot be loaded: {error}: install mlirc and what it needs again"
    if isinstance(error, SystemExit):
        return f"the model's code, or a script's, ended the program (sys.exit({error.code!r})): raise an error instead"
    if isinstance(error, OSError):
        named = [str(name) for name in (error.filename, error.filename2) if name is not None]
        where = ", ".join(named) if named or output_error() is None else "standard output"
        return f"{where + ': ' if where else ''}{error.strerror or error}"
    return None
