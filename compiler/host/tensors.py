"""Torch tensors to and from the NumPy arrays that host execution takes (bf16 as `ml_dtypes.bfloat16`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from mlirc.errors import MlircError


def to_numpy(tensor: Any) -> np.ndarray:
    """A torch tensor's values; shares memory where the tensor is contiguous and on the CPU."""
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def from_numpy(array: np.ndarray) -> Any:
    """The torch tensor with an array's values, which shares its memory."""
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
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
        value = next(given, None) if kind == "input" else tensors[name]
        if value is None:
            raise MlircError(f"argument {i} of the model has no value: {len(inputs)} inputs are too few")
        arguments.append(to_numpy(value))
    return [from_numpy(r) for r in run_module(module, arguments)]
