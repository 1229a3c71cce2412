"""Continuous batching: whatever runs beside a request, its tokens are those that it has alone, and no page is lost."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.errors import MlircError
from mlirc.generate.drafting import lookup
from mlirc.generate.engine import Sampling
from mlirc.generate.requests import Request
from mlirc.generate.scheduler import Scheduler
from support.generate.fake_engine import FakeEngine, alone
from support.randomness import generator


@pytest.fixture(autouse=True, params=[0, 1], ids=["in step", "ahead"])
def ahead(request, monkeypatch):
    """Whether the next step begins before the last one's tokens are looked at."""
    monkeypatch.setattr(FakeEngine, "ahead", request.param)
    return request.param


def run(scheduler, *requests):
    """The new tokens and the reason of each request, run to the end."""
    taken = [scheduler.submit(r) for r in requests]
    made = {p.number: [] for p in taken}
    while scheduler.busy:
        for event in scheduler.step():
            made[event.request] += event.tokens
    return [(made[p.number], p.reason) for p in taken]


def prompts(*lengths, vocabulary=101):
    return [generator().integers(0, vocabulary, n).tolist() for n in lengths]


def ended(scheduler):
    """Whether nothing is left: slots idle, pages free or kept for later."""
    engine = scheduler.engine
    assert not any(engine.table) and not scheduler.busy
    return scheduler.pool.available == engine.pages - 1


def test_prompts_of_all_lengths_beside_each_other():
    scheduler = Scheduler(FakeEngine())
    given = prompts(1, 7, 33, 4, 8, 13, 1)
    results = run(scheduler, *(Request(p, 11) for p in given))
    assert results == [(alone(p, 11), "length") for p in given]
    assert ended(scheduler)


def test_one_token_and_the_whole_context():
    scheduler = Scheduler(FakeEngine(context=16, slots=1))
    a, b, c = prompts(15, 3, 5)
    results = run(scheduler, Request(a, 1), Request(b, 13), Request(c))
    assert results == [(alone(a, 1), "length"), (alone(b, 13), "length"), (alone(c, 11), "length")]


def test_a_stop_token_ends_a_sequence_and_is_its_last():
    (prompt,) = prompts(5)
    stop = alone(prompt, 9)[6]
    expected = alone(prompt, 20, stop=(stop,))
    assert run(Scheduler(FakeEngine()), Request(prompt, 20, stop_tokens=frozenset([stop]))) == [(expected, "stop")]


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0, seed=5), Sampling(repetition_penalty=1.5)])
def test_sampling_follows_the_sequence_into_its_slot(sampling):
    scheduler = Scheduler(FakeEngine(slots=2, pages=14), turn_tokens=4)
    given = prompts(9, 17, 6)
    results = run(scheduler, *(Request(p, 12, sampling) for p in given), Request(given[0], 12))
    assert [t for t, _ in results] == [alone(p, 12, sampling) for p in given] + [alone(given[0], 12)]


def test_too_few_pages_pause_the_youngest_and_change_nothing():
    engine = FakeEngine(slots=4, pages=12, context=40)
    scheduler = Scheduler(engine)
    given = prompts(5, 9, 3, 11, 6)
    taken = [scheduler.submit(Request(p, 24)) for p in given]
    while scheduler.busy:
        scheduler.step()
    assert [p.tokens[len(q) :] for p, q in zip(taken, given, strict=True)] == [alone(p, 24) for p in given]
    assert taken[0].pauses == 0 and sum(p.pauses for p in taken) > 0
    assert ended(scheduler)


def test_a_long_prompt_does_not_stop_decoding():
    engine = FakeEngine(context=200)
    scheduler = Scheduler(engine, turn_tokens=8)
    short, long = prompts(2, 150)
    first = scheduler.submit(Request(short, 30))
    scheduler.step()
    second = scheduler.submit(Request(long, 5))
    while second.first is None:
        before = first.new
        scheduler.step()
        assert first.new == before + 1
    read = [call[2] for call in engine.calls if call[0] == "prefill"]
    assert max(read) <= 8 and sum(read) == 152


def test_equal_beginnings_are_read_once():
    engine = FakeEngine(slots=2)
    scheduler = Scheduler(engine)
    (system,) = prompts(21)
    given = [system + p for p in prompts(3, 5, 4)]
    taken = [scheduler.submit(Request(p, 6)) for p in given]
    while scheduler.busy:
        scheduler.step()
    assert [p.tokens[len(q) :] for p, q in zip(taken, given, strict=True)] == [alone(p, 6) for p in given]
    assert [p.reused for p in taken] == [0, 20, 20]
    again = scheduler.submit(Request(given[0] + taken[0].tokens[len(given[0]) :] + [1], 2))
    while scheduler.busy:
        scheduler.step()
    assert again.reused == 28, "what was generated is there for the next turn of a conversation"


