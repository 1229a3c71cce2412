"""Inputs at the bound of a model's sizes, on the host, with padding that shows where anything reads it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mlirc.runtime.fitting import put
from mlirc.runtime.sizes import Sizes

_SEED = 5


def padded(
    sizes: Sizes, arrays: Mapping[str, np.ndarray], found: Mapping[str, int], *, wild: bool = True
) -> dict[str, np.ndarray]:
    """The inputs of a run, by name: those given, at the bound, and the sizes. Padding is NaN in floats and any number
    in integers where it is `wild`, which a right model never shows, and else 0."""
    made = {name: np.array(found[name], np.int64) for name in sizes.names}
    for name, array in arrays.items():
        dims = sizes.inputs.get(name)
        if dims is None:
            made[name] = array
            continue
        shape = [factor.bound for factors in dims for factor in factors]
        made[name] = _wild(shape, array.dtype) if wild else np.zeros(shape, array.dtype)
        put(array, made[name], dims, found)
    return made


def _wild(shape: list[int], dtype: np.dtype) -> np.ndarray:
    if dtype.kind not in "iub":  # the 8-bit floats and bf16 have a NaN, too
        return np.full(shape, np.nan).astype(dtype)
    rng = np.random.default_rng(_SEED)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
