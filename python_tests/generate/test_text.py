"""Tokens as text while they come: the pieces are the text, no character is halved, nothing of a stop string shows."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc.errors import MlircError
from mlirc.generate.text import Detokenizer, StopStrings, TextReader
from support.generate.tokenizers import by_bytes, by_pieces

BYTES, PIECES = (tokenizers.Tokenizer.from_str(t) for t in (by_bytes(), by_pieces()))
KINDS = pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
TEXTS = ["the quick fox", "né à côté, 漢字かな交じり文。", "a 🦊👩‍👩‍👧 b", "  two  spaces ", "\n\n\tthe\n", "x", "�a"]


def decode(tokenizer):
    return lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=True)


def pieces_of(tokenizer, tokens, prompt=()):
    reader = Detokenizer(decode(tokenizer), prompt)
    return [*(reader.push(t) for t in tokens), reader.end()]


@KINDS
@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_are_the_text(tokenizer, text):
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = pieces_of(tokenizer, tokens)
    assert "".join(pieces) == tokenizer.decode(tokens) == text
    if "�" not in text:
        assert pieces[-1] == "" and not any("�" in p for p in pieces)


@KINDS
@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text(max_size=40), cut=st.integers(0, 60))
def test_any_text_behind_any_beginning_of_it(tokenizer, text, cut):
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    before, after = tokens[:cut], tokens[cut:]
    pieces = pieces_of(tokenizer, after, before)
    whole = tokenizer.decode(tokens)
    known = tokenizer.decode(before).rstrip("�")
    assert known + "".join(pieces) == whole or "�" in text


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tokens=st.lists(st.integers(0, 258), max_size=200))
def test_bytes_of_no_character_lose_no_letters(tokens):
    # A model may sample anything. How many replacement characters it makes depends on what follows; letters do not.
    found = "".join(pieces_of(BYTES, tokens))
    letters = [c for c in BYTES.decode(tokens) if c.isascii() and c.isalpha()]
    assert [c for c in found if c.isascii() and c.isalpha()] == letters


def test_special_tokens_between_words_hide_no_space():
    the, fox = (PIECES.encode(t).ids for t in ("the", "fox"))
    for between in (1, 3, 200):
        assert "".join(pieces_of(PIECES, [*the, *([1] * between), *fox])) == ("the fox" if between < 60 else "thefox")


@KINDS
def test_bytes_without_an_end_are_given_up(tokenizer):
    token = tokenizer.encode("é", add_special_tokens=False).ids[-1]
    reader = Detokenizer(decode(tokenizer))
    assert not "".join(reader.push(token) for _ in range(500)).strip("�")
    letter = tokenizer.encode("é", add_special_tokens=False).ids[-2:]
    assert "".join(map(reader.push, [tokenizer.token_to_id("x"), *letter])).endswith("xé")


def test_a_token_costs_no_more_late_than_early():
    lengths = []
    reader = Detokenizer(lambda tokens: lengths.append(len(tokens)) or decode(BYTES)(tokens))
    tokens = BYTES.encode("the quick brown fox 漢字 " * 40, add_special_tokens=False).ids
    for token in tokens:
        reader.push(token)
    assert len(tokens) > 300 and max(lengths) < 12


def test_a_stop_string_over_several_tokens_and_pieces():
    stops = StopStrings(["</end>", "STOP"])
    assert [stops.push(p) for p in ["ab<", "/e", "x", "y</e", "nd", ">tail", "more"]] == [
        "ab",
        "",
        "</ex",
        "y",
        "",
        "",
        "",
    ]
    assert stops.stopped and stops.end() == ""


def test_the_first_of_several_stop_strings_counts():
    stops = StopStrings(["cd", "b"])
    assert stops.push("abcd") == "a" and stops.stopped
    held = StopStrings(["aab"])
    assert [held.push(c) for c in "aaab"] == ["", "", "a", ""] and held.stopped


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    text=st.text("ab", max_size=20), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), data=st.data()
)
def test_any_pieces_show_what_the_whole_text_would(text, stops, data):
    filter_, shown, rest = StopStrings(stops), "", text
    while rest and not filter_.stopped:
        n = data.draw(st.integers(1, len(rest)))
        shown, rest = shown + filter_.push(rest[:n]), rest[n:]
    shown += filter_.end()
    ends = [i for i in range(len(text)) if any(text.startswith(s, i) for s in stops)]
    if not ends:
        assert shown == text and not filter_.stopped
    else:
        # Pieces are looked at as they come: a stop string that is whole earlier ends the text, though a longer one
        # may begin in front of it.
        whole = min((i + len(s), i) for s in stops for i in ends if text.startswith(s, i))
        assert filter_.stopped and shown == text[: len(shown)] and len(shown) <= whole[1]


@pytest.mark.parametrize("stop", ["", 5])
def test_an_empty_stop_string_is_refused(stop):
    with pytest.raises(MlircError, match="is empty or no text"):
        StopStrings([stop])


def test_a_reader_ends_in_front_of_the_stop_string():
    tokens = BYTES.encode("the fox 🦊 Stop! says the dog", add_special_tokens=False).ids
    reader = TextReader(decode(BYTES), stops=["Stop!"])
    shown = ""
    for token in tokens:
        shown += reader.push(token)
        if reader.stopped:
            break
    assert reader.stopped and shown == "the fox 🦊 "


def test_text_that_was_held_back_comes_at_the_end():
    tokens = BYTES.encode("the Sto", add_special_tokens=False).ids
    reader = TextReader(decode(BYTES), stops=["Stop!"])
    assert "".join(map(reader.push, tokens)) == "the " and reader.end() == "Sto"
    half = BYTES.encode("a🦊", add_special_tokens=False).ids[:-1]
    reader = TextReader(decode(BYTES))
    assert "".join(map(reader.push, half)) == "a" and set(reader.end()) == {"�"}
