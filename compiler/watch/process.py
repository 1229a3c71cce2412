"""A piece of work in a copy of this process: whatever it loads, spoils or crashes, this process stays as it is."""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlirc import internal
from mlirc.errors import MlircError

POLL = 0.05  # seconds between two looks whether the work is still wanted
_PR_SET_PDEATHSIG = 1


class Superseded(Exception):
    """The work was stopped, since its result is no longer wanted."""


@dataclass(frozen=True)
class _Failure:
    message: str


def in_copy(work: Callable[[], Any], unwanted: Callable[[], bool] = lambda: False) -> Any:
    """Runs `work` in a forked process and returns its result, which is pickled.

    Raises Superseded as soon as `unwanted()` is true, and MlircError for one that the work raised, for a bug in it, and
    when the process dies.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    receiving, sending = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        _work(work, sending, parent)
    os.close(sending)
    data = bytearray()
    try:
        while True:
            if select.select([receiving], [], [], POLL)[0]:
                chunk = os.read(receiving, 1 << 20)
                if not chunk:
                    break
                data += chunk
            elif unwanted():
                raise Superseded
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(receiving)
        _, status = os.waitpid(child, 0)
    return _answer(bytes(data), status)


def _answer(data: bytes, status: int) -> Any:
    if status or not data:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        how = f"was ended by signal {number} ({signal.strsignal(number)})" if number else f"ended with status {status}"
        raise MlircError(f"the process that scheduled and compiled {how}")
    answer = pickle.loads(data)
    if isinstance(answer, _Failure):
        raise MlircError(answer.message)
    return answer


def _work(work: Callable[[], Any], sending: int, parent: int) -> None:
    """The copy's life; it never returns, and no `finally` of the caller runs in it."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to both; the parent decides
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            try:
                with internal.step("scheduling and compiling"):
                    answer: Any = work()
            except MlircError as e:
                internal.show_traceback(e)
                answer = _Failure(str(e))
            except BaseException as e:  # sys.exit, and the like
                answer = _Failure(f"{type(e).__name__}: {e}")
            data = pickle.dumps(answer)
            sys.stdout.flush()
            sys.stderr.flush()
            while data:
                data = data[os.write(sending, data) :]
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
