"""Attention: keys outside of the sizes are hidden, and are 0 with their values, since 0 times NaN is NaN."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

import mlirc.frontend.attention  # noqa: F401  # registers mlirc::attention
from mlirc.frontend.sizes.layout import Unknown, broadcast, padded, room, static
from mlirc.frontend.sizes.rules.masks import filled, inside
from mlirc.frontend.sizes.rules.registry import Number, rule

aten = torch.ops.aten


@rule(aten.scaled_dot_product_attention.default)
def sdpa(w: Any, q: Node, k: Node, v: Node, mask: Node | None = None, dropout: float = 0.0, causal: bool = False,
         *, scale: Any = None, enable_gqa: bool = False) -> Node:  # fmt: skip
    if isinstance(scale, Number) or dropout:
        raise Unknown("its scale or dropout depends on sizes")
    layout = (*_batch(w, q, k, v, mask), *w.layouts[q][-3:-1], w.layouts[v][-1])
    k, v, hide = _keys(w, q, k, v, causal)
    if hide is not None:
        mask = _and(w, mask, hide)
    return w.made(layout, w.node.target, q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=enable_gqa)


def _batch(w: Any, q: Node, k: Node, v: Node, mask: Node | None) -> Any:
    tensors = [w.layouts[t][:-3] for t in (q, k, v)]
    return broadcast([*tensors, w.layouts[mask][:-3]] if mask is not None else tensors)


def _keys(w: Any, q: Node, k: Node, v: Node, causal: bool) -> tuple[Node, Node, Node | None]:
    """Keys and values without padding, and bool [Sk] of the keys that are there, None where nothing need be hidden."""
    if any(padded(w.layouts[t][-1]) for t in (q, k, v)):
        raise Unknown("its heads have no fixed size")
    keys = w.layouts[k][-2]
    if keys != w.layouts[v][-2]:
        raise Unknown("its keys and values have different sizes")
    if not padded(keys):
        if causal and padded(w.layouts[q][-2]):
            raise Unknown("it is causal, and has a symbolic number of queries, but not of keys")
        return k, v, None
    seen = inside(w, keys)
    k, v = (filled(w, t, [len(w.layouts[t]) - 2], 0) for t in (k, v))
    return k, v, None if causal and keys == w.layouts[q][-2] and len(keys) == 1 else seen


def _and(w: Any, mask: Node | None, seen: Node) -> Node:
    """A mask, bool or added to the scores, that hides other keys, too."""
    if mask is None:
        size = room(w.layouts[seen][0])
        return w.made(((), static(size)), aten.view.default, seen, [1, size])
    dtype, layout = mask.meta["val"].dtype, w.layouts[mask]
    if layout[-1] == ():
        size = room(w.layouts[seen][0])
        layout = (*layout[:-1], static(size))
        mask = w.made(layout, aten.expand.default, mask, [room(d) for d in layout])
    if dtype == torch.bool:
        return w.made(layout, aten.logical_and.default, mask, seen)
    hidden = w.made((), aten.full.default, [], float("-inf"), dtype=dtype)
    return w.made(layout, aten.where.self, seen, mask, hidden)


@rule(torch.ops.mlirc.attention.default)
def attention(w: Any, q: Node, k: Node, v: Node, mask: Node | None, bias: Node | None, inputs: list[Node], scale: Any,
              causal: bool, window: int, *more: Any) -> Node:  # fmt: skip
    if isinstance(scale, Number) or inputs or any(more[2:3]):  # the score
        raise Unknown("its scores are made by a function")
    if (causal or window) and w.layouts[q][-2] != w.layouts[k][-2]:
        raise Unknown("it is causal, with different numbers of queries and keys")
    layout = (*w.layouts[q][:-1], w.layouts[v][-1])
    k, v, seen = _keys(w, q, k, v, causal)
    if seen is not None:
        mask = _and(w, mask, seen)
        if len(w.layouts[mask]) < 4:
            shape = [1] * (4 - len(w.layouts[mask])) + [room(d) for d in w.layouts[mask]]
            mask = w.made(tuple(static(n) for n in shape), aten.reshape.default, mask, shape)
    return w.made(layout, w.node.target, q, k, v, mask, bias, [], scale, causal, window, *more)
