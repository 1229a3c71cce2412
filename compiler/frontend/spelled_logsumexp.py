"""The log-sum-exp of the scores whose softmax weighs the values, in a decomposed graph: a result of attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten
SQUEEZES = (torch.ops.prims.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.view.default)
CASTS = (aten._to_copy.default, aten.to.dtype, torch.ops.prims.convert_element_type.default)
READERS = 2  # of the scores, in one: a maximum and a difference


def log_sums(scores: Node) -> list[Node]:
    """The nodes that are `torch.logsumexp(scores, -1)`, [..., Sq] or [..., Sq, 1]."""
    _join_casts(scores)
    found = [_log_sum(user, scores) for user in scores.users if user.target is aten.sub.Tensor]
    return [node for node in found if node is not None]


def replace(sums: list[Node], lse: Node, call: Callable[..., Node]) -> None:
    """Puts `lse`, f32[B, H, Sq], into the place of each of these nodes, with its dtype and shape."""
    for node in sums:
        value, known = node.meta["val"], lse.meta["val"]
        with node.graph.inserting_before(node):
            new = lse
            if value.dtype != known.dtype:
                new = call(node.graph, node, torch.ops.prims.convert_element_type.default, new, value.dtype)
            if list(value.shape) != list(known.shape):
                new = call(node.graph, node, aten.view.default, new, list(value.shape))
        node.replace_all_uses_with(new)


def _join_casts(scores: Node) -> None:
    """Makes equal casts of what the scores are a cast of one."""
    source = scores.args[0] if scores.target in CASTS else None
    if not isinstance(source, Node):
        return
    for other in [u for u in source.users if u is not scores and u.target is scores.target]:
        if other.args == scores.args and other.kwargs == scores.kwargs:
            first = min(scores, other)  # the order of the graph
            if first is other:
                source.append(scores)
            other.replace_all_uses_with(scores)
            scores.graph.erase_node(other)


def _log_sum(difference: Node, scores: Node) -> Node | None:
    """The sum of a logarithm and the maximum that `difference`, scores less their finite maximum, leads to."""
    last = scores.meta["val"].dim() - 1
    top = difference.args[1]
    if difference.args[0] is not scores or not isinstance(top, Node) or top.target is not aten.where.self:
        return None
    test, _, maximum = top.args
    if not isinstance(maximum, Node) or not _reduces(maximum, aten.amax.default, scores, last):
        return None
    size = test.args[0] if isinstance(test, Node) and test.target is aten.eq.Scalar else None
    finite = isinstance(size, Node) and size.target is aten.abs.default and size.args[0] is maximum
    if not finite or test.args[1] != math.inf or set(maximum.users) != {top, size}:  # type: ignore[union-attr]
        return None
    power = _only_user(difference, aten.exp.default)
    total = power and _only_user(power, aten.sum.dim_IntList)
    log = total and _only_user(total, aten.log.default)
    result = log and _only_user(log, aten.add.Tensor)
    if not power or not total or not log or not result or not _reduces(total, aten.sum.dim_IntList, power, last):
        return None
    (other,) = [x for x in result.args if x is not log] or [None]
    if isinstance(other, Node) and other.target in SQUEEZES and list(other.users) == [result]:
        inner, other = other, other.args[0]
        return result if other is top and set(top.users) == {difference, inner} else None
    return result if other is top and set(top.users) == {difference, result} else None


def _reduces(node: Node, target: Any, source: Node, dim: int) -> bool:
    args: Any = node.args
    return node.target is target and args[0] is source and list(args[1]) in ([dim], [-1])


def _only_user(node: Node, target: Any) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None
