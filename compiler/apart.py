"""Trying something in a process of its own first, where a crash, a hang or a flood of memory does no harm."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

_NO_MEMORY = 3  # exit status of a copy
_WALL = 20  # times the seconds of CPU time that may pass on a busy machine


@contextlib.contextmanager
def without_stderr() -> Iterator[None]:
    """For a body whose library writes what went wrong to standard error before it raises: nothing comes there from the
    main thread. In others, as a server's, it does: what is said meanwhile may be about something else."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def fails_apart(action: Callable[[], object], *, seconds: float, memory: int) -> str:
    """Runs `action` in a copy of this process and says how it ended badly; "" when it returned or raised.

    `seconds` of CPU time and `memory` bytes on top of what the process has. The copy's results are lost: this asks only
    whether the process would survive.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    limit = int(seconds) + 1
    child = os.fork()
    if not child:
        status = 0
        try:
            _limit(limit, memory)
            action()
        except MemoryError:
            status = _NO_MEMORY
        except BaseException:
            pass  # which the caller meets itself
        os._exit(status)
    end = time.monotonic() + _WALL * limit
    try:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > end:
                return "it takes too long"
            time.sleep(0.002)
    finally:
        if not done:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        return "it takes too much memory" if os.WEXITSTATUS(status) == _NO_MEMORY else ""
    number = os.WTERMSIG(status)
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return "it takes too long or too much memory"
    return f"it ends in {signal.Signals(number).name}"


def _limit(seconds: int, memory: int) -> None:
    """Sets the limits of a copy, and keeps it from writing to the terminal or leaving a core."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
