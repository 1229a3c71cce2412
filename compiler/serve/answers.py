"""What calls are answered with: the JSON of OpenAI's completions and chat completions, whole or in pieces."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirc.serve.errors import ApiError

DONE = b"data: [DONE]\n\n"


@dataclass
class Choice:
    """What there is of one sequence: its text so far, how many tokens that took, why it ended."""

    index: int
    prompt: int  # of the call's prompts
    prompt_tokens: int
    text: list[str] = field(default_factory=list)
    tokens: int = 0
    reused: int = 0  # tokens of the prompt that were in the cache
    reason: str | None = None


class Form:
    """The forms of one call's answers."""

    def __init__(self, chat: bool, model: str) -> None:
        self._chat = chat
        self._head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}", "created": int(time.time())}
        self._model = model

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The answer to a call that waits for its end."""
        made = []
        for c in choices:
            text = "".join(c.text)
            said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            made.append({"index": c.index, **said, "logprobs": None, "finish_reason": c.reason})
        return self._object("chat.completion" if self._chat else "text_completion", made, usage(choices))

    def first(self, choice: Choice) -> bytes | None:
        """What a streamed choice begins with; None for a text completion, which begins with text."""
        return self._chunk(choice, {"role": "assistant", "content": ""}) if self._chat else None

    def piece(self, choice: Choice, text: str) -> bytes | None:
        """New text of a streamed choice and, at its end, the reason for that; None where there is neither."""
        if self._chat:
            parts = [self._chunk(choice, {"content": text}, None)] if text else []
            parts += [self._chunk(choice, {}, choice.reason)] if choice.reason else []
            return b"".join(parts) or None
        return self._chunk(choice, text, choice.reason) if text or choice.reason else None

    def usage(self, choices: Sequence[Choice]) -> bytes:
        """The last piece, where the call asks for it."""
        return _event(self._object(self._chunks, [], usage(choices)))

    @property
    def _chunks(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(self, choice: Choice, said: Any, reason: str | None = None) -> bytes:
        key = "delta" if self._chat else "text"
        made = {"index": choice.index, key: said, "logprobs": None, "finish_reason": reason}
        return _event(self._object(self._chunks, [made], None))

    def _object(self, kind: str, choices: list[dict[str, Any]], used: dict[str, Any] | None) -> dict[str, Any]:
        made = {**self._head, "object": kind, "model": self._model, "choices": choices}
        return made if used is None else {**made, "usage": used}


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """What a call took: each prompt counts once, however many choices there are of it."""
    prompts = {c.prompt: c for c in reversed(choices)}.values()
    read, made = sum(c.prompt_tokens for c in prompts), sum(c.tokens for c in choices)
    return {
        "prompt_tokens": read,
        "completion_tokens": made,
        "total_tokens": read + made,
        "prompt_tokens_details": {"cached_tokens": sum(c.reused for c in prompts)},
    }


def error_event(error: ApiError) -> bytes:
    """An error behind the beginning of a stream."""
    return _event(error.body())


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"
