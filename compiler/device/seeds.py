"""Runs a model in several orders of its threads: what it computes must not depend on the order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mlirc.device.compiled import HostModel
from mlirc.device.numbers import different
from mlirc.errors import MlircError


def run_seeds(model: HostModel, seeds: Iterable[int]) -> None:
    """Runs the model on the inputs bound to it with each seed in turn; `model.outputs` are then those of the last one.
    Raises MlircError for a finding, and for an output whose bits differ from those of the first seed, naming the kernel
    that was first to differ."""
    first, sets = None, model.input_sets
    tried: dict[str, list[str]] = {}  # on the sets with the first seed, which is enough
    restore = model.remember()  # every seed starts from the same state
    for seed in seeds:
        restore()
        model.seed = seed
        model.input_sets = sets if first is None else ()
        try:
            model.launch()
        finally:
            model.input_sets = sets
        tried = tried or model.report.sets
        model.report.sets = tried
        now = seed, [a.copy() for a in (*model.outputs, *model.written)], list(model.digests)
        first = first or now
        for spec, a, b in zip(model.plan.results, first[1], now[1], strict=True):
            if different(a, b).any():
                raise MlircError(
                    f"host device: {spec.kind} '{spec.name}' depends on the order of threads: {_difference(a, b)} "
                    f"between seeds {first[0]} and {seed}; {_culprit(first[2], now[2])}: look there for float atomics, "
                    "or for accesses that nothing orders"
                )


def _difference(a: np.ndarray, b: np.ndarray) -> str:
    """How many elements differ in their bits, and the first of them."""
    where = np.flatnonzero(different(a, b))
    at = [int(i) for i in np.unravel_index(where[0], a.shape)]
    return f"{len(where)} of {a.size} elements differ (the first at {at}: {a.flat[where[0]]} and {b.flat[where[0]]})"


def _culprit(a: list[tuple[str, bytes]], b: list[tuple[str, bytes]]) -> str:
    """The first of the calls whose results differ."""
    number = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    return f"the first kernel that differs is {a[number][0]}, call {number + 1} of {len(a)}"
