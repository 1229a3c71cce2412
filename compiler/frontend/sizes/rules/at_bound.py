"""Into a part of fixed shapes padding goes as a value that the part leaves out; out of it comes padding again."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

import mlirc.frontend.sizes.at_bound  # noqa: F401  # registers its ops
from mlirc.frontend.sizes.layout import Unknown, room, static
from mlirc.frontend.sizes.rules.masks import filled
from mlirc.frontend.sizes.rules.registry import rule

aten = torch.ops.aten


@rule(torch.ops.mlirc.filled_up.default)
def filled_up(w: Any, x: Node, rows: int, value: float) -> Node:
    layout = w.layouts[x]
    if room(layout[0]) > rows:
        raise Unknown(f"it has room for {rows} rows, not {room(layout[0])}")
    x = filled(w, x, [0], value if x.meta["val"].dtype.is_floating_point else int(value))
    if missing := rows - room(layout[0]):  # a number in a symbol's place (`ones.py`)
        pads = [0, 0] * (len(layout) - 1) + [0, missing]
        return w.made((static(rows), *layout[1:]), aten.constant_pad_nd.default, x, pads, value)
    return w.made((static(rows), *layout[1:]), aten.alias.default, x)


@rule(torch.ops.mlirc.cut_to.default)
def cut_to(w: Any, x: Node, like: Node) -> Node:
    rows = w.layouts[like][0]
    layout = (rows, *w.layouts[x][1:])
    if room(rows) < room(w.layouts[x][0]):
        return w.made(layout, aten.slice.Tensor, x, 0, 0, room(rows))
    return w.made(layout, aten.alias.default, x)
