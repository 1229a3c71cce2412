"""Runs a service on a socket until it is asked to stop."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Sequence

import uvicorn

from mlirc.errors import MlircError
from mlirc.generate.engine import Engine
from mlirc.generate.scheduler import Scheduler
from mlirc.serve.app import LARGEST_BODY, Service, Words
from mlirc.serve.connections import Connection, Limits, limited, room_for_connections, sweep
from mlirc.serve.worker import Worker

_ACCEPTED = 8  # connections at once, before what else there is to do comes to its turn
_BACKLOG = 1024  # of connections that wait for that
_SWEEPS = 5  # ticks, of a tenth of a second, in which all connections are looked after
_AFTER_GRACE = 5  # seconds in which calls that were ended write that
_SWITCH = 0.001  # seconds after which a thread hands the interpreter on; tokens wait for bodies of others meanwhile


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, with any free port where that is 0; `serve` listens at it. Raises MlircError where
    that fails."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(found[0], socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(found[4])
        except BaseException:
            bound.close()
            raise
        return bound
    except (OSError, UnicodeError) as e:
        raise MlircError(f"cannot listen at {host} port {port}: {getattr(e, 'strerror', None) or e}") from e


def address(bound: socket.socket) -> str:
    """The URL of a socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, which looks after its connections, and whose calls end with an error that says why where they
    have not ended `grace` seconds after it was asked to stop."""

    def __init__(self, config: uvicorn.Config, service: Service, grace: int) -> None:
        super().__init__(config)
        self._service, self._grace = service, grace

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or ():
            bound.listen(_BACKLOG)  # asyncio takes one number for both

    async def on_tick(self, counter: int) -> bool:
        sweep(self.server_state.connections, asyncio.get_running_loop().time(), counter, _SWEEPS)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end = asyncio.get_running_loop().call_later(self._grace, self._end_calls)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()

    def _end_calls(self) -> None:
        self._service.worker.stop()
        asyncio.get_running_loop().call_later(_AFTER_GRACE / 2, self._cancel_calls)
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection) and not connection.at_work:
                connection.close()

    def _cancel_calls(self) -> None:
        """Ends those calls that had not come to the worker yet, as while their texts are read."""
        for task in list(self.server_state.tasks):
            task.cancel()


def make_server(
    service: Service, grace: int = 10, verbose: bool = False, limits: Limits | None = None
) -> uvicorn.Server:
    """A server whose `run(sockets=[...])` answers calls until `should_exit` is set or, in the main thread, a SIGINT or
    SIGTERM comes; then it takes no new calls, and those at work have `grace` seconds to end."""
    limits = limits or Limits(connections=room_for_connections())
    config = uvicorn.Config(
        service.app(), lifespan="off", ws="none", access_log=verbose, log_level="info" if verbose else "warning",
        http=limited(limits), timeout_graceful_shutdown=grace + _AFTER_GRACE, server_header=False,
        proxy_headers=False, backlog=_ACCEPTED,
    )  # fmt: skip
    return Server(config, service, grace)


def serve(
    engine: Engine, words: Words, model: str, eos: Sequence[int], bound: socket.socket, *,
    most: int = 256, largest_body: int = LARGEST_BODY, grace: int = 10, verbose: bool = False,
    stops: Sequence[str] = (),
) -> None:  # fmt: skip
    """Answers calls for `model` at a socket until a SIGINT or SIGTERM, which it raises again at the end, when all calls
    have ended or `grace` seconds are over.

    `most`: requests at once, those that wait included. `stops`: texts in front of which the model's generations end.
    Raises what the engine raises, which ends the server, and MlircError for a model that does not read text.
    """
    if engine.source is not None and engine.source.kind != "tokens":
        raise MlircError(f"{model} hears sound, and calls are texts: use mlirc-generate MODEL --audio FILE")

    def stop() -> None:
        server.should_exit = True

    sys.setswitchinterval(_SWITCH)
    worker = Worker(Scheduler(engine), most, on_failure=stop)
    try:
        server = make_server(Service(worker, words, model, eos, largest_body, stops), grace, verbose)
        print(f"{model} at {address(bound)}/v1", file=sys.stderr, flush=True)
        gc.collect()
        gc.freeze()  # to look through the model's and the libraries' objects keeps everyone waiting, each time
        server.run(sockets=[bound])
    finally:
        worker.close()
    if worker.failure is not None:
        raise worker.failure
