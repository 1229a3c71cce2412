"""A folder's tokenizer: tokenizer.json through the `tokenizers` library, nothing of the folder's run as code.

Without transformers or PyTorch, which take seconds to import. Which tokens go in front of a text is said by
tokenizer.json alone, as transformers 5 has it, whatever `add_bos_token` beside it says.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mlirc.apart import fails_apart, without_stderr
from mlirc.errors import MlircError, one_line
from mlirc.files.opening import check_inside, exists, read_text, shorten
from mlirc.generate.chat import ChatTemplate
from mlirc.generate.refusals import CONTEXT_LENGTH, RequestError
from mlirc.generate.special_tokens import CONFIG, MAP, NAMED, SpecialTokens

FILES = ("tokenizer.json", CONFIG, MAP, "chat_template.jinja")  # what a tokenizer is loaded from
_TOLD = 4000  # bytes, which a pipe takes at once
LONG = 1 << 16  # bytes of a text; shorter ones take no turns
_OTHERS = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
_LIMIT = 256 << 20
_CONFIG_LIMIT = 32 << 20
_SECONDS, _MEMORY = 60, 4 << 30  # of the copy that reads tokenizer.json first; the largest take a second and 500 MiB


class Tokenizer:
    """Text to token ids and back. Made by `load_tokenizer`."""

    def __init__(self, tokenizer: Any, chat: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._turn = threading.Lock()  # a long text takes a hundred times its size

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """The token ids of a text, with those that the model expects in front. Other threads run meanwhile, and long
        texts take turns. Raises MlircError for no text, and RequestError for one that is certain to have more than
        `most` tokens, before anything is made of it."""
        return self._encode(text, most, True)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without special tokens."""
        return _answered(lambda: self._tokenizer.decode(tokens, skip_special_tokens=True), "these tokens")

    def _encode(self, text: str, most: int | None, special: bool) -> list[int]:
        size = self.check_length([text], most)
        _checked(text)

        def encoded() -> list[int]:  # of several texts, and without places in them: the interpreter is free meanwhile
            [found] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
            if most is not None and len(found) > max(LONG, most):  # to make a list of millions keeps others waiting
                raise RequestError(
                    f"the text has {len(found):,} tokens, and the model was compiled for {most:,}: shorten it, or "
                    "compile with a larger context",
                    "prompt",
                    CONTEXT_LENGTH,
                )
            return found.ids

        if size < LONG:
            return _answered(encoded, "this text")
        with self._turn:
            return _answered(encoded, "this text")

    def check_length(self, texts: Sequence[str], most: int | None) -> int:
        """How many bytes texts have. Raises RequestError where they are certain to have more than `most` tokens."""
        size = sum(len(t) for t in texts)
        if size >= LONG // 4:  # a character has four bytes at most
            size = sum(len(t.encode("utf-8", "replace")) for t in texts)
        self.check_size(size, most)
        return size

    def check_size(self, size: int, most: int | None) -> None:
        """Raises RequestError where a text of so many bytes is certain to have more than `most` tokens."""
        if most is not None and size > max(LONG, most * self._longest):
            raise RequestError(
                f"the text has {size:,} bytes, and the model was compiled for {most:,} tokens of at most "
                f"{self._longest:,}: shorten it, or compile with a larger context",
                "prompt",
                CONTEXT_LENGTH,
            )

    @functools.cached_property
    def _longest(self) -> int:
        """No token has more bytes of a text than this."""
        return max((len(token.encode()) for token in self._tokenizer.get_vocab()), default=1)

    def token(self, text: str) -> int:
        """The id of the token that is written so. Raises MlircError where there is none."""
        found = self._tokenizer.token_to_id(_checked(text))
        if found is None:
            raise MlircError(f"'{shorten(one_line(text), 80)}' is no token of this model's tokenizer")
        return found

    def encode_chat(self, messages: Sequence[dict[str, Any]], most: int | None = None) -> list[int]:
        """The token ids of a conversation, by the model's chat template, up to where its answer begins.

        Raises MlircError for a model without a template, and for what the template refuses; `most` as of `encode`.
        """
        if self._chat is None:
            raise MlircError("the model has no chat template: it continues text; give it a prompt instead of messages")
        texts = [m["content"] for m in messages if isinstance(m, dict) and isinstance(m.get("content"), str)]
        self.check_length(texts, most)
        return self._encode(self._chat.render(messages), most, False)

    def close(self) -> None:
        """Ends what renders chat templates."""
        if self._chat is not None:
            self._chat.close()


def _trouble_of(parse: Callable[[], Any]) -> str:
    """What a copy of this process says of a tokenizer that it cannot read, "" where it can. So what the library writes
    to standard error where it fails is not seen."""
    reading, writing = os.pipe()
    try:

        def told() -> None:
            try:
                parse()
            except BaseException as e:
                os.write(writing, shorten(one_line(str(e)) or type(e).__name__).encode()[:_TOLD])
                raise

        trouble = fails_apart(told, seconds=_SECONDS, memory=_MEMORY)
        os.close(writing)
        writing = -1
        return trouble or os.read(reading, _TOLD).decode("utf-8", "replace")
    finally:
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)


_T = TypeVar("_T")


def _answered(ask: Callable[[], _T], what: str) -> _T:
    """What the library answers. It is written in Rust: what it did not expect, as a pattern of the tokenizer's that
    takes too long, is a panic, which is no Exception, and which it says on standard error itself. Raises MlircError."""
    try:
        with without_stderr():
            return ask()
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        raise MlircError(f"the model's tokenizer fails on {what}: {shorten(one_line(str(e)))}") from e


def _checked(text: str) -> str:
    """The text; raises MlircError where a part of it is no character: bytes of a command line that are no UTF-8 come
    as halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        shown = shorten(one_line(text[:400]), 80)
        raise MlircError(f"the text '{shown}': its character {e.start} is none: give UTF-8") from e
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
    special = SpecialTokens(folder)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time; with threads it warns at each fork

    def parse() -> Any:
        made = tokenizers.Tokenizer.from_str(text)
        special.put_into(made)
        # A length of the file's could ask for any amount of memory, or cut a prompt.
        made.no_padding()
        made.no_truncation()
        made.decode(made.encode("A text, 1 2.").ids)
        return made

    trouble = _trouble_of(parse)
    if trouble:
        raise MlircError(f"{path}: not a usable tokenizer: {trouble}")
    try:
        with without_stderr():
            tokenizer = parse()
    except BaseException as e:  # a panic too, as of `_answered`
        if isinstance(e, KeyboardInterrupt | SystemExit | MemoryError | MlircError):
            raise
        raise MlircError(f"{path}: not a usable tokenizer: {shorten(one_line(str(e)))}") from e
    return Tokenizer(tokenizer, _chat_template(folder, special, tokenizer.token_to_id))


def _chat_template(
    folder: Path, special: SpecialTokens, token_to_id: Callable[[str], int | None]
) -> ChatTemplate | None:
    """The template of chat_template.jinja, or else of the config: a text, or several by name, of which `default`."""
    path = folder / "chat_template.jinja"
    if os.path.lexists(path):
        check_inside(folder, path)
        template: Any = read_text(path, limit=_CONFIG_LIMIT)
    else:
        template = special.config.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        return None
    lacking = [name for name in NAMED if name in template and name not in special.declared]
    return ChatTemplate(template, special.texts, special.kind, lacking, lambda text: token_to_id(text) is not None)
