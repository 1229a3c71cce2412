"""Connections of the server: how many there are, and how long one may take to say what it wants.

A connection that says nothing, or half of a call, is closed after a while. Where there are as many as the server
takes, a new one has the place of the one that has been silent for longest; only where all are at work is it told to
come again.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlirc.serve.errors import ApiError

_FILES = 65_536  # descriptors that the process asks for
_AT_ONCE = 64  # one of so many connections makes room
_SPARE = 64  # of them, those that are no connections


@dataclass(frozen=True)
class Limits:
    """`connections` at once. Seconds: `idle`, to begin a call and to end its head; `body`, to send the rest, and one
    more for every `rate` bytes of it; `stalled`, to take some of an answer."""

    connections: int = 1024
    idle: float = 15.0
    body: float = 30.0
    rate: int = 1 << 15
    stalled: float = 60.0


def room_for_connections(wanted: int = Limits.connections) -> int:
    """How many connections the process has descriptors for, `wanted` at most; raises the soft limit to that end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(1, min(wanted, max(soft, most) - _SPARE))


class Connection(H11Protocol):
    """A connection as uvicorn has it, of a server with `limits`: `sweep` closes those whose time is over."""

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()  # when it became silent, began its body, or stopped taking its answer
        self._received = 0
        self._phase = ""
        if len(self.connections) <= self.limits.connections:
            return
        others = [c for c in self.connections if isinstance(c, Connection) and not c.transport.is_closing()]
        if len(others) > self.limits.connections:
            silent = [c for c in others if c is not self and not c.at_work]
            if silent:  # without a word of a call first, then those that sent a half; several, since each search costs
                few = max(1, self.limits.connections // _AT_ONCE)
                for connection in heapq.nsmallest(few, silent, key=lambda c: (c.reading, c._since)):
                    connection.close()
            else:
                self.app = _no_room

    @property
    def reading(self) -> bool:
        """Whether a call's head is here, and its body is not."""
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    @property
    def at_work(self) -> bool:
        """Whether a whole call waits for the rest of its answer."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)

    def check(self, now: float) -> None:
        """Closes the connection where it has been in one phase for too long."""
        stalled = self.at_work and self.flow is not None and self.flow.write_paused
        phase = "stalled" if stalled else "work" if self.at_work else "body" if self.reading else "idle"
        if phase != self._phase:
            self._phase, self._since, self._received = phase, now, 0
        seconds = {"stalled": self.limits.stalled, "body": self.limits.body + self._received / self.limits.rate}
        if phase == "work" or now - self._since < seconds.get(phase, self.limits.idle):
            return
        if phase == "stalled":
            self.transport.abort()
        elif phase == "body" or self.conn.trailing_data[0]:
            self._answer(ApiError(408, "the call did not come to its end in time: send it again", code="timeout"))
        else:
            self.close()

    def close(self) -> None:
        """Ends the connection."""
        if not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._answer(ApiError(400, f"{msg.rstrip('.')}: send HTTP/1.1"))

    def _answer(self, error: ApiError) -> None:
        """Writes an answer that is none of the application's, and ends the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            head, body = _written(error)
            for event in (
                h11.Response(status_code=error.status, headers=head),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.close()


def sweep(connections: Iterable[Any], now: float, turn: int = 0, turns: int = 1) -> None:
    """Closes those connections whose time is over; `now` is the event loop's. Each has its turn in one of `turns`
    calls, since to look at a thousand keeps others waiting."""
    for connection in [c for c in connections if id(c) // 64 % turns == turn % turns]:
        if isinstance(connection, Connection):
            connection.check(now)


def limited(limits: Limits) -> type[Connection]:
    """The connections of a server with other limits."""
    return type("Connection", (Connection,), {"limits": limits})


def _written(error: ApiError) -> tuple[list[tuple[bytes, bytes]], bytes]:
    body = json.dumps(error.body()).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    head += [(b"retry-after", b"1")] if error.status in (429, 503) else []
    return [*head, (b"connection", b"close")], body


async def _no_room(scope: Any, receive: Any, send: Any) -> None:
    """The application of a connection too many."""
    head, body = _written(ApiError(503, "the server has as many connections as it takes: try again later"))
    await send({"type": "http.response.start", "status": 503, "headers": head})
    await send({"type": "http.response.body", "body": body})
