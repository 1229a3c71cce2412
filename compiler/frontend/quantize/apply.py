"""`--quantize`: a `SourceModel` with its linear layers' weights packed, and how far that is from what they were."""

from __future__ import annotations

import torch

from mlirc.errors import MlircError
from mlirc.frontend.inputs import InputSpec
from mlirc.frontend.quantize.layers import (
    Place,
    placeholder,
    places_of,
    quantized,
    replace_layers,
    require_layers,
    require_packed_experts,
    with_own_layers,
)
from mlirc.frontend.quantize.report import LayerError, weight_error
from mlirc.frontend.quantize.scheme import Scheme
from mlirc.frontend.quantize.weights import QuantizedWeights
from mlirc.frontend.source import SourceModel


def quantize_source(source: SourceModel, scheme: Scheme) -> SourceModel:
    """Packs the weights of a model's linear layers, in place. Weights that are made on demand stay so; a module of this
    process is not changed. Raises MlircError for a model that is no module any more, or has no such layers."""
    if source.module is None or source.kind not in ("module", "huggingface"):
        raise MlircError(
            f"{source.name}: --quantize is not possible: the archive fixes the model's operations: give the model as a "
            "Hugging Face folder, a factory package.module:function or a problem file"
        )
    if source.scheme is not None:
        raise MlircError(f"{source.name}: --quantize: its weights are quantized already: leave it out")
    module = source.module if source.build is not None else with_own_layers(source.module)
    places = list(places_of(module, scheme.head, scheme.convolutions))
    require_layers(places, source.name, module, scheme)
    require_packed_experts(module, places, scheme, source.name)
    if source.build is not None:
        _on_demand(source, module, places, scheme)
    else:
        for place in places:
            _require_one_dtype(source.name, place)

        def packed(place: Place):
            made = quantized(place, scheme)
            source.quantized.append(
                LayerError(place.name, place.shape, weight_error(place.matrix(place.weight), made, scheme))
            )
            return made

        module = replace_layers(module, scheme, places, packed)
        source.module, source.weights = module, dict(module.state_dict(keep_vars=False))
    source.scheme = scheme
    return source


def _require_one_dtype(name: str, place: Place) -> None:
    if place.weight.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise MlircError(
            f"{name}: --quantize: layer '{place.name}' computes in {place.weight.dtype}: give --dtype bf16"
        )


def _on_demand(source: SourceModel, module: torch.nn.Module, places: list[Place], scheme: Scheme) -> None:
    """The same where parameters have no values: those come from `source.weights`, each when it is read."""
    layers = {place.name: place for place in places}
    for place in places:
        _require_one_dtype(source.name, place)
    mode = next((p.fake_mode for p in module.parameters() if hasattr(p, "fake_mode")), None)
    assert mode is not None, "parameters without values are fake tensors"

    def packed(place: Place):
        with mode:
            return placeholder(place.shape, scheme, place.weight.dtype, experts=place.experts)

    weights, build = source.weights, source.build
    gone = {place.parameter for place in places}
    replace_layers(module, scheme, places, packed)
    with mode:
        specs = {name: InputSpec.of(name, tensor) for name, tensor in module.state_dict().items()}
    assert gone.isdisjoint(specs)
    source.weights = QuantizedWeights(weights, scheme, layers, specs, source.quantized)

    def built() -> torch.nn.Module:
        made = build()
        replace_layers(
            made,
            scheme,
            list(places_of(made, scheme.head, scheme.convolutions)),
            lambda place: quantized(place, scheme),
        )
        return made

    source.build = built
