"""The server as OpenAI's client sees it: forms, options, and the same texts as without a server."""

from __future__ import annotations

import openai
import pytest

from mlirc.generate.engine import Sampling
from support.serve.running import MODEL, running

PROMPT = "the quick brown"


@pytest.fixture(scope="module")
def server():
    with running(context=256) as found:
        yield found


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def test_a_text_completion(server, client):
    made = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=40, temperature=0)
    text, tokens, reason = server.alone(PROMPT, 40)
    assert (made.choices[0].text, made.choices[0].finish_reason) == (text, reason)
    assert made.object == "text_completion" and made.model == MODEL and made.id.startswith("cmpl-")
    read = len(server.words.encode(PROMPT))
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (read, len(tokens))
    assert made.usage.total_tokens == read + len(tokens)


def test_a_text_completion_has_16_tokens_unless_told_otherwise(server, client):
    made = client.completions.create(model=MODEL, prompt=[1, 2, 3], temperature=0)
    assert made.choices[0].text == server.alone([1, 2, 3], 16)[0]
    assert made.usage.completion_tokens == len(server.alone([1, 2, 3], 16)[1])


def test_a_chat(server, client):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "fox?"}]},
    ]
    made = client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=30, temperature=0)
    text, _, reason = server.alone("<system>Be brief.\n<user>the fox?\n", 30)
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == (text, reason)
    assert made.choices[0].message.role == "assistant" and made.object == "chat.completion"


def test_a_chat_without_a_limit_goes_on_to_the_end_of_the_context(server, client):
    messages = [{"role": "user", "content": "a"}]
    read = len(server.words.encode("<user>a\n"))
    made = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    text, _, reason = server.alone("<user>a\n", server.engine.context - read)
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == (text, reason)


@pytest.mark.parametrize("usage", [False, True])
def test_a_streamed_text_completion(server, client, usage):
    options = {"stream_options": {"include_usage": True}} if usage else {}
    pieces = list(
        client.completions.create(model=MODEL, prompt="fox", max_tokens=25, temperature=0, stream=True, **options)
    )
    text, tokens, reason = server.alone("fox", 25)
    if usage:
        last = pieces.pop()
        assert last.choices == [] and last.usage.completion_tokens == len(tokens)
    assert "".join(p.choices[0].text for p in pieces) == text
    assert [p.choices[0].finish_reason for p in pieces] == [None] * (len(pieces) - 1) + [reason]
    assert all(p.usage is None for p in pieces) and len({p.id for p in pieces}) == 1


def test_a_streamed_chat(server, client):
    messages = [{"role": "user", "content": "dog"}]
    pieces = list(
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens=25, temperature=0, stream=True)
    )
    text, _, reason = server.alone("<user>dog\n", 25)
    assert pieces[0].choices[0].delta.role == "assistant" and pieces[0].object == "chat.completion.chunk"
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == text
    assert [p.choices[0].finish_reason for p in pieces][-1] == reason


def test_sampling_is_the_requests(server, client):
    more = {"top_k": 5, "min_p": 0.25, "repetition_penalty": 1.5}
    made = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=20, temperature=0.5, top_p=0.75, seed=11, extra_body=more
    )
    sampling = Sampling(0.5, 5, 0.75, 0.25, 1.5, 11)
    assert made.choices[0].text == server.alone(PROMPT, 20, sampling)[0]


def test_the_defaults_are_openais(server, client):
    """Temperature 1, and another seed each time."""
    texts = {client.completions.create(model=MODEL, prompt=PROMPT).choices[0].text for _ in range(4)}
    assert len(texts) == 4


def test_several_choices_of_several_prompts(server, client):
    prompts = ["the fox", "the dog"]
    made = client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=12, temperature=1, seed=5)
    wanted = [server.alone(p, 12, Sampling(temperature=1.0, seed=5 + i)) for p in prompts for i in range(2)]
    assert [c.text for c in made.choices] == [text for text, _, _ in wanted]
    assert [c.index for c in made.choices] == [0, 1, 2, 3]
    assert made.usage.prompt_tokens == sum(len(server.words.encode(p)) for p in prompts)
    assert made.usage.completion_tokens == sum(len(tokens) for _, tokens, _ in wanted)

    pieces = list(
        client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=12, temperature=1, seed=5, stream=True)
    )
    streamed = ["".join(p.choices[0].text for p in pieces if p.choices[0].index == i) for i in range(4)]
    assert streamed == [text for text, _, _ in wanted]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_in_front_of_it(server, client, stream):
    whole = server.alone(PROMPT, 60)[0]
    stop = whole[9:12]
    made = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=60, temperature=0, stop=[stop, "never there"], stream=stream
    )
    choices = [p.choices[0] for p in made] if stream else made.choices
    assert "".join(c.text for c in choices) == whole[: whole.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_models(server, client):
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "mlirc"
    with pytest.raises(openai.NotFoundError, match="'other' does not exist: 'a/model' is served"):
        client.models.retrieve("other")


def test_what_an_earlier_call_left_in_the_cache_is_counted(server, client):
    prompt = list(range(20, 33))
    for known in (0, 12):
        made = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1, temperature=0)
        assert made.usage.prompt_tokens_details.cached_tokens == known
