"""Which layers of a model are alike: of the same classes, attributes and shapes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mlirc.ir.layer_names import Layers, regular

NUMBER = "layer_idx"  # what transformers calls the number of a layer
PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device)
_OWN = ("_parameters", "_buffers", "_modules", "forward", NUMBER)  # compared in another way, or not
_FEWEST = 4  # layers for which it pays


def few_layers(network: torch.nn.Module, count: int, prefix: str) -> Layers | None:
    """A few of a model's `count` layers that stand for all; None where they are too different, or share tensors with
    each other or the rest. Names begin with `prefix` in what is exported, and without it later; the cache's are
    `cache.0` and so on."""
    layers = layers_of(network, count)
    parts = [(name, t) for kind in (network.named_parameters, network.named_buffers)
             for name, t in kind(remove_duplicate=False)]  # fmt: skip
    place = next(iter(layers), "").rpartition(".")[0]
    owners: dict[int, set[str]] = {}
    for name, tensor in parts:
        inside = name.startswith(place + ".")
        owners.setdefault(id(tensor), set()).add(".".join(name.split(".")[: place.count(".") + 2]) if inside else "")
    if not layers or any(len(names) > 1 for names in owners.values()):
        return None
    kinds = [kind_of(layer) for layer in layers.values()]
    if any(kind is None for kind in kinds):
        return None
    return regular([repr(kind) for kind in kinds], (prefix + place, place, "cache"))


def kind_of(layer: torch.nn.Module) -> Any:
    """Equal for layers of the same classes, attributes and shapes; None for one that is not to be copied."""
    own: list[Any] = []
    for path, module in layer.named_modules():
        for kind, value in sorted(module.__dict__.items()):
            if "_hooks" in kind and value:
                return None
            if kind not in _OWN and "_hooks" not in kind:
                own.append((path, kind, attribute_of(value)))
        own.append((path, type(module), sorted(module._modules)))
        tensors = {**module._parameters, **module._buffers}
        own += [(path, n, None if t is None else described(t)) for n, t in sorted(tensors.items())]
    return own


def layers_of(network: torch.nn.Module, count: int) -> dict[str, torch.nn.Module]:
    """The layers by name: the modules of the one list that has one for each part of the cache."""
    lists = [(n, m) for n, m in network.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    if len(lists) != 1 or count < _FEWEST:
        return {}
    name, layers = lists[0]
    changed = any("forward" in layer.__dict__ for layer in layers)
    return {} if changed else {f"{name}.{i}": layer for i, layer in enumerate(layers)}


@contextlib.contextmanager
def like_layers_run_once(network: torch.nn.Module, count: int, found: dict[int, Any]) -> Iterator[None]:
    """While a model runs on tensors without values in the body, its `count` layers that are alike, and are given
    arguments that are alike, run once: `found`, what a layer notes by its number, is noted of the others, too."""
    layers = layers_of(network, count)
    known: dict[str, tuple[int, Any]] = {}

    def calls(number: int, layer: torch.nn.Module) -> Callable:
        own = kind_of(layer)

        def forward(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            given = [described(x) if isinstance(x, torch.Tensor) else attribute_of(x) for x in leaves]
            key = repr((own, spec, given))
            if own is not None and key in known and number not in found:
                like, result = known[key]
                found[number] = found[like]
                return result
            before = set(found)
            result = type(layer).forward(layer, *args, **kwargs)
            if set(found) - before == {number}:
                known[key] = number, result
            return result

        return forward

    for number, layer in enumerate(layers.values()):
        layer.__dict__["forward"] = calls(number, layer)
    try:
        yield
    finally:
        for layer in layers.values():
            layer.__dict__.pop("forward", None)


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor", tuple(value.shape), tuple(value.stride()), value.dtype
    if isinstance(value, list | tuple):
        return [described(v) for v in value]
    return type(value)


def attribute_of(value: Any) -> Any:
    """Plain values as they are, everything else by its identity."""
    if isinstance(value, list | tuple):
        return type(value), [attribute_of(v) for v in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(repr(attribute_of(v)) for v in value)
    if isinstance(value, dict):
        return type(value), [(attribute_of(k), attribute_of(v)) for k, v in value.items()]
    if isinstance(value, functools.partial):
        return type(value), attribute_of(value.func), attribute_of(value.args), attribute_of(value.keywords)
    return (type(value), repr(value)) if isinstance(value, PLAIN) else (type(value), id(value))
