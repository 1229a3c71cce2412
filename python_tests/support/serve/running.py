"""A server in a thread of the test, over an engine without a model."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import tokenizers

from mlirc.generate.engine import Sampling
from mlirc.generate.scheduler import Scheduler
from mlirc.generate.text import TextReader
from mlirc.generate.tokenizer import Tokenizer
from mlirc.serve.app import Service
from mlirc.serve.server import address, bind, make_server
from mlirc.serve.worker import Worker
from support.generate.fake_engine import FakeEngine, alone
from support.generate.tokenizers import by_bytes

MODEL = "a/model"
PATIENCE = 600.0  # seconds, to connect, too, for which a client has 5 by itself: clients share the server's process
EOS = (7,)  # a token that the fake engine's hashes give now and then


class Words(Tokenizer):
    """A tokenizer whose chats need no process apart."""

    def __init__(self) -> None:
        super().__init__(tokenizers.Tokenizer.from_str(by_bytes()), None)
        self.size = self._tokenizer.get_vocab_size()

    def encode_chat(self, messages, most=None) -> list[int]:
        return self.encode("".join(f"<{m['role']}>{m['content']}\n" for m in messages), most)


@dataclass
class Running:
    """What a test has of its server."""

    engine: FakeEngine
    words: Words
    scheduler: Scheduler
    worker: Worker
    url: str
    eos: tuple[int, ...]

    def client(self) -> openai.OpenAI:
        http = openai.DefaultHttpxClient(verify=False)  # to read certificates takes longer than most tests
        url = self.url + "/v1"
        return openai.OpenAI(api_key="none", base_url=url, max_retries=0, http_client=http, timeout=PATIENCE)

    def async_client(self) -> openai.AsyncOpenAI:
        http = openai.DefaultAsyncHttpxClient(verify=False)
        url = self.url + "/v1"
        return openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0, http_client=http, timeout=PATIENCE)

    def alone(self, prompt: str | list[int], count: int, sampling: Sampling = Sampling(), stops=()):  # noqa: B008
        """(text, tokens, reason) of a sequence that nothing else runs beside."""
        tokens = self.words.encode(prompt) if isinstance(prompt, str) else prompt
        made = alone(tokens, count, sampling, self.engine.vocabulary, self.eos)
        reader, text = TextReader(self.words.decode, tokens, stops), ""
        for i, token in enumerate(made):
            if token not in self.eos:
                text += reader.push(token)
            if reader.stopped or token in self.eos:
                return text + ("" if reader.stopped else reader.end()), made[: i + 1], "stop"
        return text + reader.end(), made, "stop" if reader.stopped else "length"

    def wait_until_idle(self) -> None:
        while self.worker.active:
            time.sleep(0.005)

    def free(self) -> bool:
        """Whether every page and slot is free; for a worker that has ended, or is idle."""
        return self.scheduler.pool.available == self.scheduler.pool.size and not any(self.engine.table)


@contextlib.contextmanager
def running(
    engine=None, most=256, largest_body=1 << 16, eos=EOS, words=None, kind=Running, limits=None, grace=5, stops=(),
    **options,
) -> Iterator[Running]:  # fmt: skip
    """A server at a free port; when it ends, all that it had is free. `kind` makes what the body gets."""
    words = words or Words()
    engine = engine or FakeEngine(vocabulary=words.size, **options)
    scheduler = Scheduler(engine)
    worker = Worker(scheduler, most)
    server = make_server(Service(worker, words, MODEL, eos, largest_body, stops), grace=grace, limits=limits)
    with bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.005)
            running = kind(engine, words, scheduler, worker, address(bound), eos)
            yield running
        finally:
            server.should_exit = True
            thread.join()
            worker.close()
        assert worker.failure is not None or running.free()
