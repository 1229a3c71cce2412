"""Tokens as text while they come: whole characters only, and nothing behind a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirc.errors import MlircError

_LOST = "\N{REPLACEMENT CHARACTER}"  # what a decoder makes of bytes that are no character, or not yet one
_CONTEXT = 6  # tokens in front of the first new one: what it is decoded to may depend on them
_PARTS = 4  # tokens of one character at most: it has no more bytes
_LONGEST = 64  # tokens that are held for a character: more can only be bytes that are none


class Detokenizer:
    """The text of a sequence's new tokens, in pieces.

    A token's text depends on those in front (a space at the beginning of a word, characters of several tokens), so the
    tokens since the last place but one where the text was certain are decoded anew each time. `decode` takes token ids,
    `prompt` is what the new tokens follow.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        self._tokens = self._context([int(t) for t in prompt])
        self._certain = 0  # of `_tokens`: the text up to there was given out, and ends with a character
        self._given = 0  # characters of the text of `_tokens` that were given out
        self._restart()

    def push(self, token: int) -> str:
        """The characters that are certain now and were not before."""
        self._tokens.append(token)
        text = self._text()
        steady = self._steady(text)
        piece, self._given = steady[self._given :], max(self._given, len(steady))
        new = self._tokens[self._certain :]
        if len(steady) == len(text) >= self._given and self._decode(new):  # special tokens alone have no text
            self._tokens = new
            self._restart()
        elif len(self._tokens) > _LONGEST:
            del self._tokens[:-_CONTEXT]
            self._restart()
        return piece

    def end(self) -> str:
        """What was held back, where no token follows: bytes of no character as replacement characters."""
        text = self._text()
        piece, self._given = text[self._given :], max(self._given, len(text))
        return piece

    def _restart(self) -> None:
        text = self._text()
        self._given = len(self._steady(text))
        self._certain = len(self._tokens) if self._given == len(text) else 0

    def _text(self) -> str:
        return self._decode(self._tokens) if self._tokens else ""

    def _context(self, tokens: list[int]) -> list[int]:
        """The last tokens of a prompt, from where a character begins."""
        most = max(0, len(tokens) - _CONTEXT)
        for start in range(most, max(-1, most - _PARTS), -1):
            if start == 0 or not self._decode(tokens[start:]).startswith(_LOST):
                return tokens[start:]
        return []

    @staticmethod
    def _steady(text: str) -> str:
        """A text without what may be a part of a character at its end. How many replacement characters that is depends
        on the decoder: some make one of a whole run of bytes, characters in front of it included, for every byte."""
        return text.rstrip(_LOST)


class StopStrings:
    """Lets text through up to the first stop string, of which nothing is shown, wherever pieces begin and end.

    Raises MlircError for an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise MlircError(f"the stop string {stop!r} is empty or no text: give at least one character")
        self._stops = tuple(stops)
        self._held = ""  # it may be the beginning of a stop string
        self.stopped = False

    def push(self, piece: str) -> str:
        """The text that can be shown now."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        most = max((len(stop) - 1 for stop in self._stops), default=0)
        held = next((n for n in range(min(most, len(text)), 0, -1) if self._begins(text[-n:])), 0)
        shown = len(text) - held
        self._held = text[shown:]
        return text[:shown]

    def end(self) -> str:
        """What was held, which was no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _begins(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stops)


class TextReader:
    """What a request has of its text: new tokens in, pieces of text out, up to a stop string."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self._characters = Detokenizer(decode, prompt)
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the text ends in front of it."""
        return self._stops.stopped

    def push(self, token: int) -> str:
        """The text that is certain now and was not before."""
        return self._stops.push(self._characters.push(token))

    def end(self) -> str:
        """The text that was held back, at the end of the sequence."""
        return self._stops.push(self._characters.end()) + self._stops.end()
