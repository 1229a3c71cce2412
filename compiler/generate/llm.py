"""`mlirc.LLM`: a model that generates text, from Python."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlirc.errors import MlircError, one_line
from mlirc.files.opening import shorten
from mlirc.generate.audio import Speech, first_tokens, log_mel, read_audio, samples_of
from mlirc.generate.engine import Sampling
from mlirc.generate.opening import Opened, open_generating
from mlirc.generate.requests import Event, Request, check_request, most_read, most_tokens
from mlirc.generate.scheduler import Progress, Scheduler
from mlirc.generate.shared import SharedScheduler
from mlirc.generate.text import TextReader

DEFAULT_NEW_TOKENS = 128

# A text, token ids, a conversation, or a window of sound.
Prompt = str | Sequence[int] | Sequence[dict[str, Any]] | Speech


@dataclass(frozen=True)
class Generation:
    """What a model made of one prompt.

    `tokens` are the new ones, a stop token that ended them included; `text` is theirs without special and stop tokens,
    up to a stop string, and None for a model without a tokenizer. `reason`: "stop", "length" or "cancelled". `reused`
    are tokens of the prompt whose keys and values an earlier request had left; `drafted` were guessed, of which
    `accepted` were right. Times are seconds since the request was made.
    """

    text: str | None
    tokens: list[int]
    reason: str
    prompt_tokens: int
    reused: int
    time_to_first_token: float
    time: float
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens behind the first one; None where there is none, and before anything can be said."""
        between = self.time - self.time_to_first_token
        return (len(self.tokens) - 1) / between if len(self.tokens) > 1 and between > 0 else None


class Stream:
    """The text of one prompt while it is made: an iterator of pieces, none of them empty. `tokens()` gives token ids in
    their stead. `result` is there at the end. Closing it, or dropping it, cancels the request."""

    def __init__(self, llm: LLM, progress: Progress) -> None:
        self._llm, self._progress = llm, progress
        self._text: list[str] = []
        self.result: Generation | None = None

    def __iter__(self) -> Iterator[str]:
        if self._progress.request.reader is None:
            raise MlircError("the model has no tokenizer, so that there is no text: use .tokens()")
        for event in self._each():
            if event.text:
                yield event.text

    def tokens(self) -> Iterator[int]:
        """The new token ids as they come."""
        for event in self._each():
            yield from event.tokens

    def close(self) -> None:
        """Ends the request, if it has not ended."""
        if self.result is None:
            self._llm._shared.cancel(self._progress)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _each(self) -> Iterator[Event]:
        while self.result is None:
            event = self._llm._shared.next(self._progress)
            if event is None:  # another thread has taken the last one
                return
            self._text.append(event.text)
            if event.reason is not None:
                self.result = _generation(self._progress, "".join(self._text))
            yield event


