"""A client beside 1,100 connections that say nothing and prompts of megabytes: how long its calls take, with and without
those. Server, load and client are processes of their own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

TESTS = Path(__file__).resolve().parents[2]
MODEL = "m"
STEP = 0.004  # seconds of a decoding, in which the interpreter is free, as while a GPU works
SERVER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from mlirc.serve.server import bind, serve
from mlirc.tools.cli import run_main
from support.generate.fake_engine import FakeEngine
from support.serve.running import Words

class Engine(FakeEngine):
    def decode(self):
        time.sleep(float(sys.argv[3]))
        return super().decode()

words = Words()
context = int(sys.argv[2])
engine = Engine(vocabulary=words.size, slots=4, context=context, page_size=1024)
sys.exit(run_main(lambda: serve(engine, words, sys.argv[4], (), bind("127.0.0.1", 0), grace=1)))
"""


@contextlib.contextmanager
def serving(context: int) -> Iterator[str]:
    """The address of a server over an engine without a model; raises AssertionError where it wrote anything."""
    command = [sys.executable, "-c", SERVER, str(TESTS), str(context), str(STEP), MODEL]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        netloc = urlsplit(process.stderr.readline().split(" at ")[1].strip()).netloc
        while True:
            with contextlib.suppress(ConnectionRefusedError), _connected(netloc):
                break
        yield netloc
        process.terminate()
        words = process.stderr.read()
        assert process.wait() == 143 and words == "", words
    finally:
        process.kill()
        process.wait()


def _connected(netloc: str) -> socket.socket:
    host, port = netloc.split(":")
    return socket.create_connection((host, int(port)), timeout=600)


def body_of(prompt: str, tokens: int = 6) -> bytes:
    """A call's."""
    return json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}).encode()


def call(netloc: str, body: bytes) -> tuple[int, dict]:
    """The status and the JSON of a completion, on a connection of its own."""
    connection = http.client.HTTPConnection(netloc, timeout=600)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def load(netloc: str, silent: int, long: int, megabytes: float, every: float) -> None:
    """Until its input ends: so many connections that say nothing, or half of a call, made anew where the server ended
    them; and every so many seconds so many prompts of so many megabytes at once, each refused by its length."""
    from mlirc.serve.connections import room_for_connections

    room_for_connections(silent)
    body = body_of("the quick brown fox " * int(megabytes * 50_000))
    stop, together = threading.Event(), threading.Barrier(max(1, long))

    def insist() -> None:
        while not stop.is_set():
            together.wait()
            status, answer = call(netloc, body)
            error = answer.get("error", {})
            if (status, error.get("code")) != (400, "context_length_exceeded"):
                print(status, str(answer)[:300], file=sys.stderr, flush=True)
                os._exit(1)
            time.sleep(every)

    def stay() -> None:
        held: list[socket.socket] = []
        while not stop.is_set():
            for i in range(silent - len(held)):
                with contextlib.suppress(OSError):
                    held.append(_connected(netloc))
                    held[-1].sendall(b"" if i % 2 else b"POST /v1/comp")
                    held[-1].setblocking(False)
            print(len(held), flush=True)
            time.sleep(0.5)
            held = [c for c in held if _is_open(c)]

    threads = [threading.Thread(target=insist, daemon=True) for _ in range(long)]
    threads.append(threading.Thread(target=stay, daemon=True))
    for thread in threads:
        thread.start()
    sys.stdin.read()
    os._exit(0)


def _is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def times(netloc: str, seconds: float) -> list[float]:
    """How long each call of a client took, one after the other, in ascending order."""
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(taken) < 20:
        start = time.monotonic()
        status, answer = call(netloc, body_of(f"fox {len(taken)}"))
        taken.append(time.monotonic() - start)
        assert status == 200 and answer["usage"]["completion_tokens"] == 6, answer
    return sorted(taken)


def beside(
    netloc: str, seconds: float, silent: int, long: int, megabytes: float, every: float = 5.0
) -> tuple[list[float], list[float]]:
    """A client's times without and with the load, ascending."""
    times(netloc, 0.5)
    calm = times(netloc, seconds)
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from support.serve.campaign import load; load(*{(netloc, silent, long, megabytes, every)!r})"  # noqa: E501
    loaded = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert loaded.stdin is not None and loaded.stdout is not None
        assert loaded.stdout.readline(), "the load ended"
        found = times(netloc, seconds)
        assert loaded.poll() is None, "a long prompt was answered in another way"
        return calm, found
    finally:
        loaded.kill()
        loaded.communicate()


def quantile(times: list[float], share: float) -> float:
    """Of ascending times."""
    return times[min(len(times) - 1, int(len(times) * share))]
