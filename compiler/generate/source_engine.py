"""The engine of an encoder-decoder: slots have a source, which is encoded once for each sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlirc.generate.plan_engine import PlanEngine
from mlirc.generate.requests import check_source
from mlirc.generate.sizes import Sizes


class SourceEngine(PlanEngine):
    """As `PlanEngine`, with plans `encode-N`."""

    def __init__(self, models: Mapping[str, Any], sizes: Sizes):
        super().__init__(models, sizes)
        self._of_slot["begin"] = np.zeros(self.slots, np.int64)
        self._held: list[Any] = [None] * self.slots  # the source that is encoded for a slot

    def encode(self, slot: int, source: Any, begin: int) -> None:
        """Encodes a slot's source: token ids, or f32 [bins, frames]. `begin`: how many tokens its sequence begins with.

        Raises MlircError for a source that does not fit. One that the slot has already (the same object) stays."""
        self._check_slot(slot)
        self._set(slot, {"begin": begin})
        if self._held[slot] is source:
            return
        given, count = self.prepared(source)
        self._held[slot] = None
        self._write_states()
        numbers = {"slot": np.array(slot, np.int64), "count": np.array(count, np.int64)}
        self._start(f"encode-{given.shape[-1]}", source=given, **numbers).result()
        self._held[slot] = source

    def prepared(self, source: Any) -> tuple[np.ndarray, int]:
        """A source as an encode plan takes it, and how much of it is real. Raises MlircError where it does not fit."""
        about = self.source
        assert about is not None
        check_source(source, about, self.vocabulary)
        if about.kind == "features":
            return np.ascontiguousarray(source[None]), about.lengths[-1]
        length = next(n for n in about.lengths if n >= len(source))
        padded = np.zeros((1, length), np.int64)
        padded[0, : len(source)] = source
        return padded, len(source)
