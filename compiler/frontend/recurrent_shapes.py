"""The shapes of a recurrent layer's results without its time steps.

PyTorch finds the shapes of an LSTM's or a GRU's results by running all of its steps on tensors without values: half a
minute for six layers of 512 steps. One step and a repetition have the same shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._decomp.decompositions as decompositions
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_LAYERS = ("one_layer_rnn", "one_layer_lstm")


@contextlib.contextmanager
def one_step_for_shapes() -> Iterator[None]:
    """Runs the body with PyTorch's layers cut to one step wherever only shapes are asked for: on tensors without
    values, and outside of any trace, which would record the steps."""
    originals = {name: getattr(decompositions, name) for name in _LAYERS}
    for name, original in originals.items():
        setattr(decompositions, name, _shortened(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(decompositions, name, original)


def _shortened(layer: Callable[..., Any]) -> Callable[..., Any]:
    def run(inp: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_shape = isinstance(inp, torch._subclasses.FakeTensor) and get_proxy_mode() is None
        if not is_shape or inp.shape[0] < 2:
            return layer(inp, *args, **kwargs)
        out, last = layer(inp[:1], *args, **kwargs)
        return out.repeat(inp.shape[0], *[1] * (out.dim() - 1)), last

    return run
