"""A folder's tokenizer and chat template give what transformers makes of them; hostile ones do nothing."""

from __future__ import annotations

import json

import pytest
import transformers

from mlirc.errors import MlircError
from mlirc.generate.chat import ChatTemplate
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
