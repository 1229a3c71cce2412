"""A model whose prompts an encoder reads, served; one that hears sound is refused at the start."""

from __future__ import annotations

import pytest

from mlirc.errors import MlircError
from mlirc.generate.sizes import Source
from mlirc.serve.server import bind, serve
from support.generate.fake_engine import FakeEngine, alone
from support.serve.running import MODEL, Words, running

START = 9


class Encoding(FakeEngine):
    """What it generates depends on what its encoder read, through the decoder's first token."""

    paged = False
    source = Source("tokens", (16,), 0, (START,))

    def __init__(self, **options):
        super().__init__(**options)
        self.read: list[list[int]] = []

    def encode(self, slot, source, length) -> None:
        assert length == 1
        self.read.append(list(source))


def test_an_encoder_reads_the_prompts_of_calls():
    words = Words()
    with running(Encoding(vocabulary=words.size), words=words, eos=()) as server, server.client() as client:
        made = client.completions.create(model=MODEL, prompt=["fox", "a dog"], max_tokens=5, temperature=0)
        assert sorted(server.engine.read) == sorted([words.encode("fox"), words.encode("a dog")])
        tokens = alone([START], 5, vocabulary=words.size)
        begun = words.decode([START])
        assert [c.text for c in made.choices] == [words.decode([START, *tokens])[len(begun) :]] * 2
        assert made.usage.prompt_tokens == len(words.encode("fox")) + len(words.encode("a dog"))
        messages = [{"role": "user", "content": "x"}]
        answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5, temperature=0)
        assert server.engine.read[-1] == words.encode("<user>x\n") and answer.usage.completion_tokens == 5
        with pytest.raises(Exception, match="the source has 17 tokens") as caught:
            client.completions.create(model=MODEL, prompt=[1] * 17, max_tokens=5)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_what_hears_sound_is_refused_before_it_listens():
    engine = FakeEngine()
    engine.source = Source("features", (30,), 80, (START, None))
    with bind("127.0.0.1", 0) as bound, pytest.raises(MlircError, match="hears sound, and calls are texts: use"):
        serve(engine, Words(), MODEL, (), bound)


def test_the_models_stop_strings_end_answers():
    words = Words()
    with running(words=words, stops=("e",), context=64) as server, server.client() as client:
        text, _, reason = server.alone("the quick", 30, stops=("e", "zz"))
        made = client.completions.create(model=MODEL, prompt="the quick", max_tokens=30, temperature=0, stop="zz")
        assert (made.choices[0].text, made.choices[0].finish_reason) == (text, reason)
