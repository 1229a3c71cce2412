"""Convolutions and pooling along symbolic sizes: padding is what they pad with."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from mlirc.frontend.sizes.layout import Layout, Unknown, padded, static
from mlirc.frontend.sizes.rules.masks import filled, lowest
from mlirc.frontend.sizes.rules.registry import Number, rule

aten = torch.ops.aten


def _windows(w: Any, x: Node, rank: int, channels: Any = None) -> Layout:
    """The result's layout for windows over the last `rank` dimensions."""
    layout = w.layouts[x]
    front = len(layout) - rank
    if any(len(d) > 1 and padded(d) for d in layout[front:]):
        raise Unknown("it goes along a dimension of several sizes")
    sizes = [w.fresh(n) for n in w.meant().shape[front:]]
    head = layout[:front] if channels is None else (*layout[: front - 1], channels)
    return (*head, *sizes)


def _each(numbers: Any, rank: int) -> Any:
    """A number for each dimension, as the importer wants them also where one stands for all."""
    return numbers if isinstance(numbers, (list, tuple)) else [numbers] * rank


@rule(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.conv1d.padding, aten.conv2d.padding)
def convolution(w: Any, x: Node, weight: Node, bias: Node | None = None, *args: Any, **kwargs: Any) -> Node:
    rank = len(w.layouts[weight]) - 2
    front = len(w.layouts[x]) - rank
    if padded(w.layouts[x][front - 1]):
        raise Unknown("its channels have no fixed number")
    layout = _windows(w, x, rank, w.layouts[weight][0])
    x = filled(w, x, list(range(front, front + rank)), 0)
    return w.made(layout, w.node.target, x, weight, bias, *args, **kwargs)


@rule(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
def transposed_convolution(
    w: Any, x: Node, weight: Node, bias: Any = None, stride: Any = 1, padding: Any = 0, more: Any = 0, groups: int = 1,
    dilation: Any = 1,
) -> Node:  # fmt: skip
    """Padding is 0: nothing is added where it would reach a result that is inside of the sizes."""
    rank = len(w.layouts[weight]) - 2
    front = len(w.layouts[x]) - rank
    if padded(w.layouts[x][front - 1]):
        raise Unknown("its channels have no fixed number")
    layout = _windows(w, x, rank, static(groups * weight.meta["val"].shape[1]))
    x = filled(w, x, list(range(front, front + rank)), 0)
    stride, padding, more, dilation = (_each(n, rank) for n in (stride, padding, more, dilation))
    return w.made(layout, w.node.target, x, weight, bias, stride, padding, more, groups, dilation)


@rule(aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default)
def max_pool(
    w: Any, x: Node, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Node:
    rank = int(str(w.node.target)[len("aten.max_pool")])
    layout = _windows(w, x, rank)
    front = len(layout) - rank
    x = filled(w, x, list(range(front, front + rank)), lowest(x.meta["val"].dtype))
    return w.made(layout, w.node.target, x, kernel, stride, _each(padding, rank), _each(dilation, rank), ceil)


@rule(aten.avg_pool1d.default, aten.avg_pool2d.default)
def avg_pool(w: Any, x: Node, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, include: bool = True,
             divisor: Any = None) -> Node:  # fmt: skip
    rank = int(str(w.node.target)[len("aten.avg_pool")])
    pads = padding if isinstance(padding, (list, tuple)) else [padding]
    if ceil or (any(pads) and not include and divisor is None) or isinstance(divisor, Number):
        raise Unknown("it divides by how much of a window is inside of the sizes")
    layout = _windows(w, x, rank)
    front = len(layout) - rank
    x = filled(w, x, list(range(front, front + rank)), 0)
    more = () if rank == 1 else (divisor,)
    return w.made(layout, w.node.target, x, kernel, stride, _each(padding, rank), ceil, include, *more)


@rule(*(
    getattr(aten, f"upsample_{kind}").vec
    for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")
))  # fmt: skip
def resize(w: Any, x: Node, *args: Any) -> Node:
    """Of images of fixed sizes: each is resized alone."""
    layout, meant = w.layouts[x], w.meant().shape
    if any(padded(d) for d in layout[2:]) or any(not isinstance(n, int) for n in meant[2:]):
        raise Unknown("it resizes along a size")
    return w.made((*layout[:2], *(static(n) for n in meant[2:])), w.node.target, x, *args)
