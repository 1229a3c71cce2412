"""Layers that are alike are traced twice, and copied then: tracing a model takes as long as a few of its layers.

`torch.export` runs a model's code layer by layer, which is most of the time that a step takes to be compiled. A layer
whose modules have the same classes, attributes and shapes as an earlier one's, called with the same arguments but for
what earlier layers made, runs the same code. Its first two calls are traced and compared, operation by operation, with
what belongs to the layer (weights, its part of the cache, its arguments) in their places; where they are the same, the
others' operations are copies. The number of the layer, which its attention knows, may only find its part of the cache:
a layer that computes with it, or looks something up by it, is traced like any other.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node, Proxy
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree

from mlirc.generate.like_layers import NUMBER, PLAIN, attribute_of, described, kind_of, layers_of
from mlirc.generate.paged_attention import Found
from mlirc.generate.paged_cache import PagedCache, PagedLayer
from mlirc.ir.layer_names import Layers, NotRepeated


class _Number:
    """A layer's number that notes when anything but `PagedCache.update` asks for it, if only as an index."""

    def __init__(self, value: int, used: list[bool]):
        self.value, self.used = value, used

    __class__ = property(lambda self: int)  # type: ignore[assignment]  # for who asks whether it is a number


def _noting(name: str) -> Callable:
    def noted(self: _Number, *args: Any) -> Any:
        self.used.append(True)
        return getattr(self.value, name)(*args)

    return noted


for _name in (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow lshift rlshift "
    "rshift rrshift and rand or ror xor rxor neg pos abs invert bool float int index eq ne lt le gt ge hash str repr "
    "format round trunc floor ceil"
).split():
    setattr(_Number, f"__{_name}__", _noting(f"__{_name}__"))


@dataclass
class _Trace:
    """The operations of one call of a layer. `places`: what a node is to the layer, by name of its role; `result`: the
    call's result with nodes for tensors; `cache`: nodes of its keys and values behind it; `fused`: as of `Found`."""

    name: str
    nodes: list[Node]
    roles: dict[Any, Node]
    result: Any
    cache: list[Node]
    fused: int

    def canonical(self) -> list[Any]:
        """Equal for traces that compute the same of what belongs to their layers."""
        known: dict[Node, Any] = {node: role for role, node in self.roles.items()}
        known |= {node: number for number, node in enumerate(self.nodes)}

        def place(value: Any) -> Any:
            return _Place(known.get(value, value))

        def operation(node: Node) -> Any:
            about = node.meta.get("val")
            return node.op, node.target, torch.fx.node.map_arg((node.args, node.kwargs), place), described(about)

        ends = torch.fx.node.map_arg((self.result, self.cache), place)
        return [*(operation(n) for n in self.nodes if n.op != "get_attr"), ends, self.fused]


@dataclass(frozen=True)
class _Place:
    where: Any


@dataclass
class _Known:
    """What was traced of one kind of layer: the first call, and whether the second was the same."""

    first: _Trace
    same: bool | None = None
    used: list[bool] = field(default_factory=list)


@contextlib.contextmanager
def layers_traced_once(
    network: torch.nn.Module, cache: PagedCache, found: Found, few: Layers | None = None
) -> Iterator[None]:
    """While a graph is traced in the body, repeated layers of `network` are copied as above, and left out as `few` has
    it; else nothing changes. Raises NotRepeated where they cannot be left out."""
    tracer = _tracer()
    layers = layers_of(network, len(cache.layers)) if tracer is not None else {}
    kept: list[tuple[dict, int]] = []
    if few is not None and not layers:
        raise NotRepeated("nothing is traced")
    memo, used = _Memo(tracer, cache, found, few), list[bool]()
    update = cache.update

    def updated(keys: Any, values: Any, number: Any, *args: Any, **kwargs: Any) -> Any:
        return update(keys, values, number.value if type(number) is _Number else number, *args, **kwargs)

    cache.update = updated  # type: ignore[method-assign]
    try:
        for number, (name, layer) in enumerate(layers.items()):
            for module in layer.modules():
                if type(module.__dict__.get(NUMBER)) is int:
                    kept.append((module.__dict__, module.__dict__[NUMBER]))
                    module.__dict__[NUMBER] = _Number(module.__dict__[NUMBER], used)
            layer.__dict__["forward"] = memo.calls(layer, name, number, used)
        yield
        memo.leave_out()
    finally:
        del cache.update
        for attributes, number in kept:
            attributes[NUMBER] = number
        for layer in layers.values():
            layer.__dict__.pop("forward", None)


