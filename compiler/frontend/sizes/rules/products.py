"""Products: along a symbolic size that is summed over, padding is 0 on both sides."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from mlirc.frontend.sizes.layout import Layout, Unknown, broadcast, padded
from mlirc.frontend.sizes.rules.masks import filled
from mlirc.frontend.sizes.rules.registry import Number, rule

aten = torch.ops.aten


def _summed(w: Any, a: Node, i: int, b: Node, j: int) -> tuple[Node, Node]:
    """Both sides of a product that sums over dimension `i` of one and `j` of the other."""
    if w.layouts[a][i] != w.layouts[b][j]:
        raise Unknown("it sums over dimensions of different sizes")
    if not padded(w.layouts[a][i]):
        return a, b
    return filled(w, a, [i % len(w.layouts[a])], 0), filled(w, b, [j % len(w.layouts[b])], 0)


@rule(aten.linear.default)
def linear(w: Any, x: Node, weight: Node, bias: Node | None = None) -> Node:
    x, weight = _summed(w, x, -1, weight, -1)
    out = w.layouts[weight][:-1]
    return w.made((*w.layouts[x][:-1], *out), aten.linear.default, x, weight, bias)


@rule(aten.matmul.default, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
def matmul(w: Any, a: Node, b: Node) -> Node:
    a, b = _summed(w, a, -1, b, -2 if len(w.layouts[b]) > 1 else -1)
    return w.made(_product(w.layouts[a], w.layouts[b]), w.node.target, a, b)


def _product(a: Layout, b: Layout) -> Layout:
    rows = a[-2:-1] if len(a) > 1 else ()
    columns = b[-1:] if len(b) > 1 else ()
    return (*broadcast([a[:-2], b[:-2]]), *rows, *columns)


@rule(aten.addmm.default, aten.baddbmm.default)
def addmm(w: Any, bias: Node, a: Node, b: Node, **kwargs: Any) -> Node:
    if any(isinstance(v, Number) for v in kwargs.values()):
        raise Unknown("it takes a number that is computed from sizes")
    a, b = _summed(w, a, -1, b, -2)
    layout = broadcast([w.layouts[bias], _product(w.layouts[a], w.layouts[b])])
    return w.made(layout, w.node.target, bias, a, b, **kwargs)
