"""Dimensions counted from the end become dimensions counted from the front: some of torch-mlir's lowerings (scatter)
take a negative one for an index into memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph

aten = torch.ops.aten
_OF_THE_RESULT = (aten.unsqueeze.default, aten.stack.default, aten.cat.default)  # the dimension is one of the result
_NAMES = ("dim", "dims", "dim0", "dim1", "dim2", "start_dim", "end_dim")


def count_dims_from_front(graph: Graph) -> None:
    """Rewrites the dimension arguments of every call in place."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if any(a.name in _NAMES for a in node.target._schema.arguments):
            rank = _rank(node)
            if rank is not None:
                _rewrite(node, rank)


def _rank(node: Any) -> int | None:
    if node.target in _OF_THE_RESULT:
        val = node.meta.get("val")
    else:
        operands = [n.meta.get("val") for n in node.all_input_nodes]
        val = operands[0] if operands else None
    return val.dim() if isinstance(val, torch.Tensor) else None


def _rewrite(node: Any, rank: int) -> None:
    def front(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [front(v) for v in value]
        # A scalar takes the dimensions 0 and -1.
        return value + max(rank, 1) if isinstance(value, int) and value < 0 else value

    schema = node.target._schema.arguments
    args = tuple(front(v) if schema[i].name in _NAMES else v for i, v in enumerate(node.args))
    kwargs = {k: front(v) if k in _NAMES else v for k, v in node.kwargs.items()}
    if args != node.args or kwargs != node.kwargs:
        node.args, node.kwargs = args, kwargs
