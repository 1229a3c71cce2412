"""The shapes of a batch norm's results without its arithmetic.

PyTorch finds them by taking the norm apart into ten operations on tensors without values, anew for every number of
channels: a quarter of the export of a network with a hundred norms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._decomp.decompositions as decompositions
from torch._prims_common import make_contiguous_strides_for
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_HELPER = "native_batch_norm_helper"
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by rank


@contextlib.contextmanager
def batch_norms_for_shapes() -> Iterator[None]:
    """Runs the body with batch norms by running statistics left out wherever only shapes are asked for: on tensors
    without values, and outside of any trace, which would record the arithmetic."""
    original = getattr(decompositions, _HELPER)
    setattr(decompositions, _HELPER, _shortened(original))
    try:
        yield
    finally:
        setattr(decompositions, _HELPER, original)


def _shortened(helper: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any) -> Any:
        if training or get_proxy_mode() is not None or not _is_plain(x, (weight, bias, mean, var)):
            return helper(x, weight, bias, mean, var, training, *rest)
        nothing = x.new_empty((0,))
        return torch.empty_like(x), nothing, nothing, mean, var

    return run


def _is_plain(x: Any, vectors: tuple[Any, ...]) -> bool:
    """Whether the result is certainly a tensor like x: everything is on the CPU without values, and x contiguous,
    or with its channels last."""
    if not isinstance(x, torch._subclasses.FakeTensor) or x.device.type != "cpu" or x.dim() < 2:
        return False
    if any(type(n) is not int for n in x.shape) or any(v is not None and v.shape != x.shape[1:2] for v in vectors):
        return False
    channels_last = _CHANNELS_LAST.get(x.dim())
    return x.stride() == make_contiguous_strides_for(x.shape) or (
        channels_last is not None and x.is_contiguous(memory_format=channels_last)
    )
