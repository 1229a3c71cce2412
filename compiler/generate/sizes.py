"""The sizes of an engine."""

from __future__ import annotations

from dataclasses import dataclass

VERIFY_LIMIT = 8  # chunks up to this long give the token after each of theirs


@dataclass(frozen=True)
class Source:
    """What the encoder of an encoder-decoder reads: `tokens`, or `features` (log-mel frames). `lengths`: how many of
    them one run of an encode plan takes, ascending; `bins` numbers for each frame, 0 for tokens. The decoder begins
    with the tokens `start`, of which None is one that the model itself finds (Whisper's language). `last` ends a text
    that is as long as it may be, in the place of its last token."""

    kind: str
    lengths: tuple[int, ...]
    bins: int
    start: tuple[int | None, ...]
    languages: tuple[tuple[str, int], ...] = ()  # their names and tokens
    tasks: tuple[tuple[str, int], ...] = ()
    plain: int | None = None  # the token for text without time stamps, behind language and task
    last: int | None = None


@dataclass(frozen=True)
class Sizes:
    """Of an engine: `slots` sequences at once, of at most `context` tokens, in pages of `page_size` tokens, of which
    there are `pages`; `chunks` are what prefill plans take, ascending; `vocabulary` the logits of a token. `source` is
    what an encoder reads. `paged` says whether all that a sequence keeps lies in its pages."""

    slots: int
    context: int
    page_size: int
    pages: int
    chunks: tuple[int, ...]
    vocabulary: int
    source: Source | None = None
    paged: bool = True

    @property
    def plans(self) -> list[str]:
        """The plans' names."""
        encode = [] if self.source is None else [f"encode-{n}" for n in self.source.lengths]
        return ["decode", "sample", *encode, *(f"prefill-{c}" for c in self.chunks)]

    @property
    def pages_each(self) -> int:
        """Pages of a sequence that is as long as it can be."""
        return -(-self.context // self.page_size)
