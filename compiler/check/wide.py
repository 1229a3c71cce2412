"""PyTorch in FP64, whatever a model asks for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class Float64Mode(TorchFunctionMode):
    """Inside, a request for a narrower float type asks for FP64: models write `.to(torch.float32)` in their norms."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            func = Tensor.double
        return func(*[_widened(a) for a in args], **{k: _widened(v) for k, v in (kwargs or {}).items()})


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value
