"""A folder's tokenizer: tokenizer.json through the `tokenizers` library, nothing of the folder's run as code.

Without transformers or PyTorch, which take seconds to import. Which tokens go in front of a text is said by
tokenizer.json alone, as transformers 5 has it, whatever `add_bos_token` beside it says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlirc.apart import fails_apart
from mlirc.errors import MlircError, one_line
from mlirc.files.opening import check_inside, exists, parse_json, read_bytes, read_text, shorten
from mlirc.generate.chat import ChatTemplate

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")  # what a tokenizer is loaded from
_OTHERS = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
_LIMIT = 256 << 20
_CONFIG_LIMIT = 32 << 20
_SECONDS, _MEMORY = 60, 4 << 30  # of the copy that reads tokenizer.json first; the largest take a second and 500 MiB


class Tokenizer:
    """Text to token ids and back. Made by `load_tokenizer`."""

    def __init__(self, tokenizer: Any, chat: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._chat = chat

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with those that the model expects in front; raises MlircError for no text."""
        return self._tokenizer.encode(_checked(text)).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def token(self, text: str) -> int:
        """The id of the token that is written so. Raises MlircError where there is none."""
        found = self._tokenizer.token_to_id(_checked(text))
        if found is None:
            raise MlircError(f"'{shorten(one_line(text), 80)}' is no token of this model's tokenizer")
        return found

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The token ids of a conversation, by the model's chat template, up to where its answer begins.

        Raises MlircError for a model without a template, and for what the template refuses.
        """
        if self._chat is None:
            raise MlircError("the model has no chat template: it continues text; give it a prompt instead of messages")
        return self._tokenizer.encode(_checked(self._chat.render(messages)), add_special_tokens=False).ids

    def close(self) -> None:
        """Ends what renders chat templates."""
        if self._chat is not None:
            self._chat.close()


def _checked(text: str) -> str:
    """The text; raises MlircError where a part of it is no character: bytes of a command line that are no UTF-8 come
    as halves of surrogate pairs."""
    wrong = next((i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff"), None)
    if wrong is not None:
        raise MlircError(f"the text '{shorten(one_line(text), 80)}': its character {wrong} is none: give UTF-8")
    return text


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder or an artifact, None where the folder has none.

    Raises MlircError for a damaged or hostile one, and for a form that only transformers reads.
    """
    path = folder / "tokenizer.json"
    if not os.path.lexists(path):  # what is a link to nothing is damaged
        other = next((name for name in _OTHERS if exists(folder / name)), None)
        if other is None:
            return None
        raise MlircError(
            f"{folder}: its tokenizer is {other}, without tokenizer.json: write that with transformers, by "
            f"AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        import tokenizers
    except ModuleNotFoundError as e:
        raise MlircError("text needs the package tokenizers: pip install 'mlirc[compiler]', or give token ids") from e
    check_inside(folder, path)
    text = read_text(path, limit=_LIMIT)

    def parse() -> Any:
        made = tokenizers.Tokenizer.from_str(text)
        # A length of the file's could ask for any amount of memory, or cut a prompt.
        made.no_padding()
        made.no_truncation()
        made.decode(made.encode("A text, 1 2.").ids)
        return made

    trouble = fails_apart(parse, seconds=_SECONDS, memory=_MEMORY)
    if trouble:
        raise MlircError(f"{path}: not a usable tokenizer: {trouble}")
    try:
        tokenizer = parse()
    except BaseException as e:
        # The library is written in Rust: what it did not expect is a panic, which is no Exception.
        if isinstance(e, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise MlircError(f"{path}: not a usable tokenizer: {shorten(one_line(str(e)))}") from e
    config = _config(folder)
    return Tokenizer(tokenizer, _chat_template(folder, config))


def token_text(config: dict[str, Any], name: str) -> str | None:
    """A special token's text in tokenizer_config.json, which has it as text or as an object with its content."""
    value = config.get(name)
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not os.path.lexists(path):
        return {}
    check_inside(folder, path)
    config = parse_json(read_bytes(path, limit=_CONFIG_LIMIT), str(path))
    if not isinstance(config, dict):
        raise MlircError(f"{path}: not a usable tokenizer: it is no JSON object")
    return config


def _chat_template(folder: Path, config: dict[str, Any]) -> ChatTemplate | None:
    """The template of chat_template.jinja, or else of the config: a text, or several by name, of which `default`."""
    path = folder / "chat_template.jinja"
    if os.path.lexists(path):
        check_inside(folder, path)
        template: Any = read_text(path, limit=_CONFIG_LIMIT)
    else:
        template = config.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        return None
    special = {n: t for n in config if n.endswith("_token") and (t := token_text(config, n)) is not None}
    return ChatTemplate(template, special)
