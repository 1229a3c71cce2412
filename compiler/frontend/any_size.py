"""Decompositions that one trace serves for calls of every size.

A trace costs some ten milliseconds, and a network may have a hundred batch norms of as many sizes. The graph that is
traced of some calls names no size, nor did the decomposition ask for one: it is the same for all calls of one rank, up
to the shapes that its nodes are noted to have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

aten = torch.ops.aten

_CONVOLUTIONS = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)


def of_any_size(node: Node) -> bool:
    """Whether the decomposition of a call depends on the ranks and types of its tensors alone. None of them may be
    empty, which decompositions are asked about."""
    if node.target is aten.batch_norm.default:
        training, mean, var = node.args[5], node.args[3], node.args[4]
        if training or mean is None or var is None:  # by the statistics of a batch, whose size counts
            return False
    elif node.target not in _CONVOLUTIONS or len(node.args) < 5 or not any(node.args[4]):  # type: ignore[arg-type]
        return False  # a padded convolution stays one, others may be products, which their sizes decide
    return all(n.meta["val"].numel() for n in node.all_input_nodes)


def resized(traced: Graph, values: Sequence[torch.Tensor], result: torch.Tensor) -> Graph | None:
    """A copy of the graph of one call's decomposition for a call on other fake tensors (`values`, one per placeholder),
    which gives `result`. None where the graph would give something of another shape, type or layout."""
    mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
    new = Graph()
    copies: dict[Node, Node] = {}
    shapes: dict[Node, Any] = {}
    given = iter(values)
    for node in traced.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            return None
        copies[node] = copy = new.node_copy(node, copies.__getitem__)
        if node.op == "placeholder":
            value = next(given)
            shapes[node] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            copy.meta = {**node.meta, "val": value}
        elif node.op == "call_function":
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), shapes.__getitem__)  # type: ignore[misc]
            shapes[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            copy.meta = {**node.meta, "val": FakeTensor(mode, shapes[node], result.device)}
        elif _differs(shapes.get(node.args[0]), result):  # type: ignore[arg-type]
            return None
    return new


def _differs(made: torch.Tensor | None, meant: torch.Tensor) -> bool:
    return made is None or (made.shape, made.stride(), made.dtype) != (meant.shape, meant.stride(), meant.dtype)
