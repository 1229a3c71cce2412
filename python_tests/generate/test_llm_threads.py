"""A model that generates, called by several threads: each gets what is its own, decoded together with the others'."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from mlirc.errors import MlircError
from mlirc.generate.engine import Sampling
from mlirc.generate.llm import LLM
from mlirc.generate.opening import Opened
from support.generate.fake_engine import FakeEngine, alone
from support.randomness import generator
from support.threads import COUNT, at_once


@pytest.fixture
def engine():
    return FakeEngine(slots=3)


@pytest.fixture
def llm(engine):
    with LLM(Opened("fake", engine, None, ())) as made:
        yield made
        gc.collect()
        made.generate([1], max_new_tokens=1)  # what was cancelled in the middle of a turn ends at the latest now
        assert not made.scheduler.busy and made.scheduler.pool.available == engine.pages - 1
        assert not made._shared._queues and not made._shared._cancelled


def drawn(number: int) -> list[tuple[list[int], int]]:
    g = generator()
    found = [(g.integers(0, 50, 1 + int(g.integers(5))).tolist(), 1 + int(g.integers(20))) for _ in range(COUNT * 6)]
    return found[number::COUNT]


def test_each_thread_gets_its_own(llm):
    given = [drawn(i) for i in range(COUNT)]

    def act(i: int) -> None:
        for prompt, most in given[i]:
            wanted = alone(prompt, most)
            assert llm.generate(prompt, max_new_tokens=most).tokens == wanted
            assert list(llm.stream(prompt, max_new_tokens=most).tokens()) == wanted
        made = llm.generate([p for p, _ in given[i]], max_new_tokens=7)
        assert [m.tokens for m in made] == [alone(p, 7) for p, _ in given[i]]

    assert at_once(act) == [None] * COUNT


def test_they_run_together(llm, engine, monkeypatch):
    decode = engine.decode

    def waits(*args, **kwargs):
        """The first step takes so long that all threads have asked."""
        monkeypatch.undo()
        time.sleep(0.5)
        return decode(*args, **kwargs)

    monkeypatch.setattr(engine, "decode", waits)
    at_once(lambda i: llm.generate([i], max_new_tokens=40))
    steps = sum(call[0] == "decode" for call in engine.calls)
    assert steps < COUNT * 40 * 0.7, "three slots: a third of the steps, where nobody waits for a thread to begin"


def test_streams_that_are_left_in_the_middle(llm):
    def act(i: int) -> None:
        for prompt, _ in given[i]:
            stream = llm.stream(prompt, max_new_tokens=30)
            tokens = stream.tokens()
            begun = [next(tokens), next(tokens)]
            assert begun == alone(prompt, 30)[:2]
            if i % 2:
                stream.close()
                assert list(tokens) == [] and stream.result is None
            del stream, tokens

    given = [drawn(i) for i in range(COUNT)]
    assert at_once(act) == [None] * COUNT


def test_one_stream_of_several_threads_gives_each_token_once(llm):
    stream = llm.stream([3, 5], max_new_tokens=60)
    parts = at_once(lambda _: list(stream.tokens()))
    found = sorted(t for part in parts for t in part)
    assert found == sorted(alone([3, 5], 60)) and stream.result is not None


def test_mistakes_are_the_callers_alone(llm):
    def act(i: int) -> list[int] | str:
        if i % 2:
            with pytest.raises(MlircError, match="token"):
                llm.generate([[1], [10**6]], max_new_tokens=3)
            return []
        return llm.generate([i], max_new_tokens=12, temperature=1.0, seed=i).tokens

    wanted = [[] if i % 2 else alone([i], 12, Sampling(temperature=1.0, seed=i)) for i in range(COUNT)]
    assert at_once(act) == wanted


def test_a_model_that_is_closed_meanwhile(engine):
    made = LLM(Opened("fake", engine, None, ()))
    begun = threading.Barrier(COUNT)

    def act(i: int) -> str:
        begun.wait()
        if i == 0:
            made.close()
            made.close()
            return "the model was closed"
        try:
            while True:
                made.generate([i], max_new_tokens=50)
        except MlircError as e:
            return str(e)

    assert at_once(act) == ["the model was closed"] * COUNT and engine.closed
