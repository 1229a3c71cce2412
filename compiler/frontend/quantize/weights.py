"""The weights of a quantized model by name, quantized when they are asked for: none is kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mlirc.frontend.inputs import InputSpec
from mlirc.frontend.quantize.layers import Place, quantized
from mlirc.frontend.quantize.report import LayerError, weight_error
from mlirc.frontend.quantize.rounding import Weight
from mlirc.frontend.quantize.scheme import Scheme
from mlirc.frontend.weights import OnDemand


class QuantizedWeights(OnDemand):
    """A state dict with the linear layers' weights packed, of a `source` with the weights as they were.

    `layers`: layers by name; `specs`: name, dtype and shape of everything; `errors` get a layer's when its weight is
    made. The packed weight that was asked for last is kept, since its parts are asked for one after the other."""

    def __init__(
        self,
        source: Mapping[str, torch.Tensor],
        scheme: Scheme,
        layers: Mapping[str, Place],
        specs: Mapping[str, InputSpec],
        errors: list[LayerError],
    ):
        self.source, self.scheme, self.specs = source, scheme, dict(specs)
        self.layers = dict(layers)
        self.errors, self.names = errors, self.specs
        self._last: tuple[str, Weight] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        layer, _, part = name.rpartition(".")
        if layer in self.layers and part.startswith("weight_"):
            return self.layers[layer].buffer(self.packed(layer).parts()[part])
        return self.source[name]

    def packed(self, layer: str) -> Weight:
        """The packed weight of a layer."""
        if self._last is None or self._last[0] != layer:
            place = self.layers[layer]
            given = self.source[place.parameter]
            self._last, weight = (layer, quantized(place, self.scheme, given)), place.matrix(given)
            if all(e.name != layer for e in self.errors):
                error = weight_error(weight, self._last[1], self.scheme)
                self.errors.append(LayerError(layer, (weight.shape[0], weight.shape[1]), error))
        return self._last[1]
