"""What the command-line programs share."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from mlirc.errors import MlircError, missing_package, one_line
from mlirc.internal import show_traceback
from mlirc.version import __version__


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as every other bad input: one line, status 1. Knows --version."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.add_argument("--version", action="version", version=f"{self.prog} {__version__}")

    def error(self, message: str) -> NoReturn:
        raise MlircError(f"{message} ({self.prog} --help lists what it takes)")


def check_scripts(scripts: Iterable[str]) -> None:
    """Raises MlircError for a script's file that is not there, before the seconds that importing MLIR takes."""
    for script in scripts:
        if script.endswith((".py", ".mlir")) and not os.path.isfile(script):
            raise MlircError(f"--schedule {script}: no such file")


def run_main(fn: Callable[[], int | None]) -> int:
    """Runs a program's body and returns its exit status.

    An MlircError prints as `error: ...` with status 1 (after the traceback of an internal error's cause, where
    MLIRC_TRACEBACK is set); an interrupt gives 130, a request to end (SIGTERM, SIGHUP) 143 or 129, and a reader that
    went away (`| head`) 141, all silently and with no temporary file left behind. Any other exception is a bug in mlirc
    and keeps its traceback.
    """
    try:
        with _ends_orderly():
            return _run(fn)
    except _EndedError as e:
        return 128 + e.number


class _EndedError(BaseException):
    """Raised where the program is when it is asked to end, so that every `finally` runs."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextlib.contextmanager
def _ends_orderly() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end the body with an _EndedError, where they would end the process."""

    def end(number: int, _frame: object) -> NoReturn:
        raise _EndedError(number)

    old = {}
    if threading.current_thread() is threading.main_thread():
        wanted = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
        old = {number: signal.signal(number, end) for number in wanted}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _run(fn: Callable[[], int | None]) -> int:
    try:
        status = fn() or 0
        sys.stdout.flush()  # here, so that a reader that went away is met inside the `try`
        return status
    except MlircError as e:
        show_traceback(e)
        print(f"error: {one_line(str(e))}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as e:
        needed = missing_package(e)
        if needed is None:
            raise
        print(f"error: {needed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The interpreter flushes stdout on exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
