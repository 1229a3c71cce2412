"""Linear layers with packed weights, and putting them into a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.module_copy import copied_module
from mlirc.frontend.quantize.convolutions import (
    QuantizedConvolution,
    ScaledConvolution,
    as_matrix,
    as_weight,
    is_convolution,
)
from mlirc.frontend.quantize.experts import QuantizedMatrices, projections, put_matrices
from mlirc.frontend.quantize.packing import shape_of
from mlirc.frontend.quantize.rounding import Packed, Rounded, Weight, quantize
from mlirc.frontend.quantize.scaled import ScaledLinear
from mlirc.frontend.quantize.scheme import FP8, Scheme, groups_of

_ROUTERS = ("gate", "router", "shared_expert_gate", "wg")  # names of layers that choose experts


class QuantizedLinear(torch.nn.Module):
    """y = x w^T + bias with a packed w [N, K] in buffers; x [..., K] has the scales' dtype, and so has y [..., N]."""

    def __init__(self, packed: Packed, scheme: Scheme, k: int, bias: torch.nn.Parameter | None):
        super().__init__()
        self.scheme, self.in_features, self.out_features = scheme, k, packed.scales.shape[0]
        for name, tensor in packed.parts().items():
            self.register_buffer(name, tensor)
        if packed.zeros is None:
            self.weight_zeros = None
        self.ordered = packed.order is not None
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> torch.Tensor:
        """The weight as floats [N, K]."""
        columns = self._columns()
        return columns[:, torch.argsort(self.weight_order)] if self.ordered else columns  # type: ignore[arg-type]

    def _columns(self) -> torch.Tensor:
        """The same, in the order in which it is stored."""
        packed = Packed(self.weight_words, self.weight_scales, self.weight_zeros)  # type: ignore[arg-type]
        return packed.floats(self.scheme, self.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.index_select(-1, self.weight_order) if self.ordered else x  # type: ignore[arg-type]
        return torch.nn.functional.linear(x, self._columns(), self.bias)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, scheme={self.scheme}"


@dataclass(frozen=True)
class Place:
    """A layer that is to be quantized: its full name, and whether its weight is [K, N] (transformers' Conv1D). Or one
    parameter of a module of `experts`, `layer`: a weight for each, [E, N, K] or [E, K, N]."""

    name: str
    layer: Any
    transposed: bool
    experts: int = 0

    @property
    def parameter(self) -> str:
        """The full name of the weight."""
        return self.name if self.experts else f"{self.name}.weight"

    @property
    def weight(self) -> torch.Tensor:
        """The weight as the model has it."""
        return getattr(self.layer, self.name.rpartition(".")[2]) if self.experts else self.layer.weight

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K); of experts (E N, K)."""
        if is_convolution(self.layer):
            return self.weight.shape[0], self.weight[0].numel()
        n, k = self.weight.shape[-2:]
        n, k = (k, n) if self.transposed else (n, k)
        return n * max(1, self.experts), k

    def matrix(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight [N, K], as the model has it before; of experts [E N, K]."""
        if is_convolution(self.layer):
            return as_matrix(weight.detach())
        rows = weight.detach().transpose(-2, -1) if self.transposed else weight.detach()
        return rows.reshape(-1, rows.shape[-1]) if self.experts else rows

    def as_given(self, matrix: torch.Tensor) -> torch.Tensor:
        """What `matrix` makes as the model has it."""
        if is_convolution(self.layer):
            return as_weight(matrix, self.weight.shape[1], tuple(self.weight.shape[2:]))
        rows = self.buffer(matrix)
        return rows.transpose(-2, -1) if self.transposed else rows

    def buffer(self, part: torch.Tensor) -> torch.Tensor:
        """A part of a packed weight as its buffer is: of experts with their number in front."""
        return part.view(self.experts, part.shape[0] // self.experts, -1) if self.experts else part


def places_of(module: torch.nn.Module, head: bool = False, convolutions: bool = False) -> Iterator[Place]:
    """The linear layers of a model: without those that make logits (unless `head`) or choose experts, and without those
    whose weight is an embedding's; with `convolutions`, those, too."""
    from transformers.pytorch_utils import Conv1D

    output = getattr(module, "get_output_embeddings", lambda: None)()  # type: ignore[operator]
    embedded = {id(m.weight) for m in module.modules() if isinstance(m, torch.nn.Embedding)}
    if type(module) is torch.nn.Linear and module.weight.is_floating_point() and 0 not in module.weight.shape:
        yield Place("", module, False)
    if convolutions and is_convolution(module) and _has_numbers(module):
        yield Place("", module, False)
    for parent_name, parent in module.named_modules():
        for name, layer in parent.named_children():
            if convolutions and is_convolution(layer) and _has_numbers(layer):
                yield Place(f"{parent_name}.{name}" if parent_name else name, layer, False)
            if type(layer) not in (torch.nn.Linear, Conv1D) or not layer.weight.is_floating_point():
                continue
            routes = name in _ROUTERS and hasattr(parent, "experts")
            makes_logits = layer is output or id(layer.weight) in embedded
            if not routes and (head or not makes_logits) and 0 not in layer.weight.shape:
                yield Place(f"{parent_name}.{name}" if parent_name else name, layer, type(layer) is Conv1D)
        for name in projections(parent):
            owner = f"{parent_name}." if parent_name else ""
            yield Place(f"{owner}{name}", parent, parent.is_transposed, int(parent._parameters[name].shape[0]))


def _has_numbers(layer: Any) -> bool:
    return layer.weight.is_floating_point() and 0 not in layer.weight.shape


def replace_layers(
    module: torch.nn.Module, scheme: Scheme, places: list[Place], packed: Callable[[Place], Weight]
) -> torch.nn.Module:
    """Puts layers with packed weights into a model, one after the other: the old weights go as they are replaced.
    Layers that share a weight share the packed one. Returns the model, or the layer that takes its place."""
    shared: dict[int, Weight] = {}
    while places:
        place = places.pop(0)
        layer, (_, k) = place.layer, place.shape
        key = id(place.weight)
        if key not in shared:
            shared[key] = packed(place)
        if place.experts:
            put_matrices(layer, place.name.rpartition(".")[2], _matrices(shared[key], scheme, place.experts, k))
            continue
        new = _layer(shared[key], scheme, k, layer).train(layer.training)
        if not place.name:
            return new
        parent, _, name = place.name.rpartition(".")
        setattr(module.get_submodule(parent), name, new)
    return module


def _layer(weight: Weight, scheme: Scheme, k: int, layer: Any) -> torch.nn.Module:
    """What takes a layer's place."""
    if isinstance(weight, Rounded):
        return ScaledConvolution(weight, layer) if is_convolution(layer) else ScaledLinear(weight, layer.bias)
    if is_convolution(layer):
        return QuantizedConvolution(weight, scheme, layer)
    return QuantizedLinear(weight, scheme, k, layer.bias)


def _matrices(weight: Weight, scheme: Scheme, experts: int, k: int) -> QuantizedMatrices:
    assert isinstance(weight, Packed), "`require_packed_experts`"
    return QuantizedMatrices(weight, scheme, experts, k)


def placeholder(
    shape: tuple[int, int], scheme: Scheme, dtype: torch.dtype, ordered: bool = False, experts: int = 0
) -> Weight:
    """A packed weight [N, K] of the right shapes and no values, on the default device; of experts [E N, K]."""
    (n, k), groups = shape, groups_of(shape[1], scheme.group)
    if scheme.activations:
        scale = torch.empty(1) if scheme.activations == "static" else None
        return Rounded(torch.empty(n, k, dtype=FP8), torch.empty(n, 1), scale)
    scales = torch.empty(n, groups, dtype=dtype)
    panels, length = shape_of(scheme.format.bits, n // max(experts, 1), k)
    words = torch.empty(panels * max(experts, 1), length, dtype=torch.int32)
    order = torch.empty(k, dtype=torch.int64) if ordered else None
    return Packed(words, scales, None if scheme.symmetric else torch.empty_like(scales), order)


def with_own_layers(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module that has the same tensors: its layers can be replaced, and the module stays as it is."""
    tensors = [*module.parameters(), *module.buffers()]
    return copied_module(module, {id(t): t for t in tensors})


def require_layers(places: list[Place], name: str, module: torch.nn.Module, scheme: Scheme) -> None:
    if not places:
        instead = f"leave it out, or give {scheme.format.name}:conv, which takes its convolutions"
        if scheme.convolutions or not any(map(is_convolution, module.modules())):
            instead = "leave it out"
        raise MlircError(f"{name}: --quantize: the model has no linear layer with weights of its own: {instead}")


def require_packed_experts(module: torch.nn.Module, places: list[Place], scheme: Scheme, name: str) -> None:
    """Raises MlircError where a layer's experts are one parameter of three dimensions that would stay as it is: most of
    the model would."""
    packed = set() if scheme.activations else {place.parameter for place in places if place.experts}
    found = [
        (full, parameter.numel())
        for owner, child in module.named_modules()
        for key, parameter in child.named_parameters(recurse=False)
        if parameter.dim() == 3
        and parameter.shape[0] == getattr(child, "num_experts", None)
        and (full := f"{owner}.{key}".lstrip(".")) not in packed
    ]
    if found:
        share = sum(size for _, size in found) / sum(p.numel() for p in module.parameters())
        why = "they are in a form of their own: leave it out"
        if scheme.activations:
            why = "experts' activations are not rounded: give fp8, whose weights alone are"
        raise MlircError(
            f"{name}: --quantize: its experts' weights, {share:.0%} of the model, as '{found[0][0]}', "
            f"would stay as they are: {why}"
        )


def quantized(place: Place, scheme: Scheme, weight: torch.Tensor | None = None) -> Weight:
    """The packed weight of a layer, of `weight` where it is not the layer's own; of experts one after the other, as
    rounding takes several times their memory."""
    weight = place.weight if weight is None else weight
    what = f"weight '{place.parameter}'"
    if not place.experts:
        return quantize(place.matrix(weight), scheme, what)
    parts = [quantize(w.detach().t() if place.transposed else w.detach(), scheme, what) for w in weight]
    made = [p for p in parts if isinstance(p, Packed)]
    zeros = [p.zeros for p in made if p.zeros is not None]
    words, scales = torch.cat([p.words for p in made]), torch.cat([p.scales for p in made])
    return Packed(words, scales, torch.cat(zeros) if zeros else None, experts=len(made))
