"""Calls that are refused: the status, one line that says why, the field, all in OpenAI's form."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import types
from urllib.parse import urlsplit

import openai
import pytest

from mlirc.serve.server import address, bind, serve
from support.generate.fake_engine import FakeEngine
from support.serve.running import MODEL, Words, running
from support.serve.waiting import Gated


@pytest.fixture(scope="module")
def server():
    with running(context=64) as found:
        yield found


def send(server, method, path, body=b"", headers=None):
    """(status, value of the answer's JSON)."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
    connection.request(method, path, body, {"Content-Type": "application/json"} if headers is None else headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


TEXT = {"model": MODEL, "prompt": "a"}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
REFUSED = [
    (TEXT, {"model": "gpt-4"}, 404, "model", "the model 'gpt-4' does not exist"),
    (TEXT, {"model": 3}, 400, "model", "model is 3: give a text"),
    (TEXT, {"prompt": ["a", ""], "max_tokens": 64}, 400, "max_tokens", "at most"),
    (TEXT, {"prompt": []}, 400, "prompt", "prompt: give a text"),
    (TEXT, {"prompt": [1, "a"]}, 400, "prompt", "prompt: give a text"),
    (TEXT, {"prompt": [1, True]}, 400, "prompt", "prompt: give a text"),
    (TEXT, {"prompt": [5000]}, 400, "prompt", "5000 is no token of this model"),
    (TEXT, {"prompt": [-1]}, 400, "prompt", "-1 is no token"),
    (TEXT, {"prompt": [1] * 64}, 400, "prompt", "the prompt has 64 tokens"),
    (TEXT, {"prompt": [1] * 50, "max_tokens": 20}, 400, "max_tokens", "at most 14 new ones fit"),
    (TEXT, {"prompt": "\ud800"}, 400, "prompt", "which is no character"),
    (TEXT, {"max_tokens": 0}, 400, "max_tokens", "max_tokens is 0"),
    (TEXT, {"max_tokens": 1.5}, 400, "max_tokens", "give a whole number"),
    (TEXT, {"temperature": -1}, 400, "temperature", "temperature is -1.0"),
    (TEXT, {"temperature": "warm"}, 400, "temperature", "give a number"),
    (TEXT, {"temperature": True}, 400, "temperature", "give a number"),
    (TEXT, {"temperature": float("nan")}, 400, "temperature", "give a number"),
    (TEXT, {"temperature": 10**400}, 400, "temperature", "give a number"),
    (TEXT, {"top_p": 0}, 400, "top_p", "top_p is 0.0"),
    (TEXT, {"n": 129}, 400, "n", "give 1 to 128"),
    (TEXT, {"seed": 1 << 63}, 400, "seed", "seed is"),
    (TEXT, {"stop": [""]}, 400, "stop", "none of them empty"),
    (TEXT, {"stop": ["a"] * 17}, 400, "stop", "at most 16"),
    (TEXT, {"stream": 1}, 400, "stream", "give true or false"),
    (TEXT, {"stream_options": {"include_usage": True}}, 400, "stream_options", "goes with stream"),
    (TEXT, {"logprobs": 0}, 400, "logprobs", "logprobs is not supported: leave it out"),
    (TEXT, {"echo": True}, 400, "echo", "not supported"),
    (TEXT, {"messages": []}, 400, "messages", "unknown field 'messages'"),
    (CHAT, {"logprobs": True, "top_logprobs": 2}, 400, "logprobs", "not supported"),
    (CHAT, {"frequency_penalty": 0.5}, 400, "frequency_penalty", "not supported"),
    (CHAT, {"tools": [{"type": "function"}]}, 400, "tools", "not supported"),
    (CHAT, {"response_format": {"type": "json_object"}}, 400, "response_format", "not supported"),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 400}]}, 400, "messages", "the prompt has"),
    (CHAT, {"max_completion_tokens": 64}, 400, "max_completion_tokens", "at most"),
    (CHAT, {"messages": []}, 400, "messages", "at least one"),
    (CHAT, {"messages": ["hello"]}, 400, "messages[0]", "role and content"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0].content", "give a text"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400, "messages[0].content", "parts of type 'text'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "change", "status", "param", "why"), REFUSED, ids=[str(r[1])[:50] for r in REFUSED])
def test_what_does_not_fit_is_refused(server, call, change, status, param, why):
    path = "/v1/chat/completions" if call is CHAT else "/v1/completions"
    found, answer = send(server, "POST", path, json.dumps({**call, **change}))
    error = answer["error"]
    assert (found, error["param"], error["type"]) == (status, param, "invalid_request_error"), error
    assert "\n" not in error["message"] and why in error["message"], error
    too_long = any(what in why for what in ("the prompt has", "at most 14", "for 64")) or why == "at most"
    if too_long:
        assert error["code"] == "context_length_exceeded", error


