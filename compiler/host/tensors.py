"""Torch tensors to and from the NumPy arrays that host execution takes (bf16 and 8-bit floats as
`ml_dtypes`' types)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.arrays import NOT_NUMPYS, NUMPY_DTYPES
from mlirc.runtime.lazy import resolved
from mlirc.runtime.plan import GIVEN


def to_numpy(tensor: Any) -> np.ndarray:
    """A torch tensor's values; shares memory where the tensor is contiguous and on the CPU."""
    import torch

    from mlirc.frontend.inputs import DTYPES

    tensor = resolved(tensor).cpu().contiguous()
    for name in NOT_NUMPYS:
        if tensor.dtype == DTYPES[name]:
            return tensor.view(torch.int16 if name == "bf16" else torch.int8).numpy().view(NUMPY_DTYPES[name])
    return tensor.numpy()


def from_numpy(array: np.ndarray) -> Any:
    """The torch tensor with an array's values, which shares its memory."""
    import torch

    from mlirc.frontend.inputs import DTYPES

    for name in NOT_NUMPYS:
        if array.dtype == NUMPY_DTYPES[name]:
            return torch.from_numpy(array.view(f"i{array.itemsize}")).view(DTYPES[name])
    return torch.from_numpy(array)


def run_level(module: Any, inputs: Sequence[Any], tensors: Mapping[str, Any]) -> list[Any]:
    """Runs `@main` of a level on the CPU with torch tensors: `inputs` in order, weights and constants by name. Random
    numbers are those of a model's first call."""
    from mlirc.host.jit import run_module
    from mlirc.ir import levels
    from mlirc.mlir import context, ir

    with context():
        arg_attrs = list(levels.functions(module)["main"].arg_attrs)
    given, state = iter(inputs), levels.random_state(module)
    arguments = []
    for i, attributes in enumerate(arg_attrs):
        kind = ir.StringAttr(attributes["mlirc.kind"]).value if "mlirc.kind" in attributes else "input"
        name = ir.StringAttr(attributes["mlirc.name"]).value if "mlirc.name" in attributes else ""
        if kind == "random":
            arguments.append(state[name])
            continue
        value = next(given, None) if kind in GIVEN else tensors[name]
        if value is None:
            raise MlircError(f"argument {i} of the model has no value: {len(inputs)} inputs are too few")
        arguments.append(to_numpy(value))
    return [from_numpy(r) for r in run_module(module, arguments)]
