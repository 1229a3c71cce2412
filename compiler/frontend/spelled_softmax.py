"""The softmax of attention that a model spells out (`spelled_attention.py`), in a decomposed graph: a maximum, a
difference, an exponential, a sum and a quotient. One more column, which is cut off behind it, is the heads' sinks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from mlirc.frontend.spelled_logsumexp import READERS, log_sums

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.clone.default)


class NotAttention(Exception):
    """The graph is something else."""


def value_of(node: Any) -> torch.Tensor:
    """A node's (fake) tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        raise NotAttention
    return value


def only(node: Any, target: Any, users: int = 1) -> Node:
    """The node, if it is such an op and no more than these read it."""
    if not isinstance(node, Node) or node.target is not target or len(node.users) > users:
        raise NotAttention
    return node


def through(node: Any, users: int = 1) -> Any:
    """What views and casts of a node show, which so many read, and between which nobody does."""
    while isinstance(node, Node) and len(node.users) == users:
        users = 1
        cast = node.target in (aten._to_copy.default, aten.to.dtype)
        if cast and (value_of(node).dtype not in DTYPES or value_of(node.args[0]).dtype not in DTYPES):
            break
        if not cast and node.target not in VIEWS and node.target is not aten.expand.default:
            break
        outer, inner = value_of(node).shape, value_of(node.args[0]).shape
        if outer.numel() != inner.numel() or outer[-2:] != inner[-2:]:
            break
        node = node.args[0]
    return node


@dataclass(frozen=True)
class Softmax:
    """The scores of a softmax along the last dimension; a column beside them: [B,H,Sq,1]. `zero_rows`: a row of nothing
    but -inf has weights of 0, not NaN."""

    scores: Node
    sinks: Node | None = None
    zero_rows: bool = False

    @staticmethod
    def of(weights: Any) -> Softmax:
        """The softmax that made the weights; raises NotAttention where there is none."""
        node = through(weights)
        if isinstance(node, Node) and node.target is aten.where.self and len(node.users) == 1:
            return Softmax(_scores_of_safe(node), zero_rows=True)
        if not isinstance(node, Node) or node.target is not aten.slice.Tensor or len(node.users) > 1:
            return Softmax(_scores_of(node))
        sliced: Any = node.args
        scores = _scores_of(through(sliced[0]))
        count, rank = value_of(sliced[0]).shape[-1], value_of(sliced[0]).dim()
        first, last, step = (list(sliced) + [None] * 3)[2:5]
        kept = range(count)[first:last:step]
        if sliced[1] not in (rank - 1, -1) or kept not in (range(count - 1), range(1, count)):
            raise NotAttention
        joined = _joined(scores)
        parts, dim = joined.args[0], (*joined.args, 0)[1]
        if dim not in (value_of(joined).dim() - 1, -1) or not isinstance(parts, (list, tuple)) or len(parts) != 2:
            raise NotAttention
        rows, column = parts if kept[0] == 0 else parts[::-1]
        if value_of(column).shape[-1] != 1 or value_of(column).dim() != 4 or len(rows.users) > 1:  # type: ignore[union-attr]
            raise NotAttention
        return Softmax(rows, column)  # type: ignore[arg-type]

    @property
    def readers(self) -> int:
        """How many ops of the softmax, and of its log-sum-exp, read the scores."""
        return len(self.scores.users)

    def vector_of_sinks(self, heads: list[int], constants: Any, like: Node, call: Callable[..., Node]) -> Node | None:
        """The column as a number for each head: [H] of `heads` (batch, H); raises NotAttention where rows differ."""
        node = self.sinks
        if node is None:
            return None
        if list(value_of(node).shape[:2]) != heads:
            raise NotAttention
        if node in constants:
            value = constants.value(node)
            if not bool((value == value[:1, :, :1]).all()):
                raise NotAttention
            return call(like.graph, like, aten.amax.default, node, [0, 2, 3])
        while value_of(node).numel() > heads[1]:
            if node.target not in (aten.expand.default, aten.repeat.default):
                raise NotAttention
            node = node.args[0]  # type: ignore[assignment]
        if [1] * (4 - value_of(node).dim()) + list(value_of(node).shape) != [1, heads[1], 1, 1]:
            raise NotAttention
        return call(like.graph, like, aten.view.default, node, [heads[1]])


def _scores_of_safe(weights: Node) -> Node:
    """The scores of `torch._safe_softmax`: a select of 0 where all of a row's are -inf."""
    hidden, zero, shares = weights.args
    scores = _scores_of(shares, 3)
    every: Any = only(hidden, aten.all.dim).args
    test: Any = only(every[0], aten.eq.Scalar).args
    if every[1] not in (value_of(scores).dim() - 1, -1) or list(every[2:]) != [True]:
        raise NotAttention
    if test != (scores, float("-inf")) or only(zero, aten.full.default, len(zero.users)).args[1] != 0:  # type: ignore[union-attr]
        raise NotAttention
    return scores


def _scores_of(weights: Any, readers: int = 2) -> Node:
    """The scores whose softmax along the last dimension the weights are, which so many ops read."""
    power, total = only(weights, aten.div.Tensor).args
    only(power, aten.exp.default, 2)
    last = (value_of(power).dim() - 1, -1)

    def along_last(node: Any, target: Any, source: Any) -> None:
        args: Any = only(node, target).args
        if args[0] is not source or len(args) < 3 or list(args[1]) not in ([last[0]], [-1]) or args[2] is not True:
            raise NotAttention

    along_last(total, aten.sum.dim_IntList, power)
    scores, top = only(power.args[0], aten.sub.Tensor).args  # type: ignore[union-attr]
    if not isinstance(scores, Node):
        raise NotAttention
    readers += READERS * len(log_sums(scores))
    if len(scores.users) != readers:
        raise NotAttention
    along_last(top, aten.amax.default, scores)
    return scores


def _joined(scores: Node) -> Node:
    """The concatenation that scores are, maybe less the maximum of each row, which a softmax does not see."""
    found = through(scores, 2)
    if (
        isinstance(found, Node)
        and found.target is aten.sub.Tensor
        and len(found.users) == (2 if found is scores else 1)
    ):
        source, top = found.args
        if isinstance(top, Node) and top.target is operator.getitem and top.args[1] == 0:
            top = top.args[0]
        args: Any = top.args if isinstance(top, Node) and top.target in (aten.max.dim, aten.amax.default) else ()
        dims = args[1] if len(args) == 3 and isinstance(args[1], (list, tuple)) else list(args[1:2])
        last = value_of(source).dim() - 1
        if len(args) != 3 or args[0] is not source or list(dims) not in ([last], [-1]) or args[2] is not True:
            raise NotAttention
        scores = source  # type: ignore[assignment]
        found = through(scores, 2)
    if not isinstance(found, Node) or found.target is not aten.cat.default:
        raise NotAttention
    if len(found.users) != (2 if found is scores else 1):
        raise NotAttention
    return found
