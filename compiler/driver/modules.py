"""Levels that are made when they are asked for, and those of a model whose layers are alike, of a few of which all are
made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from mlirc.ir.ladder import LEVELS
from mlirc.ir.layer_names import Layers, NotRepeated


class Modules(MutableMapping[str, Any]):
    """Levels by name, of which some come as what makes them when they are asked for."""

    def __init__(self, modules: MutableMapping[str, Any], makers: Mapping[str, Callable[[], Any]]) -> None:
        earlier = modules if isinstance(modules, Modules) else None
        self._modules: dict[str, Any] = dict(earlier._modules if earlier else modules)
        self._makers: dict[str, Callable[[], Any]] = {**(earlier._makers if earlier else {}), **makers}

    def __getitem__(self, level: str) -> Any:
        if level not in self._modules:
            self._modules[level] = self._makers[level]()
        return self._modules[level]

    def __setitem__(self, level: str, module: Any) -> None:
        self._modules[level] = module

    def __delitem__(self, level: str) -> None:
        if level not in self:
            raise KeyError(level)
        self._modules.pop(level, None)
        self._makers.pop(level, None)

    def __contains__(self, level: object) -> bool:  # the mapping's own would make it
        return level in self._modules or level in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._modules, *self._makers}, key=LEVELS.index))

    def __len__(self) -> int:
        return len({*self._modules, *self._makers})


@dataclass
class FewLayers:
    """The `torch` level of a few layers that stand for all of a model's, as a module or as text with locations, and
    `linalg` once it is made."""

    layers: Layers
    torch: Any
    linalg: Any = None

    def all_torch(self) -> Any:
        """The `torch` level of all layers."""
        from mlirc import mlir
        from mlirc.ir.all_layers import with_all_layers

        few = mlir.parse(self.torch, "torch") if isinstance(self.torch, str) else self.torch
        return with_all_layers(few, self.layers)

    def all_linalg(self) -> Any:
        """The `linalg` level of all layers."""
        from mlirc import frontend
        from mlirc.ir.all_layers import with_all_layers

        few = frontend.lower_to_linalg(self.torch)
        try:
            made = with_all_layers(few, self.layers)
        except NotRepeated:
            return frontend.lower_to_linalg(self.all_torch())
        self.linalg = few
        return made

    def all_kernels(self, divided: Callable[[Any], Any]) -> Any:
        """The `kernels` level of all layers, where `divided` makes it of `linalg`; None where few do not do."""
        from mlirc.ir.all_layers import with_all_layers

        try:
            return None if self.linalg is None else with_all_layers(divided(self.linalg), self.layers)
        except NotRepeated:
            return None
