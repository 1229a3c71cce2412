"""Clients that come and go: what ends is as it is alone, and what is left behind is freed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import openai

from mlirc.generate.engine import Sampling
from support.generate.fake_engine import FakeEngine
from support.serve.running import MODEL, Words, running


async def one_call(server, client, rng: random.Random) -> bool:
    """A call with a random prompt, whose answer is checked unless the client goes away first."""
    prompt = "".join(rng.choice("the quick brown fox ") for _ in range(rng.randint(1, 25)))
    sampling = rng.choice([Sampling(), Sampling(temperature=1.0, seed=rng.randint(0, 99))])
    most, stops = rng.randint(1, 30), rng.choice([[], ["e"], ["x", "qu"]])
    text, tokens, reason = server.alone(prompt, most, sampling, stops)
    options = {
        "model": MODEL, "prompt": prompt, "max_tokens": most, "stop": stops, "temperature": sampling.temperature,
        "seed": sampling.seed,
    }  # fmt: skip
    leaves = rng.choice([None, None, rng.randint(0, 6)])
    if rng.random() < 0.5:
        call = asyncio.ensure_future(client.completions.create(**options))
        if leaves is not None:
            await asyncio.sleep(0.002 * leaves)
            if call.cancel():
                with contextlib.suppress(asyncio.CancelledError):
                    await call
                return False
        made = await call
        assert (made.choices[0].text, made.choices[0].finish_reason) == (text, reason)
        assert made.usage.completion_tokens == len(tokens)
        return True
    found, last = "", None
    async with await client.completions.create(**options, stream=True) as stream:
        async for i, piece in _numbered(stream):
            found, last = found + piece.choices[0].text, piece.choices[0].finish_reason
            assert text.startswith(found)
            if i == leaves:
                return False
    assert (found, last) == (text, reason)
    return True


async def _numbered(stream):
    number = 0
    async for piece in stream:
        yield number, piece
        number += 1


def test_16_clients_that_come_and_go_at_random():
    async def client_of(server, seed: int) -> int:
        rng = random.Random(seed)
        finished = 0
        for _ in range(4):
            async with server.async_client() as client:
                finished += await one_call(server, client, rng)
        return finished

    async def all_clients(server) -> int:
        return sum(await asyncio.gather(*(client_of(server, seed) for seed in range(16))))

    engine = FakeEngine(vocabulary=Words().size, pages=24)  # fewer than three sequences may need
    with running(engine) as server:
        assert asyncio.run(all_clients(server)) >= 16
        server.wait_until_idle()
        assert server.free() and server.worker.failure is None


class Stepped(FakeEngine):
    """Decodes as often as the test lets it."""

    def __init__(self, **options):
        super().__init__(**options)
        self.gate = threading.Semaphore(0)

    def decode(self):
        self.gate.acquire()
        return super().decode()


def test_a_client_that_goes_away_frees_its_pages():
    """Streamed, in the middle; not streamed, while it waits; and one that has not got a slot."""
    engine = Stepped(vocabulary=Words().size, slots=2, context=1024)
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
