"""What a call asks for: the JSON of OpenAI's completions and chat completions, checked field by field."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlirc.errors import one_line
from mlirc.files.opening import shorten
from mlirc.generate.engine import Sampling
from mlirc.serve.errors import ApiError

Prompt = str | list[int] | list[dict[str, Any]]  # a text, token ids, or a conversation

MOST_CHOICES = 128
_MOST_STOPS = 16
_DEFAULT_TOKENS = 16  # of a text completion, as OpenAI has it; a chat goes on to its end
_INTEGERS, _NUMBERS = (int,), (int, float)

_KNOWN = frozenset(
    "model n stream stream_options max_tokens temperature top_p top_k min_p repetition_penalty seed stop".split()
)
# They say nothing about the answer.
_IGNORED = frozenset("user metadata safety_identifier prompt_cache_key service_tier parallel_tool_calls".split())
# What is not there, with the values that ask for nothing.
_NOTHING: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
}


@dataclass(frozen=True)
class Asked:
    """A call. `choices` are wanted of each of `prompts`; `max_new_tokens` None: as many as the context has room for."""

    prompts: list[Prompt]
    choices: int
    max_new_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    chat: bool
    limit_name: str  # the field that max_new_tokens comes from, or would

    @property
    def size(self) -> int:
        """How many characters its texts have, about."""
        texts = [m["content"] for m in self.prompts[0]] if self.chat else self.prompts  # type: ignore[index]
        return sum(len(text) for text in texts if isinstance(text, str))

    def sampling_of(self, choice: int) -> Sampling:
        """The choices of one prompt are drawn with seeds of their own, the first with the one that was given."""
        seed = (self.sampling.seed + choice) % (1 << 63)
        return Sampling(**{**vars(self.sampling), "seed": seed})


def parse_asked(body: Any, chat: bool, model: str) -> Asked:
    """The call whose JSON value is `body`, of a chat or a text completion, for the model that is served.

    Raises ApiError for another model, fields that are unknown or wrong, and what is not supported.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "the body is no JSON object")
    for name, value in body.items():
        _check_texts({name: value}, name)
    fields = {name: value for name, value in body.items() if value is not None}
    _check_fields(fields, {"messages", "max_completion_tokens"} if chat else {"prompt"})
    check_model(_take(fields, "model", str, ""), model)
    stream = _take(fields, "stream", bool, False)
    options = _take(fields, "stream_options", dict, {})
    if options and not stream:
        raise ApiError(400, "stream_options goes with stream: true", "stream_options")
    return Asked(
        prompts=[_messages(fields)] if chat else _prompts(fields),
        choices=_whole(fields, "n", 1, 1, MOST_CHOICES),
        max_new_tokens=_most_tokens(fields, chat),
        sampling=_sampling(fields),
        stops=_stops(fields),
        stream=stream,
        include_usage=_take(options, "include_usage", bool, False, "stream_options."),
        chat=chat,
        limit_name=_limit_name(fields),
    )


def _check_texts(value: Any, name: str) -> None:
    """Raises ApiError where a text holds a half of a surrogate pair, which JSON can say and UTF-8 cannot."""
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, dict):
            pending += [*found, *found.values()]
        elif isinstance(found, list):
            pending += found
        elif isinstance(found, str) and not found.isascii():
            try:
                found.encode()
            except UnicodeEncodeError as e:
                raise ApiError(
                    400, f"a text holds {found[e.start]!a}, which is no character", ascii(name[:80])[1:-1]
                ) from e


def check_model(asked: str, model: str) -> None:
    """Raises ApiError where another model than the served one is asked for."""
    if asked != model:
        shown = shorten(one_line(asked), 80)
        raise ApiError(404, f"the model '{shown}' does not exist: '{model}' is served", "model", "model_not_found")


