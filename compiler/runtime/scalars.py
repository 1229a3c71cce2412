"""Inputs that are numbers: what a caller gives, as the bytes that kernels take by value, and grids that they decide."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.arrays import NUMPY_DTYPES, check, view
from mlirc.runtime.plan import Dim3, Extent, TensorSpec

_FLOATS = ("f64", "f32", "f16", "bf16")


class Decided(Protocol):
    """A launch, in the plan or of a kernel's host function."""

    @property
    def grid(self) -> Dim3: ...
    @property
    def extents(self) -> dict[int, Extent]: ...


def scalar_array(given: Any, spec: TensorSpec) -> np.ndarray:
    """What a caller gives for a scalar as an array of no dimension: a number, or a tensor on the host of the scalar's
    dtype and no dimension. Raises MlircError for a number that the dtype does not hold, and for a tensor on a GPU."""
    dtype = NUMPY_DTYPES[spec.dtype]
    if isinstance(given, bool | int | float) and not isinstance(given, np.generic):
        wrong = isinstance(given, float) and spec.dtype not in _FLOATS
        wrong = wrong or (spec.dtype == "i1" and given not in (0, 1))
        if dtype.kind in "iu" and not wrong:
            limits = np.iinfo(dtype)
            wrong = not limits.min <= given <= limits.max
        if wrong:
            raise MlircError(f"scalar '{spec.name}': {given!r} is no {spec.dtype}")
        return np.array(given, dtype)
    seen = view(given, spec.name)
    if seen.device is not None:
        raise MlircError(
            f"scalar '{spec.name}': lies on GPU {seen.device}, but the model takes the number itself: give it, or "
            f"compile the model with --input '{spec.name}={spec.dtype}[]'"
        )
    check(seen, spec)
    raw = (ctypes.c_char * seen.nbytes).from_address(seen.pointer)
    return np.frombuffer(bytes(raw), dtype).reshape(()).copy()


def grid_of(launch: Decided, numbers: Mapping[int, Any], names: Mapping[int, str]) -> Dim3:
    """The grid of a launch for the scalars that decide it, by the numbers of the plan's inputs (`names` are theirs):
    with a zero where there is nothing to do. Raises MlircError for one below 0, or above what the launch takes."""
    grid = list(launch.grid)
    for dim, extent in launch.extents.items():
        value = int(numbers[extent.scalar])
        found = extent.blocks(value)
        if value < 0 or found > grid[dim]:
            most = grid[dim] // extent.factor * extent.divisor
            raise MlircError(
                f"scalar '{names[extent.scalar]}': {value} is not from 0 to {most}, as the model was compiled for"
            )
        grid[dim] = found
    x, y, z = grid
    return x, y, z
