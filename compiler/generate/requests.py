"""What is asked of a model that generates, and what comes back: requests, their limits, and events."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlirc.errors import MlircError, one_line
from mlirc.files.opening import shorten
from mlirc.generate.engine import Engine, Sampling
from mlirc.generate.refusals import CONTEXT_LENGTH, RequestError
from mlirc.generate.sizes import Source

_SEEDS = 1 << 63


class Reader(Protocol):
    """Turns a sequence's new tokens into text; `mlirc.generate.text.TextReader` is one."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the text ends in front of it."""

    def push(self, token: int) -> str:
        """The text that is certain now and was not before."""

    def end(self) -> str:
        """The text that was held back, at the end of the sequence."""


@dataclass(frozen=True)
class Request:
    """One sequence to generate.

    `prompt`: token ids, at least one. `max_new_tokens` None: as many as the context has room for. It ends with any of
    `stop_tokens`, which is the last of its tokens then and not in its text, or where `reader` finds a stop string.
    `source` is what an encoder-decoder's encoder reads: token ids, or log-mel frames f32 [bins, frames].
    """

    prompt: Sequence[int]
    max_new_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop_tokens: frozenset[int] = frozenset()
    reader: Reader | None = None
    source: Any = None


@dataclass(frozen=True)
class Event:
    """What a turn made for one request: new tokens, text that is certain now, and, at its end, why it ended."""

    request: int
    tokens: tuple[int, ...]
    text: str
    reason: str | None = None  # "stop" (a stop token or string), "length", "cancelled"


def most_tokens(request: Request, engine: Engine) -> int:
    """How many new tokens a request may have: without a limit of its own, what the context and the pool hold."""
    if request.max_new_tokens is not None:
        return int(request.max_new_tokens)
    held = (engine.pages - 1) * engine.page_size  # the last token of all is never written
    return min(engine.context, held + 1) - len(request.prompt)


def most_read(engine: Engine) -> int:
    """How many tokens a text may have at most: of the source, where there is an encoder."""
    return engine.context if engine.source is None else engine.source.lengths[-1]


def check_request(request: Request, engine: Engine) -> None:
    """Raises MlircError for what the engine cannot run: one line that says what to change, of which field."""
    prompt, most = request.prompt, request.max_new_tokens
    if not len(prompt):
        raise RequestError("the prompt is empty: give at least one token", "prompt")
    _check_tokens(sorted(request.stop_tokens), engine.vocabulary, "the stop tokens", "stop_tokens")
    if most is not None and (_whole(most) is None or most < 1):
        raise RequestError(f"max_new_tokens is {most!r}: give a whole number of 1 or more", "max_new_tokens")
    if len(prompt) >= engine.context:
        raise RequestError(
            f"the prompt has {len(prompt):,} tokens, and the model was compiled for {engine.context:,} with those that "
            f"it generates: shorten the prompt, or compile with a larger context",
            "prompt",
            CONTEXT_LENGTH,
        )
    _check_tokens(prompt, engine.vocabulary, "the prompt", "prompt")
    if most is not None and len(prompt) + most > engine.context:
        raise RequestError(
            f"the prompt's {len(prompt):,} tokens and {most:,} new ones are more than the {engine.context:,} that the "
            f"model was compiled for: at most {engine.context - len(prompt):,} new ones fit",
            "max_new_tokens",
            CONTEXT_LENGTH,
        )
    positions = len(prompt) + max(1, most_tokens(request, engine)) - 1
    pages = -(-positions // engine.page_size)
    if pages > engine.pages - 1:
        raise RequestError(
            f"{positions:,} tokens need {pages:,} pages of the cache, and it has {engine.pages - 1:,}: ask for fewer "
            f"new tokens, or compile with more pages",
            "max_new_tokens",
            CONTEXT_LENGTH,
        )
    check_sampling(request.sampling)
    if (request.source is None) != (engine.source is None):
        raise MlircError(
            "the model has no encoder: give a prompt alone" if engine.source is None else
            "the model is an encoder-decoder: its encoder needs a source"
        )  # fmt: skip
    if engine.source is not None:
        check_source(request.source, engine.source, engine.vocabulary)


def check_source(source: Any, about: Source, vocabulary: int) -> None:
    """Raises MlircError for what the encoder cannot read."""
    if about.kind == "features":
        shape, dtype = getattr(source, "shape", None), getattr(source, "dtype", None)
        if shape != (about.bins, about.lengths[-1]) or str(dtype) != "float32":
            wanted = f"log-mel frames f32 [{about.bins}, {about.lengths[-1]}]"
            raise MlircError(f"the model hears sound: give {wanted}, as a NumPy array")
        return
    if not 1 <= len(source) <= about.lengths[-1]:
        raise RequestError(
            f"the source has {len(source):,} tokens: at least one, and the model was compiled for "
            f"{about.lengths[-1]:,}: shorten it, or compile with more source tokens",
            "prompt",
            CONTEXT_LENGTH if source else None,
        )
    _check_tokens(source, vocabulary, "the source", "prompt")


def _check_tokens(tokens: Sequence[int], vocabulary: int, where: str, field: str) -> None:
    for token in tokens:
        if _whole(token) is None:
            raise RequestError(
                f"{where}: {shorten(one_line(repr(token)), 80)} is no token id: give whole numbers", field
            )
        if not 0 <= token < vocabulary:
            raise RequestError(
                f"{where}: {token} is no token of this model: its ids are 0 to {vocabulary - 1:,}", field
            )


def check_sampling(sampling: Sampling) -> None:
    """Raises MlircError for values that mean nothing, naming the one that is wrong."""

    def number(name: str, fits: bool, wanted: str) -> None:
        if not fits:
            raise RequestError(f"{name} is {shorten(repr(getattr(sampling, name)), 80)}: give {wanted}", name)

    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        number(name, _is_number(getattr(sampling, name)), "a number")
    number("temperature", sampling.temperature >= 0, "0, for the most probable token, or more")
    number("top_p", 0 < sampling.top_p <= 1, "more than 0 and at most 1, which limits nothing")
    number("min_p", 0 <= sampling.min_p <= 1, "0, which limits nothing, to 1")
    number("repetition_penalty", sampling.repetition_penalty > 0, "more than 0; 1 changes nothing")
    top_k, seed = _whole(sampling.top_k), _whole(sampling.seed)
    number("top_k", top_k is not None and 0 <= top_k < _SEEDS, "0, which limits nothing, or a whole number above it")
    number("seed", seed is not None and 0 <= seed < _SEEDS, "a whole number from 0 to 2^63 - 1")


def _is_number(value: object) -> bool:
    """Whether a value is one that a float can hold."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _whole(value: object) -> int | None:
    """A value as a whole number, as NumPy's are, too; None for any other."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
