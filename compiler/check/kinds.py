"""Kinds of inputs: what a model, or one kernel, is run on besides plain ones. Without PyTorch: `cases.py` makes tensors
of them for `--check`, and `mlirc.device.input_sets` arrays for the host device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PLAIN = "plain"
# From normal floats to others, element by element; the result is to be cast to the type that they had.
FLOATS: dict[str, Callable[[Any], Any]] = {
    "floats x100": lambda x: x * 100,
    "tiny floats": lambda x: x * 1e-6,
    "zeros": lambda x: x != x,
    "large negative": lambda x: -50 - abs(x) * 50,
}
# One element of a tensor, in its middle, is another.
ELEMENTS = {"one NaN": float("nan"), "one infinity": float("inf")}
IDS = "first and last id"  # of every table
INTEGERS = "all integers"  # over the whole range of their type, with its ends


def edges(low: int, high: int) -> tuple[int, ...]:
    """What a tensor of all integers in [low, high] begins with."""
    return low, high, 0, -1 if low else 1, 1