def test_what_asks_for_nothing_is_taken(server):
    nothing = {
        "logprobs": None, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "n": 1, "tools": [],
        "response_format": {"type": "text"}, "user": "me", "stop": None, "stream": False,
    }  # fmt: skip
    assert send(server, "POST", "/v1/chat/completions", json.dumps({**CHAT, **nothing, "max_tokens": 2}))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "why"),
    [
        ("POST", "/v1/completions", b"{", None, 400, "the body is not JSON"),
        ("POST", "/v1/completions", b"[" * 5000, None, 400, "not JSON"),
        ("POST", "/v1/completions", b"[]", None, 400, "no JSON object"),
        ("POST", "/v1/completions", b"\xff", None, 400, "not JSON"),
        ("POST", "/v1/completions", b" " * ((1 << 16) + 1), None, 413, "larger than 65,536 bytes"),
        ("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"}, 415, "application/json"),
        ("GET", "/v1/completions", b"", None, 405, "Method Not Allowed"),
        ("POST", "/v1/embeddings", b"{}", None, 404, "/v1/embeddings"),
        ("GET", "/v1/models/other", b"", None, 404, "'other' does not exist"),
    ],
)
def test_calls_that_are_none(server, method, path, body, headers, status, why):
    found, answer = send(server, method, path, body, headers)
    assert found == status and why in answer["error"]["message"]


def test_as_openais_client_sees_it(server):
    with server.client() as client:
        with pytest.raises(openai.BadRequestError, match="at most 14 new ones fit") as caught:
            client.completions.create(model=MODEL, prompt=[1] * 50, max_tokens=20)
        assert (caught.value.type, caught.value.code) == ("invalid_request_error", "context_length_exceeded")
        with pytest.raises(openai.NotFoundError) as missing:
            client.completions.create(model="other", prompt="a")
        assert missing.value.code == "model_not_found"


def test_more_requests_than_the_server_takes_are_told_to_come_again():
    engine = Gated(vocabulary=Words().size)
    with running(engine, most=2) as server, server.client() as client:
        streams = [client.completions.create(model=MODEL, prompt="a", max_tokens=5, stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="2 requests are at work or wait"):
            client.completions.create(model=MODEL, prompt="a", max_tokens=5)
        assert send(server, "GET", "/health") == (200, {"status": "ok", "requests": 2})
        for _ in range(10):
            engine.gate.release()
        assert all(list(s)[-1].choices[0].finish_reason for s in streams)
        engine.gate.release(10)
        client.completions.create(model=MODEL, prompt="a", max_tokens=5)


def test_more_sequences_in_a_call_than_are_ever_taken_are_refused_before_they_are_made():
    """Each prompt is one that fits: made first, a body of a megabyte would be hundreds of millions of requests."""
    with running(most=9, largest_body=1 << 20) as server, server.client() as client:
        with pytest.raises(openai.BadRequestError, match="10 sequences in one call: 9 are taken at once"):
            client.completions.create(model=MODEL, prompt=["a", "b"], n=5, max_tokens=5)
        encoded = []
        server.words.encode = lambda text, most: encoded.append(text)
        with pytest.raises(openai.BadRequestError, match="32,000,000 sequences in one call"):
            client.completions.create(model=MODEL, prompt=[[1]] * 250_000, n=128, max_tokens=5)
        assert not encoded and server.worker.active == 0


class Failing(FakeEngine):
    def decode(self):
        raise RuntimeError("the device is gone")


def test_an_engine_that_fails_ends_every_call_and_the_servers_health():
    with running(Failing(vocabulary=Words().size)) as server, server.client() as client:
        with pytest.raises(openai.InternalServerError, match="stopping"):
            client.completions.create(model=MODEL, prompt="a", max_tokens=5)
        assert str(server.worker.failure) == "the device is gone"
        assert send(server, "GET", "/health")[0] == 503
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=MODEL, prompt="a", max_tokens=5)
        assert caught.value.status_code == 503


def test_a_server_whose_engine_fails_ends_with_the_failure():
    words, answers = Words(), []

    def call(url: str) -> None:
        server = types.SimpleNamespace(url=url)
        while not answers:
            with contextlib.suppress(ConnectionRefusedError):
                answers.append(send(server, "POST", "/v1/completions", json.dumps(TEXT)))

    with bind("127.0.0.1", 0) as bound:
        client = threading.Thread(target=call, args=(address(bound),))
        client.start()
        with pytest.raises(RuntimeError, match="the device is gone"):
            serve(Failing(vocabulary=words.size), words, MODEL, (), bound)
        client.join()
    assert answers[0][0] == 503
