"""What the command-line programs share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from mlirc.errors import MlircError


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as every other bad input: one line, status 1."""

    def error(self, message: str) -> NoReturn:
        raise MlircError(f"{message} ({self.prog} --help lists what it takes)")


def run_main(fn: Callable[[], int | None]) -> int:
    """Runs a program's body and returns its exit status.

    An MlircError prints as `error: ...` with status 1; an interrupt gives 130, and a reader that went away (`| head`)
    gives 141, both silently. Any other exception is a bug in mlirc and keeps its traceback.
    """
    try:
        status = fn() or 0
        sys.stdout.flush()  # here, so that a reader that went away is met inside the `try`
        return status
    except MlircError as e:
        print(f"error: {' '.join(str(e).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The interpreter flushes stdout on exit, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
