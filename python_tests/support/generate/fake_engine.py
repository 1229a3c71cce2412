"""An engine without a model: the next token is a hash of the tokens that it finds in its pool through a slot's pages.

Whatever is wrong with a page, a position, a slot or an order of calls changes the tokens, or fails an assertion.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence

import numpy as np

from mlirc.generate.engine import Sampling

_GREEDY = Sampling()
_NO_TOKEN = -2  # what a step makes of a slot whose next place is behind its pages
_NOTHING = -1  # what a page holds where nothing was written


def next_token(tokens: Sequence[int], sampling: Sampling = _GREEDY, vocabulary: int = 101, seen=None) -> int:
    """The token behind these. A seed counts where there is a temperature, what was seen where there is a penalty."""
    parts: list[object] = [list(map(int, tokens))]
    if sampling.temperature:
        parts.append(sampling)
    if sampling.repetition_penalty != 1:
        parts.append(sorted(map(int, set(tokens) if seen is None else seen)))
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest()) % vocabulary


def alone(prompt, count, sampling=_GREEDY, vocabulary=101, stop=()) -> list[int]:
    """The new tokens of a sequence that nothing else runs beside."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(next_token(tokens, sampling, vocabulary))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


class FakeEngine:
    """Fulfils `mlirc.generate.engine.Engine`, and counts what is asked of it in `calls`."""

    paged, source = True, None
    ahead = 0

    def __init__(
        self, slots=3, context=64, page_size=4, pages=None, chunks=(1, 4, 8), vocabulary=101, verify_limit=8
    ) -> None:
        self.slots, self.context, self.page_size = slots, context, page_size
        self.pages = 1 + slots * -(-context // page_size) if pages is None else pages
        self.chunks, self.vocabulary, self.verify_limit = chunks, vocabulary, verify_limit
        self.pool = np.full((self.pages, page_size), _NOTHING, np.int64)
        self.table: list[list[int]] = [[] for _ in range(slots)]  # empty: the slot is idle
        self.sampling = [_GREEDY] * slots
        self.seen: list[set[int]] = [set() for _ in range(slots)]
        self.token, self.position = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self.begun: deque[np.ndarray] = deque()
        self.calls: list[tuple] = []
        self.closed = False

    def assign(self, slot, pages, sampling, prompt) -> None:
        assert not self.table[slot], f"slot {slot} is in use"
        self.sampling[slot], self.seen[slot] = sampling, set(map(int, prompt))
        self.token[slot] = self.position[slot] = 0
        self._give(slot, pages)
        self.calls.append(("assign", slot))

    def extend(self, slot, pages) -> None:
        assert self.table[slot] == list(pages)[: len(self.table[slot])], "a page was exchanged"
        self._give(slot, pages)
        self.calls.append(("extend", slot))

    def release(self, slot) -> None:
        assert self.table[slot], f"slot {slot} is idle"
        self.table[slot] = []
        self.position[slot] = 0
        self.calls.append(("release", slot))

    def prefill(self, slot, tokens, start) -> int:
        self.calls.append(("prefill", slot, len(tokens)))
        return self._feed(slot, tokens, start)[-1]

    def verify(self, slot, tokens, start) -> list[int]:
        assert len(tokens) <= self.verify_limit
        self.calls.append(("verify", slot, len(tokens)))
        return self._feed(slot, tokens, start)

    def rewind(self, slot, token, position) -> None:
        self.token[slot], self.position[slot] = token, position
        self.calls.append(("rewind", slot))

    def decode(self) -> np.ndarray:
        if not self.begun:
            self.begin()
        return self.begun.popleft()

    def begin(self) -> None:
        assert len(self.begun) <= self.ahead
        self.calls.append(("decode", sum(map(bool, self.table))))
        out = np.zeros(self.slots, np.int64)
        for slot in range(self.slots):
            if not self.table[slot]:
                self.pool[0, self.position[slot] % self.page_size] = 77
                out[slot] = 77
                continue
            if self.begun and self.position[slot] >= len(self.table[slot]) * self.page_size:
                out[slot] = _NO_TOKEN  # the sequence has ended, which nobody knew
                continue
            self._write(slot, self.position[slot], self.token[slot])
            out[slot] = self.token[slot] = self._next(slot, self.position[slot] + 1)
            self.seen[slot].add(int(out[slot]))
            self.position[slot] += 1
        self.begun.append(out)

    def drop(self) -> None:
        self.begun.clear()

    def close(self) -> None:
        self.closed = True

    def _give(self, slot, pages) -> None:
        assert pages and 0 not in pages and len(set(pages)) == len(pages) and max(pages) < self.pages
        self.table[slot] = list(pages)

    def _feed(self, slot, tokens, start) -> list[int]:
        assert len(tokens) and self.table[slot], "nothing to read, or nowhere to write"
        out = []
        for i, token in enumerate(tokens):
            self._write(slot, start + i, token)
            out.append(self._next(slot, start + i + 1))
        # A plan reads a whole chunk: behind the tokens are others, as far as the sequence's pages go.
        chunk = next((c for c in self.chunks if c >= len(tokens)), len(tokens))
        for position in range(start + len(tokens), min(start + chunk, len(self.table[slot]) * self.page_size)):
            self._write(slot, position, 88)
        self.token[slot], self.position[slot] = out[-1], start + len(tokens)
        self.seen[slot].add(out[-1])
        return out

    def _write(self, slot, position, token) -> None:
        assert position < self.context
        page = self.table[slot][position // self.page_size]
        self.pool[page, position % self.page_size] = token

    def _next(self, slot, count) -> int:
        tokens = self.pool[self.table[slot]].reshape(-1)[:count]
        assert len(tokens) == count and _NOTHING not in tokens
        return next_token(tokens, self.sampling[slot], self.vocabulary, self.seen[slot])
