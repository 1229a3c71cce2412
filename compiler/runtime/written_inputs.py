"""Inputs that a run changes in place: which tensors may be given for them, and how the new values get to the caller's
tensors that do not lie where the kernels write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.arrays import View
from mlirc.runtime.lazy import is_lazy
from mlirc.runtime.plan import TensorSpec

Held = tuple[str, View, bool]  # memory: whose it is, in words; where; whether the model writes into it


def check_written(
    specs: Sequence[TensorSpec], seen: Sequence[View], given: Sequence[Any], held: Sequence[Held]
) -> None:
    """Raises MlircError for an input that is written and is read-only or lazily negated, and for one that shares memory
    with another input or with what is `held` on the GPU, where one of the two is written: the kernels take them for
    apart. `given`: the caller's tensors."""
    for spec, tensor in zip(specs, given, strict=True):
        if spec.kind == "inout" and (isinstance(tensor, np.generic) or not getattr(_flags(tensor), "writeable", True)):
            raise MlircError(f"input '{spec.name}': is read-only, but the model writes into it: give a copy")
        if spec.kind == "inout" and is_lazy(tensor):
            raise MlircError(f"input '{spec.name}' is changed by the model, and lazily negated: give a resolved one")
    inputs = [(f"input '{s.name}'", v, s.kind == "inout") for s, v in zip(specs, seen, strict=True)]
    for i, (name, place, writes) in enumerate(inputs):
        owned = held if place.device is not None else ()  # hundreds: not for every number of a call
        for other, other_place, also_writes in [*inputs[i + 1 :], *owned]:
            if (writes or also_writes) and _overlap(place, other_place):
                which = name if writes else other
                raise MlircError(f"{name} shares memory with {other}, and the model writes into {which}: give a copy")


def _flags(tensor: Any) -> Any:
    return tensor.flags if isinstance(tensor, np.ndarray) else None


def _overlap(a: View, b: View) -> bool:
    if a.device != b.device or not a.nbytes or not b.nbytes:
        return False
    return a.pointer < b.pointer + b.nbytes and b.pointer < a.pointer + a.nbytes


def settle(seen: View, tensor: Any) -> None:
    """Hands the new values in a view's memory to the caller's NumPy array, where the view is of a dense copy of it."""
    array = seen.owner
    if isinstance(tensor, np.ndarray) and isinstance(array, np.ndarray) and not np.shares_memory(array, tensor):
        tensor[...] = array
