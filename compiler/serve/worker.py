"""The one thread that runs the scheduler: requests come to it through a queue, and what it makes goes to who asked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mlirc.errors import MlircError
from mlirc.generate.engine import Engine
from mlirc.generate.requests import Event, Request, check_request
from mlirc.generate.scheduler import Progress, Scheduler


class BusyError(Exception):
    """There are as many requests as the server takes at once."""


class StoppedError(Exception):
    """The worker ended before the request did."""


Ending = StoppedError | MlircError  # what ends a request in the place of an event


@dataclass(eq=False)
class Ticket:
    """A request on its way. `deliver` is called in the worker's thread with each of its events; an error is the last
    of them."""

    request: Request
    deliver: Callable[[Event | Ending], None]
    call: object = None  # of which requests take turns with those of others
    progress: Progress | None = None  # from when the scheduler has it


class Worker:
    """Runs a scheduler in a thread of its own until `close`. `most`: requests that it takes at once, those that wait
    included. `on_failure` is called in that thread where the scheduler raises; `failure` says what."""

    def __init__(self, scheduler: Scheduler, most: int = 256, on_failure: Callable[[], None] = lambda: None) -> None:
        self.most = most
        self.failure: BaseException | None = None
        self._scheduler = scheduler
        self._on_failure = on_failure
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._tickets: set[Ticket] = set()  # all that have not ended
        self._by_number: dict[int, Ticket] = {}  # of the worker's thread alone
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="mlirc scheduler", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> Engine:
        """What the scheduler runs on, for what never changes of it."""
        return self._scheduler.engine

    @property
    def running(self) -> bool:
        """Whether it takes requests."""
        return not self._stopped

    @property
    def active(self) -> int:
        """How many requests have not ended."""
        return len(self._tickets)

    def check(self, request: Request) -> None:
        """Raises MlircError for a request that the engine can never run. Any thread may ask."""
        check_request(request, self._scheduler.engine)

    def submit(self, requests: Sequence[Request], deliver: Callable[[int, Event | Ending], None]) -> list[Ticket]:
        """Takes requests, all or none; `deliver` gets a request's place among them and each of its events. One that
        `check` refuses gets the error. Raises BusyError and StoppedError."""
        call = object()
        tickets = [Ticket(r, partial(deliver, i), call) for i, r in enumerate(requests)]  # type: ignore[misc]
        with self._lock:
            if self._stopped:
                raise StoppedError
            if len(self._tickets) + len(tickets) > self.most:
                raise BusyError
            self._tickets.update(tickets)
            for ticket in tickets:
                self._commands.put(partial(self._begin, ticket))
        return tickets

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Ends requests, if they have not ended: their slots and pages are free before the next turn."""
        for ticket in tickets:
            self._commands.put(partial(self._cancel, ticket))

    def stop(self) -> None:
        """Ends every request with a StoppedError, at once, whatever the thread is at; it takes no others, and ends."""
        with self._lock:
            self._stopped = True
            left, self._tickets = self._tickets, set()
        self._commands.put(None)
        for ticket in left:
            ticket.deliver(StoppedError())

    def close(self) -> None:
        """Ends the thread, and every request with a StoppedError; closing again does nothing."""
        with self._lock:
            self._stopped = True
        self._commands.put(None)
        self._thread.join()

    # In the worker's thread

    def _run(self) -> None:
        try:
            while self._take():
                for event in self._scheduler.step():
                    self._hand_out(event)
        except BaseException as e:
            self.failure = e
        finally:
            with self._lock:
                self._stopped = True
                left, self._tickets = self._tickets, set()
            for progress in self._scheduler.requests if self.failure is None else ():
                self._scheduler.cancel(progress.number)
            for ticket in left:
                ticket.deliver(StoppedError())
            if self.failure is not None:
                self._on_failure()

    def _take(self) -> bool:
        """Does what was asked for since the last turn, and waits for something to do; False at the end."""
        while True:
            try:
                command = self._commands.get(block=not self._scheduler.busy)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _begin(self, ticket: Ticket) -> None:
        try:
            ticket.progress = self._scheduler.submit(ticket.request, ticket.call)
        except MlircError as e:
            self._forget(ticket)
            ticket.deliver(e)
        else:
            self._by_number[ticket.progress.number] = ticket

    def _cancel(self, ticket: Ticket) -> None:
        if ticket.progress is not None:  # its beginning was asked for before its end
            event = self._scheduler.cancel(ticket.progress.number)
            if event is not None:
                self._hand_out(event)

    def _hand_out(self, event: Event) -> None:
        ticket = self._by_number[event.request]
        if event.reason is not None:
            del self._by_number[event.request]
            self._forget(ticket)
        ticket.deliver(event)

    def _forget(self, ticket: Ticket) -> None:
        with self._lock:
            self._tickets.discard(ticket)
