"""The generator of a compiled model that draws random numbers: a seed, and a place in its sequence (docs/random.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlirc.errors import MlircError

DEFAULT_SEED = 67280421310721  # PyTorch's own
_BITS = 1 << 64


class RandomState:
    """`draws` is the plan's: for each draw of a call the words by which its offset is ahead of the call's, and, last,
    the words that a call uses. Two models that are seeded alike give the same numbers, call by call."""

    def __init__(self, draws: Sequence[int], seed: int = DEFAULT_SEED):
        self.draws = tuple(draws)
        self.manual_seed(seed)

    def manual_seed(self, seed: int, offset: int = 0) -> None:
        """Starts the sequence of a seed, from its beginning, or `offset` words behind it. Raises MlircError for what is
        no integer of 64 bits."""
        if not isinstance(seed, int) or isinstance(seed, bool) or not -(_BITS >> 1) <= seed < _BITS:
            raise MlircError(f"manual_seed: {seed!r} is no seed: give an integer of 64 bits")
        self.seed, self.offset = seed % _BITS, offset % _BITS

    def state(self) -> np.ndarray:
        """Int64 [1 + draws, 2] for the next call: in column 0 the seed, and then the offset of every draw."""
        numbers = np.zeros((len(self.draws), 2), np.uint64)
        numbers[0, 0] = self.seed
        for row, words in enumerate(self.draws[:-1], start=1):
            numbers[row, 0] = (self.offset + words) % _BITS
        return numbers.view(np.int64)

    def advance(self) -> np.ndarray:
        """The state for the next call, which is past then."""
        found = self.state()
        self.offset = (self.offset + self.draws[-1]) % _BITS
        return found
