"""`as_strided` of views as lookups: the levels below know no strides and no storage.

The views between a tensor and its `as_strided` are applied to the numbers of the tensor's elements, in the same
storage: what comes out says which element goes where. It depends on shapes and strides alone, so that it is a constant.
This comes before anything is decomposed: a view that became a copy has another storage.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirc.frontend.evaluate import evaluate_fake, place
from mlirc.frontend.graph_copy import copied

aten = torch.ops.aten
TARGET = aten.as_strided.default
_STRIDED_EMPTY = (aten.empty_strided.default, aten.new_empty_strided.default, aten.empty_permuted.default)


def without_strides(graph: Graph) -> Graph | None:
    """A copy of a graph of pure operations with zeros for tensors of given strides that nobody has written to; None if
    there are none."""
    found = [node for target in _STRIDED_EMPTY for node in graph.find_nodes(op="call_function", target=target)]
    if not found:
        return None
    new = copied(graph)
    for node in [node for target in _STRIDED_EMPTY for node in new.find_nodes(op="call_function", target=target)]:
        value = node.meta["val"]
        node.target, node.args = aten.full.default, (list(value.shape), 0)
        node.kwargs = {"dtype": value.dtype, "device": value.device}
    return new


def resolve_strides(graph: Graph) -> dict[str, torch.Tensor]:
    """Replaces `aten.as_strided` in the graph, in place, but for those of tensors whose own elements are not dense.

    Returns the values of the placeholders that were added after the graph's own, by name.
    """
    made: dict[str, torch.Tensor] = {}
    nodes = graph.find_nodes(op="call_function", target=TARGET)
    for node, (base, *chain) in [(node, _views(node)) for node in nodes]:
        if not _is_dense(base.meta["val"]):
            continue
        places = _places(base, chain)
        name = f"strided_places_{len(made)}"
        made[name] = places.contiguous()
        node.replace_all_uses_with(_lookup(graph, node, base, name, made[name]))
    for node in reversed(nodes):
        if not node.users:
            graph.erase_node(node)
    return made


def _views(node: Node) -> list[Node]:
    """From the node that has the storage to the view `node` of it."""
    chain = [node]
    while (source := _viewed(chain[-1])) is not None:
        chain.append(source)
    return chain[::-1]


def _viewed(node: Node) -> Node | None:
    """The node that a node looks at; None for what has a storage of its own."""
    if node.target is operator.getitem:
        return node.args[0] if _viewed(node.args[0]) is not None else None  # type: ignore[arg-type, return-value]
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or not isinstance(node.args[0], Node):
        return None
    alias, value, source = node.target._schema.returns[0].alias_info, node.meta["val"], node.args[0].meta["val"]
    is_view = node.target is aten._unsafe_view.default or (alias is not None and not alias.is_write)
    if not is_view or not isinstance(source, torch.Tensor):
        return None
    value = value[0] if isinstance(value, (tuple, list)) else value
    if _has_dtype(node) and value.stride() != source.stride():  # `to` another memory format
        return None
    return node.args[0] if value.dtype == source.dtype else None


def _has_dtype(node: Node) -> bool:
    return any(isinstance(a, torch.dtype) for a in (*node.args, *node.kwargs.values()))


def _is_dense(value: torch.Tensor) -> bool:
    return dense_order(value.shape, value.stride()) is not None and value.storage_offset() == 0


def dense_order(size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost; None if there are gaps between the elements."""
    order = sorted(range(len(size)), key=lambda d: (stride[d], size[d]), reverse=True)
    steps = [math.prod(size[d] for d in order[i + 1 :]) for i in range(len(order))]
    dense = all(size[d] == 1 or stride[d] == step for d, step in zip(order, steps, strict=True))
    return order if dense else None


def _places(base: Node, chain: list[Node]) -> torch.Tensor:
    """Which element of `base`, in the order of its storage, each element of the last of the views is."""
    value = base.meta["val"]
    seen: Any = torch.arange(value.numel()).as_strided(value.shape, value.stride())
    for view in chain:
        if view.target is operator.getitem:
            seen = seen[view.args[1]]
        elif not _has_dtype(view):  # which it has already
            rest: Any = torch.fx.node.map_arg((view.args[1:], view.kwargs), lambda n: torch.empty(n.meta["val"].shape))
            seen = view.target(seen, *rest[0], **rest[1])  # type: ignore[operator]
    return seen


def _lookup(graph: Graph, node: Node, base: Node, name: str, places: torch.Tensor) -> Node:
    first = next(n for n in graph.nodes if n.op != "placeholder")
    value = base.meta["val"]

    def call(target: Any, *args: Any) -> Node:
        new = graph.call_function(target, args)
        new.meta = {"val": evaluate_fake(target, args, {}), **place(node)}
        return new

    with graph.inserting_before(first):
        table = graph.placeholder(name)
    table.meta = {"val": value.fake_mode.from_tensor(places, static_shapes=True)}
    with graph.inserting_before(node), value.fake_mode, torch.no_grad():
        flat = call(aten.view.default, call(aten.permute.default, base, dense_order(value.shape, value.stride())), [-1])
        return call(aten.index.Tensor, flat, [table])
