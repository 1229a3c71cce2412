"""A folder's tokenizer and chat template give what transformers makes of them; hostile ones do nothing."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import pytest
import tokenizers
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from mlirc.errors import MlircError
from mlirc.generate.artifact import _copy_tokenizer
from mlirc.generate.chat import ChatTemplate
from mlirc.generate.refusals import RequestError
from mlirc.generate.tokenizer import load_tokenizer
from support.generate.tokenizers import CHAT, by_bytes, by_pieces, write_tokenizer

TALK = [
    {"role": "system", "content": " be brief "},
    {"role": "user", "content": "Hello <|user|> {{ 7*7 }} 漢字"},
]


@pytest.mark.parametrize("kind", [by_bytes, by_pieces])
@pytest.mark.parametrize("config", [{}, {"add_bos_token": False, "add_eos_token": True}])
def test_tokens_are_those_of_transformers(tmp_path, kind, config):
    folder = write_tokenizer(tmp_path, kind(), **config)
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("the quick fox", "", " né 🦊", "</s>the"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        tokens = theirs(text)["input_ids"]
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)


def test_conversations_are_as_transformers_renders_them(tmp_path):
    folder = write_tokenizer(tmp_path, chat_template=CHAT)
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for talk in (TALK, TALK[1:]):  # the same process answers again
        assert ours.encode_chat(talk) == theirs.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    ours.close()


def test_a_template_is_in_a_file_or_one_of_several(tmp_path):
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHAT}]
    folder = write_tokenizer(tmp_path, chat_template=several)
    assert load_tokenizer(folder)._chat._template == CHAT
    (folder / "chat_template.jinja").write_text("{{ 1 }}")
    assert load_tokenizer(folder)._chat._template == "{{ 1 }}"
    assert load_tokenizer(folder)._chat._special == {"bos_token": "<s>", "eos_token": "</s>"}


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert load_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x01")
    with pytest.raises(MlircError, match=r"its tokenizer is tokenizer.model, without tokenizer.json: write that with"):
        load_tokenizer(tmp_path)


def test_a_model_without_a_template_says_so(tmp_path):
    with pytest.raises(MlircError, match="the model has no chat template"):
        load_tokenizer(write_tokenizer(tmp_path)).encode_chat(TALK)


def padded() -> str:
    """A tokenizer that asks for 2^60 tokens of padding, and cuts what is longer than one."""
    parts = json.loads(by_bytes())
    parts["padding"] = {"strategy": {"Fixed": 1 << 60}, "direction": "Right", "pad_to_multiple_of": None,
                        "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"}  # fmt: skip
    parts["truncation"] = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    return json.dumps(parts)


def test_lengths_of_the_file_are_not_followed(tmp_path):
    assert len(load_tokenizer(write_tokenizer(tmp_path, padded())).encode("the fox")) > 2


BROKEN = {
    "no JSON": ("{", "not a usable tokenizer"),
    "no model": ('{"version": "1.0"}', "not a usable tokenizer"),
    "deep": ("[" * 100_000, "not a usable tokenizer"),
    "NUL": ("\0", "not a text file"),
    "a pattern that is none": (by_bytes().replace('"add_prefix_space":false', '"add_prefix_space":7'), "not a usable"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_damaged_tokenizers_are_refused(tmp_path, name):
    text, why = BROKEN[name]
    with pytest.raises(MlircError, match=why) as e:
        load_tokenizer(write_tokenizer(tmp_path, text))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_links_out_of_the_folder_are_refused(tmp_path, name):
    folder = write_tokenizer(tmp_path / "model")
    (tmp_path / name).write_text("{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(MlircError, match="a link that leads out of the folder"):
        load_tokenizer(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_link_to_nothing_is_not_a_file_that_is_not_there(tmp_path, name):
    """As a download that did not end leaves it."""
    folder = write_tokenizer(tmp_path)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("nothing")
    with pytest.raises(MlircError, match=f"{name}: cannot be read"):
        load_tokenizer(folder)


def test_a_config_names_no_code(tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    folder = write_tokenizer(tmp_path, auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, tokenizer_class="Evil")
    assert load_tokenizer(folder).encode("the")
    assert not (tmp_path / "marker").exists()


HOSTILE = [
    ("{{ 'x' * 4000000000 }}", "MemoryError"),
    ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "access to attribute '__class__'"),
    ("{{ raise_exception('roles\nmust alternate') }}", "roles must alternate"),
    ("{% for %}", "Expected an expression"),
    ("{% include '/etc/passwd' %}", "no loader"),
]


def test_hostile_templates_are_refused():
    template = ChatTemplate("", {})
    for text, why in HOSTILE:
        template._template = text
        with pytest.raises(MlircError, match=f"the chat template refuses the messages: .*{why}") as e:
            template.render(TALK)
        assert "\n" not in str(e.value)
    template.close()


def test_templates_that_take_too_long_end(monkeypatch):
    monkeypatch.setattr("mlirc.generate.chat._SECONDS", 1)
    template = ChatTemplate("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", {})
    with pytest.raises(MlircError, match="the chat template takes too long"):
        template.render(TALK)
    template._template = "{{ messages[0].content }}"
    assert template.render(TALK) == " be brief "  # by another process
    template.close()


@pytest.mark.parametrize("messages", [[], "hello", {"role": "user", "content": "x"}, [{"role": "user"}], ["hello"],
                                      [{"role": "user", "content": ["x"]}]])  # fmt: skip
def test_what_is_no_conversation_is_refused(messages):
    with pytest.raises(MlircError, match="is a list of messages|is no message"):
        ChatTemplate(CHAT, {}).render(messages)


MAP = "special_tokens_map.json"
NAMES = "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    "config, file",
    [
        ({"eos_token": None, "bos_token": None}, {"eos_token": "</s>", "bos_token": {"content": "<s>", "lstrip": False}}),
        ({"eos_token": "x"}, {"eos_token": "</s>"}),
        ({"tokenizer_class": "LlamaTokenizer"}, None),
        ({"tokenizer_class": "LlamaTokenizer", "bos_token": None}, None),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, None),
    ],
    ids=str,
)  # fmt: skip
def test_special_tokens_are_known_from_everywhere_that_transformers_knows_them(tmp_path, config, file):
    """By special_tokens_map.json, and by the class of the tokenizer."""
    folder = write_tokenizer(tmp_path, by_pieces(), chat_template=NAMES)
    about = {"chat_template": NAMES, "tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    if file is not None:
        (folder / MAP).write_text(json.dumps(file))
    tokenizer = load_tokenizer(folder)
    messages = [{"role": "user", "content": "the fox"}]
    theirs = AutoTokenizer.from_pretrained(folder)
    wanted = theirs.apply_chat_template(messages, tokenize=False)
    assert tokenizer._chat.render(messages) == wanted
    tokenizer.close()


def test_a_folder_of_a_model_names_the_class_of_its_tokenizer(tmp_path):
    folder = write_tokenizer(tmp_path, by_pieces())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": NAMES}))
    (folder / "config.json").write_text('{"model_type": "llama", "tokenizer_class": "LlamaTokenizer"}')
    tokenizer = load_tokenizer(folder)
    assert tokenizer._chat.render([{"role": "user", "content": "x"}]) == "<s>|</s>|<unk>x"
    tokenizer.close()
    (tmp_path / "gen").mkdir()
    _copy_tokenizer(folder, tmp_path / "gen")
    tokenizer = load_tokenizer(tmp_path / "gen")
    assert tokenizer._chat.render([{"role": "user", "content": "x"}]) == "<s>|</s>|<unk>x"
    tokenizer.close()
    (folder / "config.json").write_text('{"model_type": "../../os", "tokenizer_class": "os.system"}')
    tokenizer = load_tokenizer(folder)
    assert tokenizer._chat.render([{"role": "user", "content": "x"}]) == "||x"
    tokenizer.close()


@pytest.mark.parametrize("flags", [{"rstrip": True}, {"lstrip": True}, {"single_word": True}, {"special": False}])
def test_flags_of_added_tokens_are_those_of_the_config(tmp_path, flags):
    about = {"content": "</s>", "lstrip": False, "rstrip": False, "single_word": False, "normalized": False,
             "special": True, **flags}  # fmt: skip
    folder = write_tokenizer(tmp_path, added_tokens_decoder={"1": about}, tokenizer_class="PreTrainedTokenizerFast")
    (folder / MAP).write_text('{"bos_token": "fox"}')  # which does not count, then
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in ("the </s>\n fox", "a</s>b </s> c", "</s>"):
        assert ours.encode(text) == theirs(text).input_ids
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_special_tokens_that_are_no_tokens_yet_are_added(tmp_path):
    folder = write_tokenizer(tmp_path, pad_token="<pad>", additional_special_tokens=["<extra>"],
                             tokenizer_class="PreTrainedTokenizerFast")  # fmt: skip
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = "the <pad>fox<extra>x"
    assert ours.encode(text) == theirs(text).input_ids and ours.token("<pad>") == theirs.pad_token_id


@pytest.mark.parametrize(
    "decoder", [[], {"a": {"content": "x"}}, {"1": "x"}, {"1": {"content": ""}}, {"1": {"content": "x", "rstrip": 1}}]
)
def test_damaged_lists_of_added_tokens_are_refused(tmp_path, decoder):
    folder = write_tokenizer(tmp_path, added_tokens_decoder=decoder)
    with pytest.raises(MlircError, match="'added_tokens_decoder' is none"):
        load_tokenizer(folder)


SLOW = "a" * 60 + "!"


def hostile(folder):
    """A tokenizer whose pattern takes for ever on `SLOW`, and not on what is tried first."""
    tokenizer = tokenizers.Tokenizer.from_str(by_bytes())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"(a+)+$"), "isolated")
    return write_tokenizer(folder, tokenizer.to_str())


def test_a_pattern_that_takes_too_long_is_an_error_of_one_line(tmp_path, capfd):
    tokenizer = load_tokenizer(hostile(tmp_path))
    with pytest.raises(MlircError, match="the model's tokenizer fails on this text: .*retry-limit") as caught:
        tokenizer.encode(SLOW)
    assert "\n" not in str(caught.value) and capfd.readouterr().err == ""
    assert tokenizer.encode("the fox")


def test_texts_that_are_too_long_for_certain_are_not_read(tmp_path, monkeypatch):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, chat_template=CHAT))
    text = "fox" * 300_000
    longest = max(len(t.encode()) for t in json.loads(by_bytes())["model"]["vocab"])
    monkeypatch.setattr(tokenizer, "_tokenizer", SimpleNamespace(get_vocab=tokenizer._tokenizer.get_vocab))
    for most in (1, 64, len(text) // longest - 1):
        for ask, what in ((tokenizer.encode, text), (tokenizer.encode_chat, message(text))):
            with pytest.raises(RequestError, match="the text has 900,000 bytes") as caught:
                ask(what, most)
            assert (caught.value.field, caught.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(AttributeError):
        tokenizer.encode(text, len(text) // longest + 1)


def message(text):
    return [{"role": "user", "content": text}]


def test_the_interpreter_is_free_while_a_long_text_is_read(tmp_path):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))
    text, steps, done = "the quick brown fox " * 50_000, [0], []
    reading = threading.Thread(target=lambda: done.append(len(tokenizer.encode(text))))
    reading.start()
    while not done:
        steps[0] += 1
        time.sleep(0)
    assert done[0] > 100_000 and steps[0] > 100
