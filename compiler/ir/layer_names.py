"""Which layers a graph of a few of a model's layers stands for, and what theirs and all layers' tensors are called."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlirc.errors import MlircError


class NotRepeated(MlircError):
    """A graph of a few layers is none that can be repeated. Not for the user: the whole graph is made then."""


@dataclass(frozen=True)
class Layers:
    """A graph of `count` layers, of which a few are in it: the first `first`, two periods of `period` layers, and the
    last ones. Those between have the graph of the second period again and again. Names of what belongs to a layer begin
    with one of `places`, a dot, and its number."""

    places: tuple[str, ...]
    count: int
    first: int
    period: int

    @property
    def start(self) -> int:
        """The second period's first layer."""
        return self.first + self.period

    @property
    def copies(self) -> int:
        """How often the second period comes again: as often as that leaves at least one layer behind it."""
        return (self.count - 1 - self.start) // self.period - 1

    @property
    def left_out(self) -> range:
        """The layers that are not in the graph."""
        return range(self.start + self.period, self.start + self.period * (self.copies + 1))

    @functools.cached_property
    def _pattern(self) -> re.Pattern:
        places = "|".join(re.escape(p) for p in sorted(self.places, key=len, reverse=True))
        return re.compile(rf"(?<![\w.])({places})\.(\d+)(?![\w])")

    def number(self, name: str) -> int | None:
        """The number of the layer that a tensor belongs to."""
        match = self._pattern.match(name)
        return int(match[2]) if match else None

    def moved(self, text: str, by: int) -> str:
        """A name, or any text with names in it, of so many layers further on."""
        return self._pattern.sub(lambda m: f"{m[1]}.{int(m[2]) + by}", text)

    def moved_from_second(self, text: str, by: int) -> str:
        """As `moved`, for what comes from the second period: the layer behind that is the one that follows there."""
        left, gap = self.left_out, len(self.left_out)

        def number(match: re.Match) -> str:
            n = int(match[2])
            return f"{match[1]}.{(n - gap if n > left[-1] else n) + by}"

        return self._pattern.sub(number, text)

    def spread(self, names: Sequence[str]) -> list[tuple[int, int]]:
        """All layers' names in order, from those of the graph: the place of each among `names`, and how many layers
        further on it is. Behind names of the second period in a row come those of the layers that are left out."""
        found: list[tuple[int, int]] = []
        run: list[int] = []
        for i, name in enumerate([*names, ""]):
            number = self.number(name)
            if number is not None and self.start <= number < self.start + self.period:
                run.append(i)
                continue
            found += [(at, self.period * copy) for copy in range(self.copies + 1 if run else 0) for at in run]
            run = []
            if i < len(names):
                found.append((i, 0))
        return found

    def all_names(self, names: Sequence[str]) -> dict[str, str]:
        """All layers' names, each with the name of the graph that it comes from."""
        return {self.moved(names[at], by): names[at] for at, by in self.spread(names)}


def regular(kinds: Sequence[object], places: tuple[str, ...]) -> Layers | None:
    """The shortest graph of layers of these kinds that stands for all; None where none is much shorter."""
    count = len(kinds)
    found: list[Layers] = []
    for period in range(1, count // 3 + 1):
        same = [kinds[i] == kinds[i + period] for i in range(count - period)]
        first = next((i + 1 for i in reversed(range(len(same))) if not same[i]), 0)
        layers = Layers(places, count, max(1, first), period)
        if layers.copies * period >= 2:
            found.append(layers)
    return max(found, key=lambda layers: len(layers.left_out), default=None)
