"""Clients that come and go at random for minutes, at a server: every answer that ends is the one that its request gets
alone, and neither pages nor memory are lost.

    python benchmarks/serve_soak.py --clients 64 --minutes 5        # an engine without a model
    python benchmarks/serve_soak.py --model smollm2-135m --minutes 5 [-o FILE.json]     # compiled, on the GPU
    python benchmarks/serve_soak.py --model DIR --random-weights 0 --device cpu --minutes 0.3 --requests 20

It needs mlirc[serve] and the tests' packages. Without a model a call's prompt is new, and the pages are fewer than the
sequences need. With one, calls are drawn from --requests, whose answers are computed alone before, each on an empty
cache, and again at the end. Their text is the numbers of the tokens, so that no token can differ unseen. The same
tokens are promised whatever runs beside them, up to the rounding in which plans for one and for several tokens differ.
So the requests are such that the same plans compute the same positions: there are pages for all slots, so that no
sequence is read again from its own tokens (a model with fewer is refused), and prompts share full pages only where
whole runs of the largest plan fill one, as they do with what is compiled here; else they are no longer than a page.

Exit status 1 where an answer differs, pages or slots are not free at the end, or memory grows: the process's by more
than --may-grow in the second half of the time, the device's by more than --device-may-grow after the first tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import openai
import tests_path  # noqa: F401  # finds support
from long_run import all_free, arguments, device_memory, opened, resident, save

from mlirc.errors import MlircError
from mlirc.generate.engine import Engine, Sampling
from mlirc.generate.requests import Request
from mlirc.generate.scheduler import Scheduler
from mlirc.generate.text import TextReader
from mlirc.tools.cli import run_main
from support.generate.fake_engine import FakeEngine
from support.serve.clients import come_and_go
from support.serve.running import MODEL, Running, Words, running

PARTS = 10  # of the time; pages are counted behind each
NEW = 96  # tokens of an answer, at most
SETTLED = 0.5  # seconds without a request after which nobody sends one any more
CHUNKS, PAGE = (1, 8, 64), 64
SHOWN = 5  # differences that are printed
WAYS = [
    Sampling(), Sampling(), Sampling(temperature=0.7), Sampling(temperature=1.0, top_k=40, top_p=0.9),
    Sampling(temperature=0.5, min_p=0.05, repetition_penalty=1.3), Sampling(repetition_penalty=1.2),
]  # fmt: skip


class Numbers:
    """A tokenizer whose text is the tokens' numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(number) for number in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f"{token} " for token in tokens)


@dataclass(frozen=True)
class Asked:
    """A call that may be made, and what it gets alone."""

    prompt: list[int]
    most: int
    sampling: Sampling
    stops: list[str]
    answer: tuple[str, int, str] = ("", 0, "")  # its text, how many tokens, why it ended

    def options(self, as_text: bool) -> dict[str, Any]:
        """As OpenAI's clients take it."""
        s, prompt = self.sampling, Numbers().decode(self.prompt) if as_text else self.prompt
        more = {"top_k": s.top_k, "min_p": s.min_p, "repetition_penalty": s.repetition_penalty}
        return {
            "model": MODEL, "prompt": prompt, "max_tokens": self.most, "stop": self.stops, "seed": s.seed,
            "temperature": s.temperature, "top_p": s.top_p, "extra_body": more,
        }  # fmt: skip


