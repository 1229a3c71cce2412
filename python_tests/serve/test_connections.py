"""Connections that say nothing, or half of what they want; too many of them; and the end of the server."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mlirc.serve.connections import Limits, room_for_connections
from support.serve.running import MODEL, running
from support.serve.waiting import Gated

FAST = Limits(connections=6, idle=0.6, body=0.6, rate=1 << 15, stalled=0.6)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
CALL = {"model": MODEL, "prompt": "a", "max_tokens": 3, "temperature": 0}  # tokens of a seed may have no text


def connected(server, data: bytes = b"") -> socket.socket:
    made = socket.create_connection(urlsplit(server.url).netloc.split(":"), timeout=60)
    made.sendall(data)
    return made


def rest(connection: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            found += piece
    return found


def answered(data: bytes) -> tuple[int, dict[str, str], dict]:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


def call(server, path="/v1/completions", value=CALL):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request("POST", path, json.dumps(value), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), json.loads(answer.read())
    connection.close()
    return found


def test_what_says_nothing_is_closed():
    with running(limits=FAST) as server:
        assert rest(connected(server)) == b""


@pytest.mark.parametrize(
    "half", [b"POST /v1/comp", HEAD, HEAD + b"Content-Length: 50\r\n\r\n", HEAD + b"Content-Length: 50\r\n\r\n{"]
)
def test_half_of_a_call_is_told_so_and_closed(half):
    with running(limits=FAST) as server:
        status, headers, body = answered(rest(connected(server, half)))
        assert (status, headers["content-type"], headers["connection"]) == (408, "application/json", "close")
        assert body["error"]["code"] == "timeout" and "send it again" in body["error"]["message"]
        assert call(server)[0] == 200


def test_what_is_no_http_is_told_so_in_json():
    with running(limits=FAST) as server:
        status, headers, body = answered(rest(connected(server, b"\x16\x03\x01\r\n\r\n")))
        assert (status, headers["content-type"]) == (400, "application/json") and "HTTP/1.1" in body["error"]["message"]


def test_silent_connections_lock_nobody_out():
    """The oldest of them make room; those that work keep their place."""
    engine = Gated(vocabulary=400)
    with running(engine, limits=Limits(connections=6)) as server:
        body = json.dumps({**CALL, "stream": True}).encode()
        at_work = connected(server, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert at_work.recv(1 << 16).startswith(b"HTTP/1.1 200")
        silent = [connected(server, b"GET /hea" if i % 2 else b"") for i in range(30)]
        engine.gate.release(1000)
        assert call(server)[0] == 200
        assert b"[DONE]" in rest_of_stream(at_work)
        assert sum(map(is_open, silent)) < 6
        for connection in silent:
            connection.close()


def rest_of_stream(connection: socket.socket) -> bytes:
    found = b""
    while b"[DONE]" not in found and (piece := connection.recv(1 << 16)):
        found += piece
    return found


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def test_more_calls_than_connections_are_told_to_come_again_in_json():
    engine = Gated(vocabulary=400)
    with running(engine, limits=Limits(connections=3), slots=2) as server:
        body = json.dumps({**CALL, "stream": True}).encode()
        at_work = [connected(server, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body) for _ in range(3)]
        while server.worker.active < 3:
            time.sleep(0.005)
        status, headers, answer = call(server)
        assert (status, headers["content-type"], headers["retry-after"]) == (503, "application/json", "1")
        assert answer["error"]["type"] == "server_error" and "as many connections as it takes" in str(answer)
        engine.gate.release(1000)
        assert all(b"[DONE]" in rest_of_stream(c) for c in at_work)
        for connection in at_work:
            connection.close()


def test_the_limit_of_descriptors_is_raised_and_kept():
    assert 1 <= room_for_connections(40) <= 40 and room_for_connections() > 40


SERVER = """
import sys
sys.path.insert(0, "python_tests")
from mlirc.serve.server import bind, serve
from mlirc.tools.cli import run_main
from support.serve.running import EOS, MODEL, Words
from support.serve.waiting import Gated

words = Words()
engine = Gated(vocabulary=words.size, slots=1)
engine.gate.release(2)
run = lambda: serve(engine, words, MODEL, EOS, bind("127.0.0.1", 0), grace=1)
status = run_main(run)
sys.stdout.flush()
__import__("os")._exit(status)
"""


def test_calls_that_a_stop_ends_are_told_so():
    """One is decoded in a step that does not end, one waits: an error in their stream, or in their place; no traceback."""
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", SERVER], cwd=root, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        netloc = urlsplit(process.stderr.readline().split(" at ")[1].strip()).netloc
        while True:  # it listens soon
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(netloc.split(":")):
                break
        calls = []
        for value in ({**CALL, "max_tokens": 50, "stream": True}, {**CALL, "stream": True}, CALL):
            connection = http.client.HTTPConnection(netloc, timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(value), {"Content-Type": "application/json"})
            calls.append(connection)
            if len(calls) == 1:  # which is at work before the others come
                streams = [connection.getresponse()]
                assert streams[0].readline().startswith(b"data: {")
        streams.append(calls[1].getresponse())
        half = socket.create_connection(netloc.split(":"), timeout=60)
        half.sendall(HEAD + b"Content-Length: 50\r\n\r\n{")
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        for stream in streams:
            last = stream.read().strip().split(b"\n\n")[-1]
            assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == "the server is stopping"
        answer = calls[2].getresponse()
        assert answer.status == 503 and json.loads(answer.read())["error"]["message"] == "the server is stopping"
        assert rest(half) == b""
        time.sleep(0.5)
    finally:
        process.kill()
        process.wait()
    assert process.stderr.read() == ""
