"""Large bodies are refused by their longest text before they become values, and by nothing else."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from mlirc.generate.refusals import RequestError
from mlirc.generate.tokenizer import LONG
from mlirc.serve import app, bodies
from mlirc.serve.bodies import least_text
from support.generate.fake_engine import FakeEngine
from support.randomness import generator
from support.serve.running import MODEL, Words, running

PIECES = ["a", '"', "\\", '\\"', "é", "\n", "\x00", "😀", "/", "", "\\u0041", "x" * 50]


def texts_of(value) -> list[str]:
    if isinstance(value, dict):
        return [t for k, v in value.items() for t in (k, *texts_of(v))]
    return [t for v in value for t in texts_of(v)] if isinstance(value, list) else [value] if type(value) is str else []


@pytest.mark.parametrize("ascii_only", [True, False])
def test_no_text_is_said_to_be_longer_than_the_longest(ascii_only):
    g = generator()

    def text() -> str:
        return "".join(PIECES[i] for i in g.integers(0, len(PIECES), int(g.integers(0, 40))))

    for _ in range(300):
        value = {text(): [text(), 3, {"p": text()}], "b": text(), "c": None}
        body = json.dumps(value, ensure_ascii=ascii_only).encode()
        found = least_text(bytearray(body))
        longest = max(len(t.encode()) for t in texts_of(value))
        assert found <= longest
        if b"\\" not in body:
            assert found == longest
        assert least_text(body[: int(g.integers(len(body)))]) <= longest


def test_plain_texts_are_told_to_the_byte_and_many_are_left_to_the_parser():
    body = json.dumps({"prompt": "fox " * 5000, "user": "me"}).encode()
    assert least_text(body) == 20_000
    assert least_text(json.dumps({"prompt": "\n" + "fox " * 5000}).encode()) == 20_002 // 6
    assert least_text(json.dumps(["fox " * 5000, *["a"] * bodies._MOST_QUOTES]).encode()) == 0
    assert least_text(b"") == least_text(b"[1, 2]") == least_text(b'"') == 0


@pytest.mark.parametrize("chat", [True, False])
def test_a_text_that_is_too_long_never_becomes_a_value(monkeypatch, chat):
    parsed = []
    monkeypatch.setattr(app, "parse_json", lambda *a: parsed.append(a) or json.loads(a[0]))
    with running(FakeEngine(vocabulary=Words().size, context=128), largest_body=1 << 20) as server:
        address = f"{server.url}/v1/{'chat/' if chat else ''}completions"

        def ask(text: str, **more) -> httpx2.Response:
            given = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
            return httpx2.post(address, json={"model": MODEL, "max_tokens": 2, **given, **more}, timeout=600)

        answer = ask("fox " * (LONG // 4 + 1))
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["code"] == "context_length_exceeded" and not parsed
        assert error["param"] == ("messages" if chat else "prompt")
        assert f"the text has {LONG + 4:,} bytes" in error["message"]
        answer = ask("fox", metadata={str(i): "x" * 50 for i in range(1200)})  # large, and no text of it is
        assert answer.status_code == 200 and len(parsed) == 1


def test_a_long_text_is_refused_before_its_tokens_are_a_list():
    words = Words()
    text = "the quick brown fox " * 40_000
    with pytest.raises(
        RequestError, match=r"^the text has 2\d\d,\d\d\d tokens, and the model was compiled for 170,000"
    ):
        words.encode(text, 170_000)
    assert len(words.encode(text, 1_000_000)) > 200_000


def test_the_thread_of_long_texts_runs_where_others_leave_a_core():
    def priority() -> int:
        app._step_back()
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(priority).result() == app._NICE >= before
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
