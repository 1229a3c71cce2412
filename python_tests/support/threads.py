"""Several threads that do the same at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

COUNT = 8


def at_once(action: Callable[[int], Any], count: int = COUNT, seconds: float = 300) -> list[Any]:
    """What `action(number)` returned, or the exception that it raised, in each of `count` threads that begin together
    and get the interpreter in small pieces. Fails where one does not come to its end."""
    found: list[Any] = [None] * count
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        try:
            found[number] = action(number)
        except BaseException as e:  # which the test looks at
            found[number] = e

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads), "a thread does not come to its end"
    return found