def _tracer() -> Any:
    """What records a graph before dispatch, as torch.export does; None where nothing does."""
    modes = torch.overrides._get_current_function_mode_stack()
    found = [m.tracer for m in modes if isinstance(m, proxy_tensor.PreDispatchTorchFunctionMode)]
    return found[-1] if found else None


class _Memo:
    """The kinds of layers that were traced so far, in one trace."""

    def __init__(self, tracer: Any, cache: PagedCache, found: Found, few: Layers | None):
        self._tracer, self._cache, self._found, self._few = tracer, cache, found, few
        self._known: dict[Any, _Known] = {}
        self._made: set[Node | None] = set()  # what layers have returned
        self._results: list[list[Any]] = []  # of each call so far, where layers are left out
        self._read: list[list[int | None]] = []  # for each argument of each call its place among the results before

    def calls(self, layer: torch.nn.Module, name: str, number: int, used: list[bool]) -> Callable:
        """The layer's `forward`."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            part: PagedLayer = self._cache.layers[number]  # type: ignore[assignment]
            key = self._key(layer, part, args, kwargs)
            known = self._known.get(key) if key is not None else None
            if self._few is not None:
                return self._one_of_few(layer, name, number, known, key, args, kwargs, used)
            return self._of_all(layer, name, number, known, key, args, kwargs, used)

        return forward

    def _of_all(
        self, layer: torch.nn.Module, name: str, number: int, known: _Known | None, key: Any, args: tuple,
        kwargs: dict, used: list[bool],
    ) -> Any:  # fmt: skip
        part: PagedLayer = self._cache.layers[number]  # type: ignore[assignment]
        if known is not None and known.same:
            return self._copied(known.first, layer, name, part, args, kwargs)
        before = len(used)
        result, trace = self._traced(layer, name, part, args, kwargs)
        if key is None or trace is None:
            return result
        if known is None:
            self._known[key] = _Known(trace, False if len(used) > before else None)
        elif known.same is None:
            known.same = len(used) == before and trace.canonical() == known.first.canonical()
        return result

    def _key(self, layer: torch.nn.Module, part: PagedLayer, args: tuple, kwargs: dict) -> Any:
        """Equal for calls of like layers with like arguments; None for one that is not to be copied."""
        if part.gathered is not None:
            return None
        leaves, spec = pytree.tree_flatten((args, kwargs))
        given = [self._argument(x) if isinstance(x, torch.Tensor) else attribute_of(x) for x in leaves]
        own = kind_of(layer)
        return None if own is None else repr((spec, given, own, [described(t) for t in part.pools]))

    def _one_of_few(
        self, layer: torch.nn.Module, name: str, number: int, known: _Known | None, key: Any, args: tuple,
        kwargs: dict, used: list[bool],
    ) -> Any:  # fmt: skip
        """The call's result, for which a layer that is left out has nothing in the graph but what stands for it."""
        few, before = self._few, self._results[-1] if self._results else []
        assert few is not None
        if number != len(self._results):
            raise NotRepeated("layers are called in another order")
        leaves = [self._node(x) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        self._read.append([before.index(n) if n in before else None for n in leaves])
        if any(n in self._made and n not in before for n in leaves):
            raise NotRepeated(f"{name} reads what an earlier layer has made")
        if number >= few.start and self._read[number] != self._read[number - few.period]:
            raise NotRepeated(f"{name} reads something else")
        if number in few.left_out:
            if known is None or not known.same:
                raise NotRepeated(f"{name} is not like others")
            result = self._stand_in(known.first, name, number)
        else:
            result = self._of_all(layer, name, number, known, key, args, kwargs, used)
        self._results.append([self._node(x) for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)])
        return result

    def _stand_in(self, first: _Trace, name: str, number: int) -> Any:
        part: PagedLayer = self._cache.layers[number]  # type: ignore[assignment]
        part.gathered = part.pools  # nothing is written, and nobody reads it
        self._found.fused += first.fused

        inner = set(first.nodes)

        def stand_in(node: Node) -> torch.Tensor:
            if node not in inner:
                raise NotRepeated(f"{name} returns what it was given")
            made = self._tracer.graph.call_function(_left_out, (name,))
            made.meta = dict(node.meta)
            return self._tensor(made)

        return pytree.tree_map(lambda x: stand_in(x) if isinstance(x, Node) else x.value, first.result)

    def leave_out(self) -> None:
        """Connects the layers behind those that were left out to the ones in front of them."""
        if self._few is None:
            return
        if len(self._results) != self._few.count:
            raise NotRepeated("not every layer is called once")
        left = self._few.left_out
        for old, new in zip(self._results[left[-1]], self._results[left[0] - 1], strict=True):
            old.replace_all_uses_with(new)
        for number in left:
            for node in self._results[number]:
                if node.users:
                    raise NotRepeated("a layer that was to be left out is read")
                self._tracer.graph.erase_node(node)

    def _argument(self, tensor: torch.Tensor) -> Any:
        """What a layer made by its kind, any other tensor by itself: a mask is more than its shape."""
        node = self._node(tensor)
        itself = None if node in self._made else (id(tensor) if node is None else node.name)
        return described(tensor), itself, id(tensor) in self._found.masks

    def _roles(self, layer: torch.nn.Module, pools: tuple, args: tuple, kwargs: dict) -> dict[Any, Node] | None:
        """The nodes of what belongs to a call of the layer; None where a tensor has no node."""
        tensors: dict[Any, torch.Tensor] = {("cache", i): t for i, t in enumerate(pools)}
        for kind, named in (("weight", layer.named_parameters), ("buffer", layer.named_buffers)):
            tensors |= {(kind, n): t for n, t in named(remove_duplicate=False)}
        leaves = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        tensors |= {("argument", i): t for i, t in enumerate(leaves)}
        nodes = {role: self._node(t) for role, t in tensors.items()}
        return None if None in nodes.values() else nodes  # type: ignore[return-value]

    def _node(self, tensor: torch.Tensor) -> Node | None:
        slot = proxy_tensor.get_proxy_slot(tensor, self._tracer, None)
        return None if slot is None else slot.proxy.node

    def _traced(
        self, layer: torch.nn.Module, name: str, part: PagedLayer, args: tuple, kwargs: dict
    ) -> tuple[Any, _Trace | None]:
        roles, fused, made = self._roles(layer, part.pools, args, kwargs), self._found.fused, self._found.made
        graph = self._tracer.graph
        last = next(iter(reversed(graph.nodes)))  # PyTorch 2.11 has an iterable here
        result = type(layer).forward(layer, *args, **kwargs)
        nodes = []
        node = last.next
        while node.op != "root":
            nodes.append(node)
            node = node.next
        ends = pytree.tree_map(lambda x: self._node(x) if isinstance(x, torch.Tensor) else _Fixed(x), result)
        cache = [self._node(t) for t in part.pools]
        leaves = [*pytree.tree_leaves(ends), *cache]
        self._made |= {x for x in pytree.tree_leaves(ends) if isinstance(x, Node)}
        plain = all(isinstance(x, Node) or isinstance(x.value, PLAIN) for x in leaves if x is not None)
        if roles is None or None in leaves or not plain or part.gathered is None or self._found.made != made:
            return result, None
        return result, _Trace(name, nodes, roles, ends, cache, self._found.fused - fused)  # type: ignore[arg-type]

    def _copied(
        self, first: _Trace, layer: torch.nn.Module, name: str, part: PagedLayer, args: tuple, kwargs: dict
    ) -> Any:
        """The call's result, with copies of the first call's operations in the graph."""
        roles = self._roles(layer, part.pools, args, kwargs)
        if roles is None or len({(node, roles[role]) for role, node in first.roles.items()}) > len(
            set(first.roles.values())
        ):
            return type(layer).forward(layer, *args, **kwargs)  # one tensor there, two here
        copies = {node: roles[role] for role, node in first.roles.items()}
        inside = re.compile(rf"(?<![\w.]){re.escape(first.name)}(?![\w])|(?<=\.){re.escape(first.name)}(?![\w])")
        for node in first.nodes:
            copies[node] = copy = self._tracer.graph.node_copy(node, lambda n: copies.get(n, n))
            copy.meta = dict(node.meta)
            if stack := node.meta.get("nn_module_stack"):
                copy.meta["nn_module_stack"] = {
                    inside.sub(name, key): (inside.sub(name, path), kind) for key, (path, kind) in stack.items()
                }

        def tensor(node: Node) -> torch.Tensor:
            return self._tensor(copies.get(node, node))

        part.pools = tensor(first.cache[0]), tensor(first.cache[1])
        part.gathered = part.pools  # nothing reads it but attention, which is copied
        self._found.fused += first.fused
        return pytree.tree_map(lambda x: tensor(x) if isinstance(x, Node) else x.value, first.result)

    def _tensor(self, node: Node) -> torch.Tensor:
        """A tensor that stands for a node's value in what is traced from now on."""
        value = node.meta["val"]
        with proxy_tensor.disable_proxy_modes_tracing(), torch._C.DisableTorchFunction(), value.fake_mode:
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        self._made.add(node)
        return proxy_tensor.track_tensor_tree(made, Proxy(node, self._tracer), constant=None, tracer=self._tracer)


def _left_out(name: str) -> None:
    """Stands for a layer's result until the trace ends."""


@dataclass(frozen=True)
class _Fixed:
    """A part of a call's result that is no tensor."""

    value: Any