def test_a_prompt_that_is_there_reads_its_last_token():
    scheduler = Scheduler(FakeEngine())
    (prompt,) = prompts(8)
    assert run(scheduler, Request(prompt, 5)) == run(scheduler, Request(prompt, 5)) == [(alone(prompt, 5), "length")]


@pytest.mark.parametrize("pages", [None, 14])
@pytest.mark.parametrize("draft", [0, 5])
def test_requests_that_come_and_go_at_random(pages, draft):
    rng = generator()
    # Three tokens, so that beginnings are shared and guesses are right at times.
    engine = FakeEngine(slots=3, context=48, pages=pages, vocabulary=3)
    scheduler = Scheduler(engine, turn_tokens=8, draft=draft)
    begun, cancelled, made = [], set(), {}
    for _ in range(250):
        if rng.random() < (0.1 if draft else 0.3):
            n = int(rng.integers(1, 24))
            sampling = Sampling(temperature=float(rng.integers(0, 2)), seed=int(rng.integers(0, 3)))
            stop = frozenset([2]) if rng.random() < 0.2 else frozenset()
            prompt = rng.integers(0, 2, n).tolist()
            begun.append(scheduler.submit(Request(prompt, int(rng.integers(1, 24)), sampling, stop)))
        if rng.random() < 0.1 and scheduler.requests:
            number = int(rng.choice([p.number for p in scheduler.requests]))
            assert scheduler.cancel(number).reason == "cancelled" and scheduler.cancel(number) is None
            cancelled.add(number)
        for event in scheduler.step():
            assert event.request not in cancelled
            made.setdefault(event.request, []).extend(event.tokens)
    while scheduler.busy:
        for event in scheduler.step():
            made.setdefault(event.request, []).extend(event.tokens)
    assert ended(scheduler) and len(begun) > 15 and len(cancelled) > 5
    for p in begun:
        q = p.request
        expected = alone(q.prompt, q.max_new_tokens, q.sampling, 3, q.stop_tokens)
        found = made.get(p.number, [])
        assert found == (expected[: len(found)] if p.number in cancelled else expected)
    assert draft == 0 or sum(p.accepted for p in begun) > 0


def test_cancelling_wherever_a_request_is():
    scheduler = Scheduler(FakeEngine(slots=2), turn_tokens=4)
    running, reading, waiting = (scheduler.submit(Request(p, 9)) for p in prompts(3, 30, 5))
    scheduler.step()
    scheduler.step()
    assert running.slot is not None and reading.written and not reading.new and waiting.slot is None
    for progress in (reading, waiting, running):
        assert scheduler.cancel(progress.number).reason == progress.reason == "cancelled"
    assert scheduler.cancel(99) is None and scheduler.step() == []
    assert ended(scheduler)


class Cycle(FakeEngine):
    """Repeats a text for ever, but for one place: guesses are right and then wrong."""

    def _next(self, slot, count):
        super()._next(slot, count)
        return 50 if count == 40 else count % 7


def test_guessed_tokens_are_those_that_would_come_anyway():
    results, calls = [], []
    for draft in (0, 4, 100):
        engine = Cycle(slots=1, context=64)
        scheduler = Scheduler(engine, draft=draft)
        results.append(run(scheduler, Request([0, 1, 2, 3, 4, 5, 6, 0, 1], 47)))
        calls.append(len([c for c in engine.calls if c[0] in ("decode", "verify")]))
        assert ended(scheduler)
    assert results[0] == results[1] == results[2] and results[0][0][0][31] == 50
    assert calls[0] > 3 * calls[1] > 3 * calls[2]


def test_a_guess_behind_a_stop_token_is_dropped():
    engine = Cycle(slots=1, context=64)
    scheduler = Scheduler(engine, draft=7)
    request = Request([0, 1, 2, 3, 4, 5, 6, 0, 1], 30, stop_tokens=frozenset([5]))
    assert run(scheduler, request) == [([2, 3, 4, 5], "stop")]
    assert ended(scheduler)


def test_what_came_behind_the_last_tokens_before():
    assert lookup([1, 2, 3, 4, 1, 2, 3], 2) == [4, 1]
    assert lookup([1, 2, 9, 2, 3, 2], 5) == [3, 2]
    assert lookup([1, 2, 3], 4) == lookup([7], 4) == lookup([], 4) == lookup([1, 1], 0) == []
    assert lookup([1, 1], 3) == [1]


