"""`mlirc.LLM` over an engine without a model: texts, tokens, conversations, streams, mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import mlirc
from mlirc.errors import MlircError
from mlirc.generate.llm import LLM
from mlirc.generate.opening import Opened
from mlirc.generate.tokenizer import load_tokenizer
from support.generate.fake_engine import FakeEngine, alone
from support.generate.tokenizers import CHAT, write_tokenizer

LETTERS = 300  # of the vocabulary of the byte-level tokenizer


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(write_tokenizer(tmp_path / "words", chat_template=CHAT))


@pytest.fixture
def llm(tokenizer):
    engine = FakeEngine(vocabulary=LETTERS, context=96)
    with LLM(Opened("fake", engine, tokenizer, (1,))) as made:
        yield made
    assert engine.closed


@pytest.fixture
def wordless():
    return LLM(Opened("fake", FakeEngine(), None, ()))


def test_llm_is_the_packages():
    assert mlirc.LLM is LLM
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        mlirc.Llm  # noqa: B018


def test_one_text(llm, tokenizer):
    made = llm.generate("the quick fox", max_new_tokens=9)
    tokens = tokenizer.encode("the quick fox")
    assert made.tokens == alone(tokens, 9, vocabulary=LETTERS, stop=(1,))
    whole, prompt = tokenizer.decode(tokens + made.tokens), tokenizer.decode(tokens)
    assert made.text == whole[len(prompt) :] and whole.startswith(prompt)
    assert made.reason == "length" and made.prompt_tokens == len(tokens) and made.reused == 0
    assert 0 < made.time_to_first_token <= made.time and made.tokens_per_second > 0


def test_several_at_once_in_their_order(llm, tokenizer):
    texts = ["the", "a dog and a fox", "Stop! says the dog", "x", "jumps over"]
    made = llm.generate(texts, max_new_tokens=12)
    assert [m.tokens for m in made] == [alone(tokenizer.encode(t), 12, vocabulary=LETTERS, stop=(1,)) for t in texts]
    assert [m.text for m in made] == [llm.generate(t, max_new_tokens=12).text for t in texts]
    assert llm.generate([]) == []


def test_token_ids_with_and_without_a_tokenizer(llm, wordless):
    assert llm.generate([5, 6, 7], max_new_tokens=4).tokens == alone([5, 6, 7], 4, vocabulary=LETTERS)
    made = wordless.generate([[5, 6], [7]], max_new_tokens=4)
    as_arrays = wordless.generate([np.array([5, 6]), np.array([7])], max_new_tokens=4)
    assert [m.tokens for m in as_arrays] == [m.tokens for m in made]
    assert [m.tokens for m in made] == [alone([5, 6], 4), alone([7], 4)] and made[0].text is None


def test_the_models_stop_strings_end_a_text_too(tokenizer):
    def opened(words, stops):
        return LLM(Opened("fake", FakeEngine(vocabulary=LETTERS, context=96), words, (), stops=stops))

    with opened(tokenizer, ()) as plain:
        text = plain.generate("the quick fox", max_new_tokens=20).text
    stop = text[len(text) // 2 :][:2]
    with opened(tokenizer, (stop,)) as llm:
        made = llm.generate("the quick fox", max_new_tokens=20)
        assert (made.text, made.reason) == (text[: text.index(stop)], "stop")
        assert llm.generate("the quick fox", max_new_tokens=20, ignore_eos=True).text == text
        begin = text[0]
        assert llm.generate("the quick fox", max_new_tokens=20, stop=begin).text == ""
    with opened(None, (stop,)) as wordless:
        assert wordless.generate([5], max_new_tokens=2, ignore_eos=True).tokens == alone([5], 2, vocabulary=LETTERS)
        with pytest.raises(MlircError, match="has stop_strings, which need a tokenizer"):
            wordless.generate([5])


def test_without_a_limit_the_context_is(llm):
    assert len(llm.generate([9] * 90, ignore_eos=True).tokens) == 6


def test_the_models_own_end_and_others(llm):
    tokens = alone([5, 6], 30, vocabulary=LETTERS)
    ended = llm.generate([5, 6], max_new_tokens=30, stop_tokens=[tokens[7]])
    assert ended.tokens == tokens[: tokens.index(tokens[7]) + 1] and ended.reason == "stop"
    llm.eos = (tokens[4],)
    assert llm.generate([5, 6], max_new_tokens=30).tokens == tokens[: tokens.index(tokens[4]) + 1]
    assert llm.generate([5, 6], max_new_tokens=30, ignore_eos=True).tokens == tokens


def test_one_stop_token_is_no_list_of_its_characters(llm):
    tokens = llm.generate([5, 6], max_new_tokens=30, ignore_eos=True).tokens
    with pytest.raises(MlircError, match=re.escape("'<|none|>' is no token of this model's tokenizer")):
        llm.generate([5, 6], stop_tokens="<|none|>")
    assert llm.generate([5, 6], max_new_tokens=30, stop_tokens=tokens[7], ignore_eos=True).tokens == tokens[:8]
    assert llm.generate([5, 6], max_new_tokens=5, stop_tokens=None, stop=None).tokens == tokens[:5]


def test_a_stop_tokens_text_is_not_shown(llm, tokenizer):
    tokens = alone([5, 6], 30, vocabulary=LETTERS)
    made = llm.generate([5, 6], max_new_tokens=30, stop_tokens=[tokens[9]])
    without = llm.generate([5, 6], max_new_tokens=len(made.tokens) - 1)
    assert made.text == without.text and made.tokens[:-1] == without.tokens


def test_stop_strings_over_several_tokens(llm):
    whole = llm.generate("the", max_new_tokens=40, ignore_eos=True).text
    letters = next(i for i in range(5, len(whole)) if "\ufffd" not in whole[i : i + 4])
    stop = whole[letters : letters + 4]
    made = llm.generate("the", max_new_tokens=40, ignore_eos=True, stop=["never there", stop])
    assert made.text == whole[: whole.index(stop)] and made.reason == "stop"
    streamed = llm.stream("the", max_new_tokens=40, ignore_eos=True, stop=stop)
    assert "".join(streamed) == made.text and streamed.result.tokens == made.tokens


def test_streams_beside_each_other(llm):
    first, second = llm.stream("the fox", max_new_tokens=15), llm.stream("a dog", max_new_tokens=9)
    pieces = [next(iter(first)), *second]
    assert all(pieces)
    rest = "".join(first)
    assert pieces[0] + rest == first.result.text == llm.generate("the fox", max_new_tokens=15).text
    assert "".join(pieces[1:]) == second.result.text == llm.generate("a dog", max_new_tokens=9).text


def test_tokens_of_a_stream(wordless):
    stream = wordless.stream([3], max_new_tokens=5)
    assert list(stream.tokens()) == alone([3], 5) == stream.result.tokens
    with pytest.raises(MlircError, match="no tokenizer, so that there is no text"):
        next(iter(wordless.stream([3])))


def test_a_stream_that_nobody_reads_frees_its_pages(llm):
    with llm.stream("the fox") as stream:
        next(iter(stream))
        assert len(llm.scheduler.requests) == 1
    for _ in llm.stream("the dog"):
        break
    assert not llm.scheduler.busy and llm.scheduler.pool.available == llm.engine.pages - 1


def test_a_conversation(llm, tokenizer):
    messages = [{"role": "user", "content": "the fox?"}]
    made = llm.chat((m for m in messages), max_new_tokens=6)
    assert made.tokens == alone(tokenizer.encode_chat(messages), 6, vocabulary=LETTERS, stop=(1,))
    assert "".join(llm.stream(messages, max_new_tokens=6)) == made.text


def test_guessing_changes_nothing(tokenizer):
    results = []
    for draft in (0, 7):
        engine = FakeEngine(vocabulary=3, context=96)  # so few tokens that guesses are right at times
        results.append(LLM(Opened("fake", engine, tokenizer, ()), draft=draft).generate([0, 1], max_new_tokens=60))
    assert results[0].tokens == results[1].tokens and results[1].drafted > results[1].accepted > 0


MISTAKES = [
    (lambda llm: llm.generate(""), "the prompt is empty: give at least one character"),
    (lambda llm: llm.generate([[]]), "the prompt is empty: give at least one token"),
    (lambda llm: llm.generate("the", stop=""), "the stop string '' is empty"),
    (lambda llm: llm.generate("the", stop_tokens=["<|none|>"]), "'<|none|>' is no token of this model's tokenizer"),
    (
        lambda llm: llm.generate("the", stop_tokens=["<|none|>", 1.5]),
        "1.5]: give token ids, tokens as texts, or a list",
    ),
    (lambda llm: llm.generate("the", stop=7), "stop is 7: give a text or a list of texts"),
    (lambda llm: llm.generate(7), "the prompt is 7: give a text, token ids, or a list of messages"),
    (lambda llm: llm.generate("the", stop_tokens=[LETTERS]), f"{LETTERS} is no token of this model"),
    (
        lambda llm: llm.generate("the", temprature=1),
        "'temprature' is no option of generating: sampling has temperature",
    ),
    (lambda llm: llm.generate("the", temperature=-1), "temperature is -1"),
    (lambda llm: llm.generate("the " * 99), "tokens, and the model was compiled for 96"),
    *((lambda llm, p=p: llm.generate(p), "give a text, token ids, or a list of messages")
      for p in (b"a", {1, 2}, np.array(3), np.array("abc"), iter([1]))),
    *((lambda llm, p=p: llm.generate(p), "is no token id") for p in ([None], [1, "a"], [float("nan")], [[[1]]],
      np.ones((2, 300), int))),
    *((lambda llm, t=t: llm.generate([t]), f"{t} is no token of this model") for t in (-1, LETTERS, 1 << 70)),
    (lambda llm: llm.generate("a\udcff"), "its character 1 is none: give UTF-8"),
    (lambda llm: llm.generate("a", stop_tokens="\ud800"), "its character 0 is none: give UTF-8"),
    (lambda llm: llm.chat([{"role": "user", "content": "\ud800"}]), "is none: give UTF-8"),
    (lambda llm: llm.chat([{"role": "user", "content": "a", "data": b"a"}]), "the messages hold what JSON does not"),
    (lambda llm: llm.chat(7), "a conversation is a list of messages"),
    (lambda llm: llm.generate("the", temperature=10**400), "temperature is 1000"),
    (lambda llm: llm.chat("hello"), "a conversation is a list of messages"),
    (lambda llm: llm.chat([]), "a conversation is a list of messages"),
    (lambda llm: llm.chat([{"role": "user"}]), "is no message"),
    (lambda llm: LLM(llm.opened, draft=-1), "draft is -1"),
    (lambda llm: LLM(llm.opened, turn_tokens=0), "turn_tokens is 0"),
]  # fmt: skip


@pytest.mark.parametrize("call, why", MISTAKES)
def test_mistakes_are_one_line_and_leave_nothing(llm, call, why):
    with pytest.raises(MlircError) as e:
        call(llm)
    assert why in str(e.value) and "\n" not in str(e.value)
    assert not llm.scheduler.busy


def test_of_several_prompts_all_or_none_run(llm):
    with pytest.raises(MlircError, match="is no token of this model"):
        llm.generate([[1, 2], [3, 4], [9999]])
    assert not llm.scheduler.busy


def test_text_needs_a_tokenizer(wordless):
    for call in (wordless.generate, wordless.stream):
        with pytest.raises(MlircError, match=r"fake has no tokenizer \(tokenizer.json\): give token ids"):
            call("the")
    with pytest.raises(MlircError, match="stop strings need a tokenizer"):
        wordless.generate([1], stop="x")
    with pytest.raises(MlircError, match="the stop token 'x' needs a tokenizer"):
        wordless.generate([1], stop_tokens=["x"])


def test_a_closed_model_says_so(llm):
    stream = llm.stream("the")
    next(iter(stream))
    llm.close()
    for call in (lambda: llm.generate("the"), lambda: list(stream)):
        with pytest.raises(MlircError, match="the model was closed"):
            call()


def test_the_python_of_the_page(tokenizer, monkeypatch, capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "generating.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    code = code.replace("[1, 450, 4996]", "[1, 45, 49]")  # the tokenizer here has few tokens
    code = re.sub(r'^mlirc.LLM\("whisper.*\n', "", code, flags=re.MULTILINE)  # what hears has tests of its own
    opened = Opened("fake", FakeEngine(vocabulary=LETTERS, context=96), tokenizer, (1,))
    monkeypatch.setattr("mlirc.generate.llm.open_generating", lambda model, **options: opened)
    monkeypatch.setattr("mlirc.generate.llm.DEFAULT_NEW_TOKENS", 20)
    exec(code.replace("max_new_tokens=100", "max_new_tokens=20"), {})
    assert capsys.readouterr().out and opened.engine.closed


def test_what_is_no_generating_model(tmp_path):
    (tmp_path / "m.ptx").write_text("x")
    (tmp_path / "empty").mkdir()
    cases = [
        (tmp_path / "m.ptx", "a compiled model without a cache: generating text needs a Hugging Face folder"),
        (tmp_path / "none", "no such folder"),
        (tmp_path / "empty", r"neither a compiled generating model \(generation.json\) nor a Hugging Face folder"),
    ]
    for path, why in cases:
        with pytest.raises(MlircError, match=why):
            LLM(path, device="cpu")
    with pytest.raises(MlircError, match="device 'gpu'"):
        LLM(tmp_path / "empty", device="gpu")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    with pytest.raises(MlircError, match="holds no tokenizer"):
        LLM(tmp_path / "m", device="cpu", tokenizer=tmp_path / "empty")
