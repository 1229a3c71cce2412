"""Ops that move dimensions: their padding moves with them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from mlirc.frontend.sizes.layout import Unknown, broadcast, joined, padded, reshaped, room, static
from mlirc.frontend.sizes.rules.masks import filled
from mlirc.frontend.sizes.rules.registry import Number, rule

aten = torch.ops.aten


@rule(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints, aten.unflatten.int,
      aten._reshape_alias.default)  # fmt: skip
def reshape(w: Any, x: Node, *args: Any, **kwargs: Any) -> Node:
    counts = [w.expr(n) for n in w.meant().shape]
    shape = [w.space.at_bound(n) for n in counts]
    layout = reshaped(w.layouts[x], shape, counts, w.space.same)
    return w.made(layout, aten.reshape.default, x, shape)


@rule(aten.permute.default)
def permute(w: Any, x: Node, dims: list[int]) -> Node:
    old = w.layouts[x]
    return w.made(tuple(old[d] for d in dims), aten.permute.default, x, dims)


@rule(aten.transpose.int, aten.t.default, aten.mT.default, aten.numpy_T.default)
def transpose(w: Any, x: Node, one: int = -2, other: int = -1) -> Node:
    dims = list(range(len(w.layouts[x])))
    if len(dims) > 1:
        dims[one], dims[other] = dims[other], dims[one]
    return permute(w, x, dims)


@rule(aten.movedim.int)
def movedim(w: Any, x: Node, source: int, target: int) -> Node:
    rank = len(w.layouts[x])
    dims = [d for d in range(rank) if d != source % rank]
    dims.insert(target % rank, source % rank)
    return permute(w, x, dims)


@rule(aten.unsqueeze.default)
def unsqueeze(w: Any, x: Node, dim: int) -> Node:
    layout = list(w.layouts[x])
    layout.insert(dim % (len(layout) + 1), ())
    return w.made(tuple(layout), aten.unsqueeze.default, x, dim)


@rule(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def squeeze(w: Any, x: Node, dim: Any = None) -> Node:
    layout = w.layouts[x]
    dims = range(len(layout)) if dim is None else [d % len(layout) for d in ([dim] if isinstance(dim, int) else dim)]
    if any(padded(layout[d]) for d in dims):
        raise Unknown("it drops a dimension where the size is 1, and only there")
    gone = [d for d in dims if room(layout[d]) == 1]
    shape = [room(n) for d, n in enumerate(layout) if d not in gone]
    return w.made(tuple(n for d, n in enumerate(layout) if d not in gone), aten.reshape.default, x, shape)


@rule(aten.expand.default, aten.expand_as.default, aten.broadcast_to.default)
def expand(w: Any, x: Node, sizes: Any, **kwargs: Any) -> Node:
    old, wanted = w.layouts[x], w.meant().shape
    counts = [w.expr(n) for n in wanted]
    other = w.layouts[sizes] if isinstance(sizes, Node) else None
    layout = []
    for i, size in enumerate(counts):
        at = i - (len(counts) - len(old))
        have = old[at] if at >= 0 else ()
        layout.append(have if have else other[i] if other else w.fresh(size))
    return w.made(tuple(layout), aten.expand.default, x, [room(d) for d in layout])


@rule(aten.repeat.default)
def repeat(w: Any, x: Node, times: list[Any]) -> Node:
    """A repeated dimension is one of copies times what is repeated."""
    if any(isinstance(n, Number) for n in times):
        raise Unknown("it repeats as often as a size says")
    old = ((),) * (len(times) - len(w.layouts[x])) + w.layouts[x]
    shape = [room(d) for d in old]
    between = [m for n, size in zip(times, shape, strict=True) for m in (1, size)]
    wide = [m for n, size in zip(times, shape, strict=True) for m in (n, size)]
    if any(n == 0 for n in times):
        raise Unknown("it is empty")
    layout = tuple(joined((*static(n), *d)) for n, d in zip(times, old, strict=True))
    seen = w.call(aten.expand.default, w.call(aten.reshape.default, x, between), wide)
    return w.made(layout, aten.reshape.default, seen, [n * s for n, s in zip(times, shape, strict=True)])


@rule(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.split.sizes, aten.unbind.int)
def split(w: Any, x: Node, *args: Any, **kwargs: Any) -> Node:
    unbind = w.node.target is aten.unbind.int
    dim = kwargs.get("dim", (args[0] if args else 0) if unbind else (args[1] if len(args) > 1 else 0))
    old = w.layouts[x]
    dim %= len(old)
    if padded(old[dim]):
        raise Unknown("it divides a dimension whose size is symbolic")
    node = w.call(w.node.target, x, *args, **kwargs)
    found = []
    for value in node.meta["val"]:
        layout = list(old)
        if unbind:
            del layout[dim]
        else:
            layout[dim] = static(value.shape[dim])
        found.append(tuple(layout))
    w.layouts[node] = found
    return node


@rule(aten.stack.default)
def stack(w: Any, tensors: list[Node], dim: int = 0) -> Node:
    layout = list(broadcast([w.layouts[t] for t in tensors]))
    layout.insert(dim % (len(layout) + 1), static(len(tensors)))
    return w.made(tuple(layout), aten.stack.default, tensors, dim)


@rule(aten.constant_pad_nd.default)
def pad(w: Any, x: Node, pads: list[Any], value: Any = 0) -> Node:
    """Behind a symbolic size comes what is padded with, too: the padding is filled with it."""
    layout = list(w.layouts[x])
    if any(isinstance(n, Number) for n in pads) or isinstance(value, Number):
        raise Unknown("it pads by a size")
    dims = [len(layout) - 1 - i // 2 for i in range(0, len(pads), 2) if pads[i] or pads[i + 1]]
    for d in dims:
        i = 2 * (len(layout) - 1 - d)
        if padded(layout[d]):
            x = filled(w, x, [d], value)
            if len(layout[d]) > 1 or min(pads[i], pads[i + 1]) < 0:
                raise Unknown("it cuts, or pads a dimension of several sizes")
        layout[d] = w.fresh(w.meant().shape[d])
    return w.made(tuple(layout), aten.constant_pad_nd.default, x, pads, value)
