"""Linear layers of one input become one product, whose weight is theirs one below the other.

The queries, keys and values of attention are three products of one row of numbers, each a launch that reads few
weights. Only layers of one module whose results are cut into heads or the like are joined: what computes with a result
element by element is part of its product as it is, and so are two products that meet there (SwiGLU).
"""

from __future__ import annotations

import copy
import weakref
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

import mlirc.frontend.quantize.dequantize  # noqa: F401  registers the op
from mlirc.frontend import inputs
from mlirc.frontend.graph_copy import copied
from mlirc.frontend.quantize.packing import PANEL
from mlirc.frontend.source import SourceModel
from mlirc.frontend.weights import OnDemand
from mlirc.ir.layer_names import Layers

_aten = torch.ops.aten
_LINEAR = _aten.linear.default
_UNPACK = torch.ops.mlirc.dequantize.default
_VIEWS = (
    _aten.view.default, _aten.reshape.default, _aten._unsafe_view.default, _aten.transpose.int, _aten.permute.default,
    _aten.unflatten.int,
)  # fmt: skip
_STORED = (InputKind.PARAMETER, InputKind.BUFFER)


class JoinedWeights(OnDemand):
    """Tensors each of which is several of another mapping, one below the other along the first dimension: `parts` are
    their names. Made when they are asked for; one that is in use is not made again."""

    def __init__(self, source: Mapping[str, torch.Tensor], parts: Mapping[str, Sequence[str]], specs: Any):
        self.source, self.names, self.specs = source, dict(parts), dict(specs)
        self._in_use: weakref.WeakValueDictionary[str, torch.Tensor] = weakref.WeakValueDictionary()

    def __getitem__(self, name: str) -> torch.Tensor:
        made = self._in_use.get(name)
        if made is None:
            made = torch.cat([self.source[part].detach() for part in self.names[name]])
            self._in_use[name] = made
        return made


def joined_linears(source: SourceModel) -> SourceModel:
    """The source, whose `program` is given, with such layers joined; the source itself where there are none. Weights
    that are used by anything else stay as they are, and so do packed ones of different formats."""
    program = source.program
    signature = copy.copy(program.graph_signature)
    stored = {s.arg.name: s for s in signature.input_specs if s.kind in _STORED and s.target in source.weights}
    graph = copied(program.graph)
    found = [_Layer.of(node, stored) for node in graph.nodes if node.target is _LINEAR]
    groups: dict[Any, list[_Layer]] = {}
    for layer in found:
        if layer is not None:
            groups.setdefault(layer.key, []).append(layer)
    joins = _Joins(graph, stored)
    for group in groups.values():
        if len(group) > 1:
            joins.join(group)
    if not joins.parts:
        return source
    signature.input_specs = [
        joins.new.get(s.arg.name, s) for s in signature.input_specs if s.arg.name not in joins.gone
    ]
    kept = {name: value for name, value in program.state_dict.items() if name not in joins.gone_targets}
    values = {**kept, **joins.values}
    changed = program._update(GraphModule(program.graph_module, graph), signature, state_dict=values)
    made = {name: inputs.InputSpec.of(name, value) for name, value in joins.values.items()}
    parts = joins.parts
    if source.layers is not None:
        made, parts = _of_all_layers(source.layers, made, parts)
    joined: Any = JoinedWeights(source.weights, parts, made)
    others: Any = source.weights
    return replace(source, program=changed, weights=ChainMap(joined, others))


def _of_all_layers(layers: Layers, made: dict[str, Any], parts: dict[str, list[str]]) -> Any:
    """With the joined tensors of layers that are not in the program."""
    names = list(parts)
    places = layers.spread(names)
    more = {layers.moved(names[at], by): [layers.moved(p, by) for p in parts[names[at]]] for at, by in places}
    return {name: replace(made[old], name=name) for name, old in layers.all_names(names).items()}, more


@dataclass
class _Layer:
    """A linear layer that may be joined: its node, and what its weight is made of (one stored tensor, or the parts of
    a packed one), and its bias."""

    node: Node
    weight: list[Node]
    bias: list[Node]
    key: tuple

    @classmethod
    def of(cls, node: Node, stored: Mapping[str, InputSpec]) -> _Layer | None:
        x, weight, bias = (*node.args, None)[:3]
        if not isinstance(weight, Node) or not isinstance(x, Node) or len(weight.users) != 1:
            return None
        packed = weight.target is _UNPACK
        parts = [a for a in (weight.args if packed else [weight]) if isinstance(a, Node)]
        rest = tuple(a for a in weight.args if not isinstance(a, Node)) if packed else ()
        biases = [bias] if isinstance(bias, Node) else []
        own = all(p.op == "placeholder" and p.name in stored and len(p.users) == 1 for p in (*parts, *biases))
        cut = node.users and all(user.target in _VIEWS for user in node.users)
        shape = weight.meta["val"].shape
        if not own or not cut or len(shape) != 2 or packed and shape[0] % PANEL:
            return None
        kinds = tuple((stored[p.name].kind, p.meta["val"].dtype, tuple(p.meta["val"].shape[1:])) for p in parts)
        dtypes = tuple(p.meta["val"].dtype for p in biases)
        parent = str(stored[parts[0].name].target).rpartition(".")[0].rpartition(".")[0]
        return cls(node, parts, biases, (parent, x, packed, rest, kinds, dtypes))


