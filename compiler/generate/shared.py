"""A scheduler that several threads use at once: whoever waits for tokens makes its turns, for all of them."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from mlirc.errors import MlircError
from mlirc.generate.requests import Event, Request
from mlirc.generate.scheduler import Progress, Scheduler


class SharedScheduler:
    """Requests of several threads, decoded together. One thread at a time makes a turn of the scheduler; what it makes
    for others lies in their queues. Raises MlircError once it is closed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._changed = threading.Condition(threading.Lock())  # which no thread takes twice: see `cancel`
        self._stepping = self._closed = False
        self._waiting = 0  # threads that want to hand in requests, or to close: they come before the next turn
        self._queues: dict[int, deque[Event]] = {}
        self._cancelled: deque[int] = deque()

    def submit(self, requests: Sequence[Request]) -> list[Progress]:
        """Hands requests in, all or none."""
        taken: list[Progress] = []
        with self._alone():
            self._require_open()
            try:
                for request in requests:
                    taken.append(self._scheduler.submit(request))
            except BaseException:
                for progress in taken:
                    self._scheduler.cancel(progress.number)
                raise
            self._queues.update((progress.number, deque()) for progress in taken)
        return taken

    def next(self, progress: Progress) -> Event | None:
        """A request's next event, after as many turns as that takes; None behind its last one."""
        while True:
            with self._changed:
                while self._waits(progress.number):
                    self._changed.wait()
                queue = self._queue(progress.number)
                if queue:
                    event = queue.popleft()
                    if event.reason is not None:
                        self._queues.pop(progress.number, None)
                    return event
                if queue is None or progress.reason is not None:
                    return None
                self._require_open()
                self._stepping = True
            made: list[Event] = []
            try:
                made = self._scheduler.step()
            finally:
                with self._changed:
                    self._stepping = False
                    self._hand_out(made)
                    self._end_cancelled()
                    self._changed.notify_all()

    def cancel(self, progress: Progress) -> None:
        """Ends a request if it has not, at the end of a turn that is under way. Waits for nobody: it may be called in
        the middle of anything, where an object goes away."""
        self._cancelled.append(progress.number)
        if self._changed.acquire(blocking=False):
            try:
                if not self._stepping:
                    self._end_cancelled()
                    self._changed.notify_all()
            finally:
                self._changed.release()

    def close(self, end: Callable[[], None]) -> None:
        """Ends all requests, and calls `end` once no turn is under way; closing again does nothing."""
        with self._alone():
            if not self._closed:
                self._closed = True
                end()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The scheduler between two turns."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._stepping)
            finally:
                self._waiting -= 1
            try:
                self._end_cancelled()
                yield
            finally:
                self._changed.notify_all()

    def _waits(self, number: int) -> bool:
        """Whether a request goes on without another turn's being begun now: others make one, or come before it."""
        queue = self._queue(number)
        return queue is not None and not queue and (self._stepping or self._waiting > 0)

    def _queue(self, number: int) -> deque[Event] | None:
        """The events of a request that nobody has taken; None where it has ended and no more come."""
        return None if number in self._cancelled else self._queues.get(number)

    def _require_open(self) -> None:
        if self._closed:
            raise MlircError("the model was closed")

    def _hand_out(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.request in self._queues:
                self._queues[event.request].append(event)

    def _end_cancelled(self) -> None:
        while self._cancelled:
            number = self._cancelled.popleft()
            self._queues.pop(number, None)
            if not self._closed:
                self._scheduler.cancel(number)
