"""Negative indices of `x[i] = y`: they count from the end in PyTorch, and torch-mlir's lowering does not know it.

Those of index_add and index_copy, which become the same operation, are errors in PyTorch: they stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirc.frontend.decomposer import PART_OF

aten = torch.ops.aten
_WITHOUT = (aten.index_add.default, aten.index_copy.default)


def wrap_negative_indices(graph: Graph, constants: Any, call: Callable[..., Node]) -> None:
    """Adds, in place, the size of its dimension to every negative index of an index_put. `constants` knows the values
    of some nodes (`simplify.Constants`), `call(graph, like, target, *args)` makes a node."""
    for node in list(graph.nodes):
        if node.target is not aten.index_put.default or node.meta.get(PART_OF) in _WITHOUT:
            continue
        target, given, *rest = node.args
        shape, indices = target.meta["val"].shape, list(given)  # type: ignore[union-attr,arg-type]
        with graph.inserting_before(node):
            for dim, index in enumerate(indices):
                if index is None or index.meta["val"].dtype == torch.bool or not index.meta["val"].numel():
                    continue
                if index in constants and int(constants.value(index).min()) >= 0:
                    continue
                below = call(graph, node, aten.lt.Scalar, index, 0)
                wrapped = call(graph, node, aten.add.Scalar, index, shape[dim])
                indices[dim] = call(graph, node, aten.where.self, below, wrapped, index)
        node.args = (target, indices, *rest)