def draw(engine: Engine, count: int, seed: int) -> list[Asked]:
    """So many calls. Raises MlircError for an engine of which the same answers are not promised."""
    rng, page = random.Random(seed), engine.page_size
    if engine.source is not None:
        raise MlircError("the model is an encoder-decoder: give one that continues text")
    same = not engine.paged or page % max(engine.chunks) == 0
    longest = min(engine.context // 2, 4 * page if same else page)
    needed = engine.slots * -(-min(engine.context, longest + NEW) // page)
    if needed > engine.pages - 1:
        raise MlircError(f"{needed} pages may be needed, and there are {engine.pages - 1}: compile with more pages")

    def tokens(most: int) -> list[int]:
        return [rng.randrange(engine.vocabulary) for _ in range(rng.randint(1, most))]

    beginnings = [tokens(longest) for _ in range(6)]
    found = []
    for i in range(count):
        prompt = (rng.choice(beginnings) if rng.random() < 0.7 else []) + tokens(longest)
        prompt, way = prompt[:longest] if rng.random() < 0.7 else prompt[: rng.randint(1, longest)], rng.choice(WAYS)
        sampling = Sampling(**{**vars(way), "seed": i if way.temperature else 0})
        most = rng.randint(1, min(NEW, engine.context - len(prompt)))
        found.append(Asked(prompt, most, sampling, rng.choice([[], ["77"], ["5 1", "00"]])))
    return found


def alone(engine: Engine, asked: Asked, eos: Sequence[int]) -> tuple[str, int, str]:
    """What a call gets from an engine that does nothing else, and whose cache is empty."""
    scheduler, reader = Scheduler(engine), TextReader(Numbers().decode, asked.prompt, asked.stops)
    progress = scheduler.submit(Request(asked.prompt, asked.most, asked.sampling, frozenset(eos), reader))
    text = "".join(event.text for _ in iter(lambda: scheduler.busy, False) for event in scheduler.step())
    return text, progress.new, str(progress.reason)


@dataclass
class Model(Running):
    """A server over a model, whose calls are drawn from `asked`."""

    asked: list[Asked] = field(default_factory=list)
    tokens: int = 0  # of the answers that ended
    reused: int = 0  # tokens of their prompts that others had left in the cache
    wrong: list[str] = field(default_factory=list)  # answers that differ

    def free(self) -> bool:
        return all_free(self.scheduler)

    def wait_until_idle(self) -> None:
        idle = time.monotonic()
        while time.monotonic() < idle + SETTLED:
            idle = time.monotonic() if self.worker.active else idle
            time.sleep(0.005)

    async def come_and_go(self, clients: int, seconds: float, seed: int) -> int:
        """As `support.serve.clients.come_and_go`."""
        end = time.monotonic() + seconds

        async def client_of(number: int) -> int:
            rng, finished = random.Random(f"{seed} {number}"), 0
            while time.monotonic() < end and self.worker.failure is None:
                async with self.async_client() as client:
                    finished += await self._one_call(client, rng)
            return finished

        return sum(await asyncio.gather(*map(client_of, range(clients))))

    async def _one_call(self, client: Any, rng: random.Random) -> bool:
        """A call that may be left; whether it was answered."""
        asked, leaves = rng.choice(self.asked), rng.random() < 1 / 3
        options = asked.options(as_text=rng.random() < 0.5)
        text, tokens, reason = asked.answer
        if rng.random() < 0.5:
            call = asyncio.ensure_future(client.completions.create(**options))
            if leaves:
                await asyncio.wait([call], timeout=rng.uniform(0, 0.5))
                if call.cancel():
                    await asyncio.wait([call])
                    return False
            made = await call
            found, why, used = made.choices[0].text, made.choices[0].finish_reason, made.usage
        else:
            found, why, used, left = "", None, None, rng.randint(0, 20) if leaves else None
            more = {"stream": True, "stream_options": {"include_usage": True}}
            async with await client.completions.create(**options, **more) as stream:
                number = 0
                async for piece in stream:
                    used = piece.usage or used
                    for choice in piece.choices:
                        found, why = found + choice.text, choice.finish_reason
                    if number == left:
                        if not text.startswith(found):
                            self._differs(asked, found, why, used)
                        return False
                    number += 1
        if (found, used.completion_tokens, why) != (text, tokens, reason):
            self._differs(asked, found, why, used)
        self.tokens += used.completion_tokens
        self.reused += used.prompt_tokens_details.cached_tokens
        return True

    def _differs(self, asked: Asked, found: str, why: str | None, used: Any) -> None:
        made, want = found.split(), asked.answer[0].split()
        place = next((i for i, (a, b) in enumerate(zip(made, want, strict=False)) if a != b), min(len(made), len(want)))
        reused = used.prompt_tokens_details.cached_tokens if used else "?"
        self.wrong.append(
            f"prompt of {len(asked.prompt)} ({reused} reused), {asked.sampling}: token {place} is "
            f"{made[place : place + 3]} and alone {want[place : place + 3]}; {why}, alone {asked.answer[2]}"
        )


def soak(
    args: argparse.Namespace, server: Running, rows: list[dict[str, Any]], play: Callable[[float, int], int]
) -> list[str]:
    """Lets clients call for the time of `args`; what goes wrong, a line each. `play` is given seconds and a seed, and
    returns how many were answered; `rows` gets what was measured behind each part of the time."""
    answered = 0
    for part in range(PARTS):
        begin = time.monotonic()
        try:
            answered += play(args.minutes * 60 / PARTS, part)
        except openai.OpenAIError as e:
            traceback.print_exception(server.worker.failure or e)
            return [f"a call failed: {e}"]
        server.wait_until_idle()
        if server.worker.failure is not None or not server.free():
            traceback.print_exception(server.worker.failure)
            return ["pages or slots are not free"]
        spent, held, device = time.monotonic() - begin, resident(), device_memory(args)
        rows.append({"seconds": spent, "answers": answered, "resident": held, "device": device})
        differ = len(getattr(server, "wrong", ()))
        line = f"{spent:5.0f} s: {answered:,} answers in all, {f'{differ:,} not' if differ else 'each'} as alone"
        print(f"{line}; {held >> 10:,} KiB" + f", {device / 1e6:,.1f} MB of the device" * bool(device), flush=True)
    grown = (rows[-1]["resident"] - rows[PARTS // 2]["resident"]) / (1 << 20)
    on_device = (max(row["device"] for row in rows) - rows[0]["device"]) / (1 << 20)
    print(f"memory grew by {grown:.1f} MiB in the second half, the device's by {on_device:.1f} after the first tenth")
    wrong = [f"memory grew by {grown:.1f} MiB"] * (grown > args.may_grow)
    return wrong + [f"the device's memory grew by {on_device:.1f} MiB"] * (on_device > args.device_may_grow)


def without_model(args: argparse.Namespace) -> list[str]:
    """Clients at an engine without a model."""
    args.device = "cpu"
    engine = FakeEngine(vocabulary=Words().size, slots=8, pages=96)  # fewer than its slots may need
    with running(engine) as server:

        def play(seconds: float, seed: int) -> int:
            answered = asyncio.run(come_and_go(server, args.clients, seconds=seconds, seed=seed))
            engine.calls.clear()  # what the engine without a model keeps of its own
            return answered

        return soak(args, server, [], play)


def with_model(args: argparse.Namespace) -> list[str]:
    """Clients at a real one."""
    sizes = {"slots": args.slots or 16, "context": args.context or 512, "chunks": CHUNKS, "page_size": PAGE}
    model = opened(args, **sizes)
    engine = model.engine
    eos = (*model.eos, *range(0, engine.vocabulary, 199))  # so that some end before their length says so
    begin = time.monotonic()
    asked = draw(engine, args.requests, 0)
    asked = [replace(a, answer=alone(engine, a, eos)) for a in asked]
    different = len({a.answer[0] for a in asked})
    print(
        f"{model.name}: {engine.slots} slots, context {engine.context}; {len(asked)} requests of "
        f"{sum(a.answer[1] for a in asked):,} tokens, {different} answers, alone in {time.monotonic() - begin:.1f} s; "
        f"{sum(a.answer[2] == 'stop' for a in asked)} end by a stop",
        flush=True,
    )
    rows: list[dict[str, Any]] = []
    with running(engine, eos=eos, words=Numbers(), kind=partial(Model, asked=asked)) as server:

        def play(seconds: float, seed: int) -> int:
            return asyncio.run(server.come_and_go(args.clients, seconds, seed))

        wrong = soak(args, server, rows, play)
    changed = sum(alone(engine, a, eos) != a.answer for a in asked) if server.worker.failure is None else 0
    model.close()
    wrong += [f"{len(server.wrong)} answers differ"] * bool(server.wrong) + server.wrong[:SHOWN]
    wrong += [f"{changed} answers are others alone at the end"] * bool(changed)
    wrong += [f"only {different} of {len(asked)} answers differ: they say little"] * (2 * different < len(asked))
    print(f"{server.tokens:,} tokens in the answers that ended; {server.reused:,} of their prompts were in the cache")
    if args.output:
        about = {"model": model.name, "slots": engine.slots, "clients": args.clients, "tokens": server.tokens}
        save(args, **about, reused=server.reused, rows=rows, problems=wrong)
    return wrong


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser, None)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--may-grow", type=float, default=16, help="MiB in the second half")
    parser.add_argument("--device-may-grow", type=float, default=0, help="MiB after the first tenth")
    parser.add_argument("--requests", type=int, default=200, help="different ones, with a model")
    args = parser.parse_args()

    def run() -> int:
        wrong = with_model(args) if args.model else without_model(args)
        print("".join(f"error: {line}\n" for line in wrong), end="", file=sys.stderr)
        return int(bool(wrong))

    return run_main(run)


if __name__ == "__main__":
    sys.exit(main())