class LLM:
    """A model that generates, on a device. Several threads may call it at once: their requests run together. (What one
    `Stream` gives goes to whoever asks it.)

    `model`: a folder that `mlirc-generate -o` or `compile_generation` wrote, or a Hugging Face folder or transformers
    module, which is compiled first. `device`: a GPU's number, "cpu", or "host" (the host device, slow, which checks
    every access). `draft`: how many tokens are guessed from the text so far where one greedy sequence runs alone, and
    judged in one step; nobody has measured where that pays, so that it is 0 by default. `turn_tokens`: how many tokens
    of prompts are read between two steps of decoding. `tokenizer`, `weights`, `output` and further options are those of
    `mlirc.generate.opening.open_generating`. Raises MlircError for anything the user can put right.
    """

    def __init__(
        self, model: Any, *, device: int | str = 0, draft: int = 0, turn_tokens: int | None = None, **options: Any
    ) -> None:
        self._closed = True
        for name, value, least in (("draft", draft, 0), ("turn_tokens", turn_tokens, 1)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise MlircError(f"{name} is {value!r}: give a whole number of {least} or more")
        opened = model if isinstance(model, Opened) else open_generating(model, device=device, **options)
        if draft and not opened.engine.paged:
            opened.close()
            raise MlircError("guessing needs a model whose whole cache is keys and values in pages: leave draft out")
        self._closed = False
        self.opened = opened
        self.engine, self.tokenizer, self.eos = opened.engine, opened.tokenizer, opened.eos
        self.scheduler = Scheduler(self.engine, turn_tokens=turn_tokens, draft=draft)
        self._shared = SharedScheduler(self.scheduler)

    def request(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stop_tokens: int | str | Sequence[int | str] | None = (),
        ignore_eos: bool = False,
        **sampling: Any,
    ) -> Request:
        """The request of one prompt: a text, token ids, or a conversation (as of `chat`); `generate` says the rest.

        Raises MlircError for a text where there is no tokenizer, and for stop tokens and options that are not known.
        """
        (tokens, source), stops = self._read(prompt), _listed("stop", stop, str)
        unknown = next((name for name in sampling if name not in Sampling.__dataclass_fields__), None)
        if unknown is not None:
            known = ", ".join(Sampling.__dataclass_fields__)
            raise MlircError(f"'{unknown}' is no option of generating: sampling has {known}")
        ends = {self._token(t) for t in _listed("stop_tokens", stop_tokens, (str, numbers.Integral))}
        ends |= set() if ignore_eos else set(self.eos)
        if stops and self.tokenizer is None:
            raise MlircError("stop strings need a tokenizer, and the model has none: give stop_tokens")
        if self.opened.stops and not ignore_eos:
            if self.tokenizer is None:
                raise MlircError(
                    "the model's generation_config.json has stop_strings, which need a tokenizer: name its folder, or "
                    "ignore them with the model's other ends (ignore_eos)"
                )
            stops = [*stops, *self.opened.stops]
        if max_new_tokens is None:
            most = most_tokens(Request(tokens), self.engine)
            max_new_tokens = max(1, most if isinstance(prompt, Speech) else min(DEFAULT_NEW_TOKENS, most))
        asked = Request(tokens, max_new_tokens, Sampling(**sampling), frozenset(ends), None, source)
        check_request(asked, self.engine)  # first: a reader decodes the prompt's end
        if self.tokenizer is None:
            return asked
        return replace(asked, reader=TextReader(self.tokenizer.decode, tokens, stops))

    def generate(self, prompts: Prompt | Sequence[Prompt], **options: Any) -> Any:
        """Continues one prompt, or several at once: a `Generation` for each, in a list where a list was given.

        A prompt is a text or a list of token ids. `max_new_tokens` (128, or as many as fit), `temperature`, `top_k`,
        `top_p`, `min_p`, `repetition_penalty` and `seed` (`mlirc.generate.engine.Sampling`; the default is the most
        probable token), `stop` (a text or several, none of which is shown), `stop_tokens` (ids, or tokens as the
        tokenizer writes them; those that end a text by the model's own word count, too, as do its stop strings, but for
        `ignore_eos=True`).
        """
        one = str | list | tuple | np.ndarray | Speech  # of several
        several = isinstance(prompts, list | tuple) and (not prompts or isinstance(prompts[0], one))
        given: list[Any] = list(prompts) if several else [prompts]  # type: ignore[arg-type]
        made = self._run([self.request(p, **options) for p in given])
        return made if several else made[0]

    def chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> Generation:
        """The model's answer in a conversation, by its chat template: messages with `role` ("system", "user",
        "assistant") and `content`, a text. Options as of `generate`."""
        if isinstance(messages, str):
            raise MlircError("a conversation is a list of messages: [{'role': 'user', 'content': 'Hello'}]")
        return self._run([self.request(_conversation(messages), **options)])[0]

    def transcribe(
        self, audio: Any, *, language: str | None = None, task: str | None = None, **options: Any
    ) -> Generation:
        """What is said in a sound, of a model that hears (Whisper): a file (WAV or .npy, 16,000 samples a second), or
        samples f32 [n], of one window (30 s) at most. `language` and `task` ("transcribe", "translate") are found out,
        and by the model's generation config, where they are not given. Other options as of `generate`."""
        return self.generate(self.speech(audio, language, task), **options)

    def speech(self, audio: Any, language: str | None = None, task: str | None = None) -> Speech:
        """A prompt for `generate` and `stream`, of arguments of `transcribe`."""
        about = self.engine.source
        if about is None or about.kind != "features":
            raise MlircError(f"{self.opened.name} reads text, and hears nothing: give a prompt")
        samples = read_audio(audio) if isinstance(audio, str | os.PathLike) else samples_of(np.asarray(audio))
        return Speech(log_mel(samples, about), language, task)

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """As `generate` for one prompt, or `chat` for a list of messages: the pieces of the text while they come."""
        return Stream(self, self._shared.submit([self.request(prompt, **options)])[0])

    def close(self) -> None:
        """Frees the device's memory; closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._shared.close(self.opened.close)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _read(self, prompt: Prompt) -> tuple[list[int], Any]:
        """The tokens that a sequence begins with, and the source of an encoder-decoder."""
        about = self.engine.source
        if isinstance(prompt, Speech):
            if about is None or about.kind != "features":
                raise MlircError(f"{self.opened.name} reads text, and hears nothing: give a prompt")
            start = first_tokens(prompt, about)
            if None in start:
                [found] = self._run([Request([t for t in start[:1] if t is not None], 1, source=prompt.frames)])
                start[start.index(None)] = found.tokens[0]
            return [t for t in start if t is not None], prompt.frames
        if about is None:
            return self._encode(prompt), None
        if about.kind == "features":
            raise MlircError(f"{self.opened.name} hears sound: use transcribe (mlirc-generate --audio FILE)")
        return [t for t in about.start if t is not None], self._encode(prompt)

    def _encode(self, prompt: Prompt) -> list[int]:
        assert not isinstance(prompt, Speech)
        found = [] if isinstance(prompt, str) else _as_list(prompt)
        if found is None:
            shown = shorten(one_line(repr(prompt)), 80)
            raise MlircError(f"the prompt is {shown}: give a text, token ids, or a list of messages")
        if not isinstance(prompt, str) and not (found and isinstance(found[0], dict)):
            return found
        if self.tokenizer is None:
            raise MlircError(
                f"{self.opened.name} has no tokenizer (tokenizer.json): give token ids, or tokenizer=FOLDER"
            )
        if isinstance(prompt, str):
            if not prompt:
                raise MlircError("the prompt is empty: give at least one character")
            return self.tokenizer.encode(prompt, most_read(self.engine))
        return self.tokenizer.encode_chat(prompt, most_read(self.engine))  # type: ignore[arg-type]

    def _token(self, token: int | str) -> int:
        if isinstance(token, str):
            if self.tokenizer is None:
                raise MlircError(f"the stop token '{token}' needs a tokenizer, and the model has none: give its id")
            return self.tokenizer.token(token)
        return token

    def _run(self, requests: Sequence[Request]) -> list[Generation]:
        taken = self._shared.submit(requests)
        texts = []
        try:
            for progress in taken:
                pieces = []
                while (event := self._shared.next(progress)) is not None:
                    pieces.append(event.text)
                texts.append("".join(pieces))
        finally:
            for progress in taken:
                self._shared.cancel(progress)
        return [_generation(progress, text) for progress, text in zip(taken, texts, strict=True)]


def _as_list(prompt: Any) -> list[Any] | None:
    """What a text, a sequence or an array of one dimension holds; None for anything else."""
    if not hasattr(prompt, "__len__") or isinstance(prompt, bytes | bytearray | Mapping | Set):
        return None
    try:
        return list(prompt)
    except TypeError:  # an array without dimensions
        return None


def _listed(name: str, given: Any, kinds: Any) -> list[Any]:
    """One value or several as a list: a text is one, not its characters. Raises MlircError for what is of no kind."""
    if given is None:
        return []
    if isinstance(given, kinds):
        return [given]
    found = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(v, kinds) for v in found):
        wanted = "a text or a list of texts" if kinds is str else "token ids, tokens as texts, or a list of such"
        raise MlircError(f"{name} is {shorten(one_line(repr(given)), 80)}: give {wanted}")
    return found


def _conversation(messages: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    from mlirc.generate.chat import check_messages

    return check_messages(messages)


def _generation(progress: Progress, text: str) -> Generation:
    start, first, end = progress.submitted, progress.first, progress.ended
    assert progress.reason is not None and end is not None
    source = progress.request.source
    return Generation(
        None if progress.request.reader is None else text,
        progress.tokens[len(progress.request.prompt) :],
        progress.reason,
        len(source if isinstance(source, list) else progress.request.prompt),
        progress.reused,
        (end if first is None else first) - start,
        end - start,
        progress.drafted,
        progress.accepted,
    )
