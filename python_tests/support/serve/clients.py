"""Clients that call a server at random, and go away at random; what they get is as it is alone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

from mlirc.generate.engine import Sampling
from support.serve.running import MODEL


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


async def come_and_go(server, clients: int, calls: int | None = None, seconds: float = 0.0, seed: int = 0) -> int:
    """Clients beside each other, each with so many connections one after the other, of one call each, or as many as
    begin in so many seconds; how many calls were answered to their end."""
    end = time.monotonic() + seconds

    async def client_of(number: int) -> int:
        rng, finished, made = random.Random(f"{seed} {number}"), 0, 0
        while made < calls if calls is not None else time.monotonic() < end:
            async with server.async_client() as client:
                finished += await one_call(server, client, rng)
            made += 1
        return finished

    return sum(await asyncio.gather(*map(client_of, range(clients))))