class _Joins:
    """Joins layers of a graph: the specs of the `new` placeholders by the name of the one in whose place each is, the
    names of those that are `gone`, `parts` by the name of the joined tensor, and stand-ins for these."""

    def __init__(self, graph: Graph, stored: Mapping[str, InputSpec]):
        self.graph, self.stored = graph, stored
        self.new: dict[str, InputSpec] = {}
        self.gone: set[str] = set()
        self.gone_targets: set[str] = set()
        self.parts: dict[str, list[str]] = {}
        self.values: dict[str, torch.Tensor] = {}

    def join(self, group: list[_Layer]) -> None:
        first = group[0].node
        x, mode = first.args[0], first.meta["val"].fake_mode
        with mode:
            weights = [self._tensor(nodes) for nodes in zip(*(layer.weight for layer in group), strict=True)]
            biases = [self._tensor(nodes) for nodes in zip(*(layer.bias for layer in group), strict=True)]
            old = first.args[1]
            with self.graph.inserting_before(first):
                weight = weights[0]
                if old.target is _UNPACK:  # type: ignore[union-attr]
                    parts = iter(weights)
                    weight = self._call(first, _UNPACK, *(next(parts) if isinstance(a, Node) else a for a in old.args))  # type: ignore[union-attr]
                whole = self._call(first, _LINEAR, x, weight, *biases)
                dim, start = whole.meta["val"].dim() - 1, 0
                for layer in group:
                    end = start + layer.node.meta["val"].shape[-1]
                    part = self._call(layer.node, _aten.slice.Tensor, whole, dim, start, end)
                    layer.node.replace_all_uses_with(part)
                    start = end
        for layer in group:
            unpacked = layer.node.args[1]
            self.graph.erase_node(layer.node)
            for node in [unpacked] if unpacked.target is _UNPACK else []:  # type: ignore[union-attr]
                self.graph.erase_node(node)  # type: ignore[arg-type]
            for node in (*layer.weight, *layer.bias):
                self.graph.erase_node(node)

    def _call(self, like: Node, target: Any, *args: Any) -> Node:
        """A call that comes from where `like` does."""
        node = self.graph.call_function(target, args)
        node.meta = {k: v for k, v in like.meta.items() if k in ("nn_module_stack", "stack_trace", "source_fn_stack")}
        node.meta["val"] = target(*(a.meta["val"] if isinstance(a, Node) else a for a in args))
        return node

    def _tensor(self, nodes: Sequence[Node]) -> Node:
        """The placeholder of the tensors that stand for these placeholders, joined."""
        specs = [self.stored[n.name] for n in nodes]
        targets = [str(s.target) for s in specs]
        name = joined_name(targets)
        name = "+".join(targets) if name in self.parts else name
        shape = list(nodes[0].meta["val"].shape)
        shape[0] = sum(n.meta["val"].shape[0] for n in nodes)
        value = torch.empty(shape, dtype=nodes[0].meta["val"].dtype)
        with self.graph.inserting_before(nodes[0]):
            made = self.graph.placeholder(f"{nodes[0].name}_joined")
        made.meta["val"] = value
        kind, persistent = specs[0].kind, specs[0].persistent
        if kind == InputKind.PARAMETER:
            value = torch.nn.Parameter(value, requires_grad=False)
        self.new[nodes[0].name] = InputSpec(kind, TensorArgument(made.name), name, persistent)
        self.gone |= {n.name for n in nodes[1:]}
        self.gone_targets |= set(targets)
        self.parts[name], self.values[name] = targets, value
        return made


def joined_name(names: Sequence[str]) -> str:
    """`layers.0.q_proj+k_proj.weight` of `layers.0.q_proj.weight` and `layers.0.k_proj.weight`."""
    words = [name.split(".") for name in names]
    if len({len(w) for w in words}) > 1:
        return "+".join(names)
    columns = ["+".join(dict.fromkeys(column)) for column in zip(*words, strict=True)]
    return ".".join(columns)


def joined_parts(name: str) -> list[str]:
    """The names that `joined_name` made one of, where they differ in one word, as those of one module's layers do; the
    name itself where it is of one tensor."""
    words = [word.split("+") for word in name.split(".")]
    count = max(map(len, words))
    return [".".join(word[i] if len(word) > 1 else word[0] for word in words) for i in range(count)]
