"""JSON in which one value is another: of another type, gone, or there twice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

VALUES: tuple[Any, ...] = (None, True, -1, 1 << 70, 1.5, "x", "", [], {}, [1], {"x": 1}, "\u00e9\n", float("nan"))


def places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """The keys and numbers that lead to each value inside of a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield (*at, key)
        yield from places(part, (*at, key))


def altered(document: Any, generator: np.random.Generator, found: list[tuple] | None = None) -> tuple[Any, str]:
    """A copy with one change, and which it is. `found`: the document's `places`, where many are made of it."""
    found = found or list(places(document))
    at = found[generator.integers(len(found))]
    new = copy.deepcopy(document)
    holder = new
    for key in at[:-1]:
        holder = holder[key]
    way = generator.integers(10)
    if way == 0 and isinstance(holder, dict):
        del holder[at[-1]]
        return new, f"{at} gone"
    if way == 0:
        holder.append(copy.deepcopy(holder[-1]))
        return new, f"{at} twice"
    value = VALUES[generator.integers(len(VALUES))]
    holder[at[-1]] = copy.deepcopy(value)
    return new, f"{at} = {value!r}"
