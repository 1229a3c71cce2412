"""Clients that come and go: what ends is as it is alone, and what is left behind is freed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import openai

from support.generate.fake_engine import FakeEngine
from support.serve.clients import come_and_go
from support.serve.running import MODEL, Words, running
from support.serve.waiting import Gated


def test_16_clients_that_come_and_go_at_random():
    engine = FakeEngine(vocabulary=Words().size, pages=24)  # fewer than three sequences may need
    with running(engine) as server:
        assert asyncio.run(come_and_go(server, clients=16, calls=4)) >= 16
        server.wait_until_idle()
        assert server.free() and server.worker.failure is None


def test_a_client_that_goes_away_frees_its_pages():
    """Streamed, in the middle; not streamed, while it waits; and one that has not got a slot."""
    engine = Gated(vocabulary=Words().size, slots=2, context=1024)
    options = {"model": MODEL, "prompt": [3], "max_tokens": 1000, "temperature": 0}

    async def come_and_go(server) -> None:
        async with server.async_client() as client:
            stream = await client.completions.create(**options, stream=True)
            calls = [asyncio.ensure_future(client.completions.create(**options)) for _ in range(2)]
            while server.worker.active < 3:
                await asyncio.sleep(0.005)
            await stream.close()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    with running(engine, eos=()) as server:
        asyncio.run(come_and_go(server))
        while server.worker.active:
            engine.gate.release()
            threading.Event().wait(0.005)
        assert server.free()
        assert sum(call[0] == "decode" for call in engine.calls) < 900


SERVER = """
import sys
sys.path.insert(0, "python_tests")
from mlirc.serve.server import bind, serve
from mlirc.tools.cli import run_main
from support.generate.fake_engine import FakeEngine
from support.serve.clients import come_and_go
from support.serve.running import EOS, MODEL, Words

words = Words()
sys.exit(run_main(lambda: serve(FakeEngine(vocabulary=words.size), words, MODEL, EOS, bind("127.0.0.1", 0))))
"""


def test_a_signal_ends_the_server_when_its_calls_have_ended():
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", SERVER], cwd=root, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        name, url = process.stderr.readline().split(" at ")
        assert name == MODEL
        with openai.OpenAI(api_key="none", base_url=url.strip(), max_retries=5) as client:
            stream = client.completions.create(model=MODEL, prompt="a", max_tokens=60, temperature=0, stream=True)
            pieces = iter(stream)
            next(pieces)
            process.send_signal(signal.SIGTERM)
            assert list(pieces)[-1].choices[0].finish_reason in ("length", "stop")
        assert process.wait() == 128 + signal.SIGTERM
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
