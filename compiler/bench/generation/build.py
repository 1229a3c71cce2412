"""The module of a case that generates, the same on every machine, and its weights of few bits. Needs torch, no MLIR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from mlirc.bench.build import build_abstract, build_real, random_weight
from mlirc.bench.cases import Case
from mlirc.frontend.inputs import InputSpec
from mlirc.frontend.open import open_model
from mlirc.frontend.quantize.layers import places_of, quantized
from mlirc.frontend.quantize.rounding import Weight
from mlirc.frontend.quantize.scheme import parse_scheme
from mlirc.frontend.source import SourceModel
from mlirc.frontend.weights import OnDemand, tied_names


def open_generating(case: Case) -> Any:
    """What `compile_generation` compiles: a folder's path, or a model without the values of its weights."""
    if "spec" in case.options:
        return case.options["spec"]
    module = build_abstract(_as_module(case)).module
    build: Callable[[], Any] = lambda: build_generating(case, "cpu")  # noqa: E731
    return SourceModel(case.name, "huggingface", module=module, weights=_Seeded(module, case.seed), build=build)


def build_generating(case: Case, device: str) -> torch.nn.Module:
    """The transformers module on a device, its weights as they are before any are packed."""
    if "spec" in case.options:
        module = open_model(case.options["spec"], **case.options["open"]).torch_module()
    else:
        module = build_real(_as_module(case), "cpu" if device == "cpu" else device).module
    return module.to(device).eval().requires_grad_(False)


def _as_module(case: Case) -> Case:
    return replace(case, builder="huggingface", options={**case.options, "call": {}, "weights": "random"})


def pack_weights(module: torch.nn.Module, scheme: str) -> dict[str, torch.Tensor]:
    """The packed weights of a module's linear layers by the names of their buffers. The module's own weights become the
    numbers that those stand for."""
    found: dict[str, torch.Tensor] = {}
    parsed = parse_scheme(scheme)
    made: dict[int, Weight] = {}
    embedded = {id(m.weight) for m in module.modules() if isinstance(m, torch.nn.Embedding)}
    with torch.no_grad():
        for place in places_of(module, parsed.head, parsed.convolutions):
            weight = place.weight
            if id(weight) not in made:
                packed = made[id(weight)] = quantized(place, parsed)
                wide = place.as_given(packed.floats(parsed, place.shape[1]))
                if id(weight) in embedded:  # the table stays as it is
                    place.layer.weight = torch.nn.Parameter(wide, requires_grad=False)
                else:
                    weight.copy_(wide)
            found |= {f"{place.name}.{part}": place.buffer(t) for part, t in made[id(weight)].parts().items()}
    return found


class _Seeded(OnDemand):
    """The weights of an abstract module as `build_real` makes them on the CPU, each when it is read."""

    def __init__(self, module: torch.nn.Module, seed: int):
        self.seed, self.tied = seed, tied_names(module)
        buffers: Mapping[str, torch.Tensor] = dict(module.named_buffers())
        self.fixed = {name: tensor for name, tensor in module.state_dict().items() if name in buffers}
        self.specs = {name: InputSpec.of(name, tensor) for name, tensor in module.state_dict().items()}
        self.names = self.specs

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self.fixed:
            return self.fixed[name]
        spec = self.specs[name]
        return random_weight(self.tied.get(name, name), spec.shape, spec.dtype, self.seed, "cpu")