def _check_fields(fields: dict[str, Any], more: set[str]) -> None:
    for name, value in fields.items():
        if name in _NOTHING:
            nothing = _NOTHING[name]
            if not any(type(value) is type(x) and value == x for x in nothing):
                raise ApiError(400, f"{name} is not supported: leave it out", name, "unsupported_parameter")
        elif name not in _KNOWN | _IGNORED | more:
            raise ApiError(400, f"unknown field '{shorten(one_line(name), 80)}': leave it out", name[:80])


def _take(fields: dict[str, Any], name: str, kind: type, default: Any, where: str = "") -> Any:
    value = fields.get(name, default)
    if not isinstance(value, kind):
        wanted = {str: "a text", bool: "true or false", dict: "an object", list: "a list"}[kind]
        raise ApiError(400, f"{where}{name} is {_shown(value)}: give {wanted}", where + name)
    return value


def _shown(value: Any) -> str:
    return shorten(one_line(repr(value)), 80)


def _number(fields: dict[str, Any], name: str, default: float, kinds: tuple[type, ...] = _NUMBERS) -> Any:
    value = fields.get(name, default)
    fits = isinstance(value, kinds) and not isinstance(value, bool)
    if not fits or (isinstance(value, int) and value.bit_length() > 64) or not math.isfinite(value):
        wanted = "a whole number" if kinds is _INTEGERS else "a number"
        raise ApiError(400, f"{name} is {_shown(value)}: give {wanted}", name)
    return value


def _whole(fields: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = _number(fields, name, default, _INTEGERS)
    if not least <= value <= most:
        raise ApiError(400, f"{name} is {_shown(value)}: give {least} to {most:,}", name)
    return value


def _limit_name(fields: dict[str, Any]) -> str:
    return "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"


def _most_tokens(fields: dict[str, Any], chat: bool) -> int | None:
    name = _limit_name(fields)
    if name not in fields:
        return None if chat else _DEFAULT_TOKENS
    return _whole(fields, name, 1, 1, (1 << 63) - 1)


def _sampling(fields: dict[str, Any]) -> Sampling:
    """With OpenAI's defaults: temperature 1, and a seed that nobody knows. What ranges there are is the scheduler's."""
    wide = (1 << 63) - 1
    seed = _whole(fields, "seed", secrets.randbits(62), -wide - 1, wide)
    return Sampling(
        temperature=float(_number(fields, "temperature", 1.0)),
        top_k=max(0, _whole(fields, "top_k", 0, -1, wide)),  # -1, too, is said for no limit
        top_p=float(_number(fields, "top_p", 1.0)),
        min_p=float(_number(fields, "min_p", 0.0)),
        repetition_penalty=float(_number(fields, "repetition_penalty", 1.0)),
        seed=seed & wide,
    )


def _stops(fields: dict[str, Any]) -> tuple[str, ...]:
    stop = fields.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops) or len(stops) > _MOST_STOPS:
        raise ApiError(400, f"stop: give a text or at most {_MOST_STOPS}, none of them empty", "stop")
    return tuple(stops)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(t) is int for t in value)


def _prompts(fields: dict[str, Any]) -> list[Prompt]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str) or _is_tokens(prompt):
        return [prompt]  # type: ignore[list-item]
    if not isinstance(prompt, list) or not prompt or not all(isinstance(p, str) or _is_tokens(p) for p in prompt):
        raise ApiError(400, "prompt: give a text, a list of token ids, or a list of such", "prompt")
    return prompt


def _messages(fields: dict[str, Any]) -> list[dict[str, Any]]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages: give a list of messages, at least one", "messages")
    return [_message(m, f"messages[{i}]") for i, m in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ApiError(400, f"{where}: give an object with role and content", where)
    for name, value in message.items():
        if name not in ("role", "content", "name", "refusal") and value not in (None, []):
            raise ApiError(400, f"{where}.{shorten(one_line(name), 80)} is not supported: leave it out", where)
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": _text(message.get("content"), f"{where}.content")}


def _text(content: Any, where: str) -> str:
    """A message's content, which may come in parts: only text is supported."""
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    if not all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in parts):
        raise ApiError(400, f"{where}: give a text, or parts of type 'text': others are not supported", where)
    return "".join(p["text"] for p in parts)
