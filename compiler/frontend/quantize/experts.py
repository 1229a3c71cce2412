"""Layers of experts whose weights are packed: one parameter of three dimensions each, a matrix for every expert."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from mlirc.frontend.experts import experts_forward
from mlirc.frontend.quantize.dequantize import dequantize
from mlirc.frontend.quantize.packing import PANEL
from mlirc.frontend.quantize.rounding import Packed
from mlirc.frontend.quantize.scheme import Scheme

_PROJECTIONS = ("gate_up_proj", "up_proj", "down_proj")  # what transformers' experts interface calls them


class QuantizedMatrices(torch.nn.Module):
    """The weights [N, K] of E experts in buffers with E in front: each expert's is packed as a linear layer's."""

    def __init__(self, packed: Packed, scheme: Scheme, experts: int, k: int):
        super().__init__()
        self.scheme, self.in_features = scheme, k
        for name, tensor in packed.parts().items():
            self.register_buffer(name, tensor.view(experts, tensor.shape[0] // experts, -1))
        if packed.zeros is None:
            self.weight_zeros = None
        self.out_features = int(self.weight_scales.shape[1])  # type: ignore[index, union-attr]

    def chosen(self, which: torch.Tensor | None, start: int, size: int) -> torch.Tensor:
        """Rows [start, start + size) of the experts numbered `which` (int64 [G]; of -1, what is of no use; None: all),
        as floats [G, size, K]. What is not chosen is not unpacked."""

        whole = -self.out_features % PANEL == start % PANEL == size % PANEL == 0

        def picked(part: torch.Tensor | None, rows: int = 1) -> torch.Tensor | None:
            """The chosen rows of a part that has one for so many rows of the weight."""
            if part is None:
                return None
            if whole:
                part = part.narrow(1, start // rows, size // rows)
            elif rows == 1:  # as many as the panels of words have, of which some are of no use
                part = torch.nn.functional.pad(part, (0, 0, 0, -self.out_features % PANEL))
            part = part if which is None else part.index_select(0, which.clamp(min=0))
            return part.reshape(-1, part.shape[2])

        words = picked(self.weight_words, PANEL)  # type: ignore[arg-type]
        scales, zeros = picked(self.weight_scales), picked(self.weight_zeros)  # type: ignore[arg-type]
        assert words is not None and scales is not None
        floats = dequantize(words, scales, zeros, self.scheme.format.name, self.in_features, self.scheme.group)
        if whole:
            return floats.reshape(-1, size, self.in_features)
        rows = self.out_features + -self.out_features % PANEL
        return floats.reshape(-1, rows, self.in_features).narrow(1, start, size)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, scheme={self.scheme}"


def is_experts(module: Any) -> bool:
    """Whether a module is transformers' experts, in whose place `experts_forward` can be called."""
    return hasattr(module, "has_gate") and hasattr(module, "is_transposed") and hasattr(module, "num_experts")


def projections(module: Any) -> Iterator[str]:
    """The names of a module's parameters that hold a matrix for each expert."""
    for name in _PROJECTIONS if is_experts(module) else ():
        parameter = module._parameters.get(name)
        if (
            parameter is not None
            and parameter.dim() == 3
            and parameter.is_floating_point()
            and 0 not in parameter.shape
        ):
            yield name


def put_matrices(experts: Any, name: str, matrices: QuantizedMatrices) -> None:
    """Puts packed weights in the place of a parameter of experts, which from then on compute by `experts_forward`."""
    del experts._parameters[name]
    experts.add_module(name, matrices)
    experts.__class__ = _packed_class(type(experts))  # type: ignore[arg-type]


@functools.cache
def _packed_class(kind: type) -> type:
    if kind.__dict__.get("forward") is experts_forward:
        return kind
    return type(kind.__name__, (kind,), {"forward": experts_forward, "__module__": kind.__module__})