BAD = [
    (Request([]), "the prompt is empty"),
    (Request([1, 101]), "101 is no token of this model: its ids are 0 to 100"),
    (Request([1, -1]), "-1 is no token"),
    (Request([1, 2.5]), "2.5 is no token id"),
    (Request([True]), "True is no token id"),
    (Request([1], 3, stop_tokens=frozenset([500])), "the stop tokens: 500 is no token"),
    (Request([1] * 64), "the prompt has 64 tokens, and the model was compiled for 64"),
    (Request([1] * 60, 5), "at most 4 new ones fit"),
    (Request([1], 0), "max_new_tokens is 0"),
    (Request([1], 2.0), "max_new_tokens is 2.0"),
    (Request([1], 44), "44 tokens need 11 pages of the cache, and it has 10"),
    (Request([1], 1, Sampling(temperature=-0.1)), "temperature is -0.1"),
    (Request([1], 1, Sampling(temperature=float("nan"))), "temperature is nan"),
    (Request([1], 1, Sampling(temperature="hot")), "temperature is 'hot'"),
    (Request([1], 1, Sampling(top_k=-1)), "top_k is -1"),
    (Request([1], 1, Sampling(top_k=1.5)), "top_k is 1.5"),
    (Request([1], 1, Sampling(top_p=0)), "top_p is 0"),
    (Request([1], 1, Sampling(top_p=1.1)), "top_p is 1.1"),
    (Request([1], 1, Sampling(min_p=-1)), "min_p is -1"),
    (Request([1], 1, Sampling(repetition_penalty=0)), "repetition_penalty is 0"),
    (Request([1], 1, Sampling(seed=-1)), "seed is -1"),
    (Request([1], 1, Sampling(seed=1 << 63)), "seed is 9223372036854775808"),
]


@pytest.mark.parametrize("request_, why", BAD, ids=[w for _, w in BAD])
def test_what_can_never_run_is_refused(request_, why):
    scheduler = Scheduler(FakeEngine(pages=11))
    with pytest.raises(MlircError, match=".") as e:
        scheduler.submit(request_)
    assert why in str(e.value) and "\n" not in str(e.value)
    assert not scheduler.busy


def test_numbers_may_be_numpys():
    sampling = Sampling(np.float32(0), np.int64(3), np.float64(1), 0.0, 1.0, np.uint8(2))
    request = Request(np.array([3, 4]), np.int32(2), sampling)
    assert run(Scheduler(FakeEngine()), request)[0][0] == alone([3, 4], 2)


def test_slots_that_keep_more_than_pages():
    """Prompts are read to their end in one turn, and nothing of one is taken for the beginning of another."""
    engine = FakeEngine(slots=2)
    engine.paged = False
    scheduler = Scheduler(engine, turn_tokens=5, draft=4)
    given = prompts(13, 4, 23)
    given.append(given[0] + [1])
    taken = [scheduler.submit(Request(p, 9)) for p in given]
    while scheduler.busy:
        scheduler.step()
        assert scheduler._reading is None or not scheduler._reading.written
    assert [p.tokens[len(g) :] for p, g in zip(taken, given, strict=True)] == [alone(g, 9) for g in given]
    assert all(p.reused == 0 and p.drafted == 0 for p in taken) and ended(scheduler)


def test_a_short_call_does_not_wait_for_all_the_choices_of_a_long_one():
    scheduler = Scheduler(FakeEngine(slots=2))
    many, short, text = object(), object(), prompts(5, 3)
    long = [scheduler.submit(Request(text[0], 9), many) for _ in range(20)]
    for _ in range(3):
        scheduler.step()
    one = scheduler.submit(Request(text[1], 6), short)
    while one.reason is None:
        scheduler.step()
    assert one.tokens[3:] == alone(text[1], 6)
    assert sum(p.reason is not None for p in long) <= 4
    while scheduler.busy:
        scheduler.step()
    assert all(p.tokens[5:] == alone(text[0], 9) for p in long) and ended(scheduler)


def test_calls_of_several_requests_share_the_slots_and_none_starves():
    scheduler = Scheduler(FakeEngine(slots=3))
    calls = [object() for _ in range(3)]
    for call in calls:
        for prompt in prompts(*[4] * 6):
            scheduler.submit(Request(prompt, 7), call)
    scheduler.step()
    scheduler.step()
    assert {id(p.call) for p in scheduler.requests if p.slot is not None} == set(map(id, calls))
    order = []
    while scheduler.busy:
        events = [e.request for e in scheduler.step() if e.reason]
        order += events
    assert len(order) == 18 and ended(scheduler)
    small = Scheduler(FakeEngine(slots=3, context=32, pages=12))  # with pauses for want of pages, too
    texts = prompts(9, 4, 13, 2, 8, 8, 1)
    taken = [small.submit(Request(p, 15), calls[i % 2]) for i, p in enumerate(texts)]
    while small.busy:
        small.step()
    assert [p.tokens[len(t) :] for p, t in zip(taken, texts, strict=True)] == [alone(t, 15) for t in texts]
    assert ended(small)
