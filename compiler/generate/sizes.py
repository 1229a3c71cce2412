"""The sizes of an engine."""

from __future__ import annotations

from dataclasses import dataclass

VERIFY_LIMIT = 8  # chunks up to this long give the token after each of theirs


@dataclass(frozen=True)
class Sizes:
    """Of an engine: `slots` sequences at once, of at most `context` tokens, in pages of `page_size` tokens, of which
    there are `pages`; `chunks` are what prefill plans take, ascending; `vocabulary` the logits of a token."""

    slots: int
    context: int
    page_size: int
    pages: int
    chunks: tuple[int, ...]
    vocabulary: int

    @property
    def pages_each(self) -> int:
        """Pages of a sequence that is as long as it can be."""
        return -(-self.context // self.page_size)
