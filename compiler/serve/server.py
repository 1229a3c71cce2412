"""Runs a service on a socket until it is asked to stop."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

import uvicorn

from mlirc.errors import MlircError
from mlirc.generate.engine import Engine
from mlirc.generate.scheduler import Scheduler
from mlirc.serve.app import LARGEST_BODY, Service, Words
from mlirc.serve.worker import Worker

_MOST_CONNECTIONS = 1024


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


def make_server(service: Service, grace: int = 10, verbose: bool = False) -> uvicorn.Server:
    """A server whose `run(sockets=[...])` answers calls until `should_exit` is set or, in the main thread, a SIGINT or
    SIGTERM comes; then it takes no new calls, and those at work have `grace` seconds to end."""
    config = uvicorn.Config(
        service.app(), lifespan="off", ws="none", access_log=verbose, log_level="info" if verbose else "warning",
        limit_concurrency=_MOST_CONNECTIONS, timeout_graceful_shutdown=grace, server_header=False,
        proxy_headers=False,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(
    engine: Engine, words: Words, model: str, eos: Sequence[int], bound: socket.socket, *,
    most: int = 256, largest_body: int = LARGEST_BODY, grace: int = 10, verbose: bool = False,
) -> None:  # fmt: skip
    """Answers calls for `model` at a socket until a SIGINT or SIGTERM, which it raises again at the end, when all calls
    have ended or `grace` seconds are over.

    `most`: requests at once, those that wait included. Raises what the engine raises, which ends the server.
    """

    def stop() -> None:
        server.should_exit = True

    worker = Worker(Scheduler(engine), most, on_failure=stop)
    try:
        server = make_server(Service(worker, words, model, eos, largest_body), grace, verbose)
        print(f"{model} at {address(bound)}/v1", file=sys.stderr, flush=True)
        server.run(sockets=[bound])
    finally:
        worker.close()
    if worker.failure is not None:
        raise worker.failure
