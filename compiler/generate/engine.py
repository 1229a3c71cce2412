"""What runs a model that generates: its plans with the cache, one row of the decode batch (a slot) per sequence.

Everything that a step needs lies in the states of the plans: the last token of each slot, its position, its pages, how
it is sampled. The host changes them where a sequence begins or ends, and does nothing for a token but read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mlirc.generate.sizes import Source


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits, in this order: the penalty, the temperature, then the limits.

    `temperature` 0 takes the most probable token (the first of equal ones). `top_k` 0 and `top_p` 1 limit nothing;
    `min_p` keeps tokens at least that probable as a share of the most probable one's. `repetition_penalty` divides
    positive logits of tokens that the sequence has (its prompt included), and multiplies negative ones. `seed`: the
    tokens of a sequence depend on it and on their positions alone, never on what else is in the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0


class Engine(Protocol):
    """The plans of one model with one cache. Nothing here is safe for several threads at once."""

    slots: int  # rows of the decode batch: how many sequences run at once
    context: int  # most tokens of one sequence, prompt included
    page_size: int  # tokens per page of the cache
    pages: int  # pages of the pool, of which page 0 belongs to no sequence: idle slots write there
    chunks: tuple[int, ...]  # how many tokens one run of a prefill plan takes, ascending; the first is 1
    vocabulary: int
    # Whether all that a sequence keeps lies in its pages, which others may share then. Where it does not, a prompt is
    # read from its beginning on with nothing decoded between its parts, and nothing is judged by `verify`.
    paged: bool
    source: Source | None  # what `encode` takes, of an encoder-decoder

    def assign(self, slot: int, pages: Sequence[int], sampling: Sampling, prompt: Sequence[int]) -> None:
        """Makes a slot a new sequence's. `pages` are all that it will need; `prompt` is for the repetition penalty."""

    def encode(self, slot: int, source: Any, begin: int) -> None:
        """Of an encoder-decoder: encodes the source of a slot's sequence, which begins with `begin` tokens."""

    def extend(self, slot: int, pages: Sequence[int]) -> None:
        """Gives a slot's sequence more pages: `pages` are all that it has now."""

    def release(self, slot: int) -> None:
        """The slot is idle: its pages are all page 0, its position is 0."""

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> int:
        """Reads `tokens` (at least one) into a slot's cache from position `start` on, in chunks, and returns the token
        that is sampled after the last of them, which is the slot's next input."""

    def verify(self, slot: int, tokens: Sequence[int], start: int) -> list[int]:
        """As `prefill` for at most `verify_limit` tokens, and returns the token that is sampled after each of them."""

    verify_limit: int

    def rewind(self, slot: int, token: int, position: int) -> None:
        """The slot's next input is `token` at `position`: what the cache holds from there on will be written anew."""

    # How many steps it is of use to begin before the tokens of the one in front of them are asked for.
    ahead: int

    def begin(self) -> None:
        """Begins a step of all slots behind those that were begun, whose tokens are its inputs. What it makes for a
        slot that is released, assigned or read into from now on means nothing. A slot whose sequence has ended may be
        in it: what belongs behind the slot's pages is not written."""

    def decode(self) -> np.ndarray:
        """The oldest step that was begun and not asked for (where there is none, one is begun): int64 [slots], the
        token that each has sampled, which is its next input. Those of idle slots mean nothing."""

    def drop(self) -> None:
        """Forgets the steps that were begun and not asked for; their slots have moved on."""

    def close(self) -> None:
        """Frees the device's memory."""
