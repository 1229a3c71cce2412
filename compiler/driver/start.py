"""Starts helper processes, and one ahead of its work: what it imports takes as long as what its caller imports.

Imports nothing that takes time itself.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys

_ahead: list[subprocess.Popen] = []


def spawn() -> subprocess.Popen:
    """A helper process, which waits for jobs: the one that was started ahead, or a new one."""
    return _ahead.pop() if _ahead else _start("mlirc.driver.workers")


def spawn_ahead() -> None:
    """Starts the process that the next `spawn` gives, which imports at once what lowering a model needs. Without a
    second core it would take its caller's time."""
    if not _ahead and len(os.sched_getaffinity(0)) > 1:
        _ahead.append(_start("mlirc.driver.ready"))


def end_ahead() -> None:
    """Ends the process that was started ahead, if nobody has taken it."""
    while _ahead:
        process = _ahead.pop()
        process.kill()
        process.communicate()


atexit.register(end_ahead)


def _start(module: str) -> subprocess.Popen:
    command = [sys.executable, "-P", "-m", module]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
