"""Reductions, normalizations and scans: along a symbolic size, padding becomes the neutral element."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx import Node

from mlirc.frontend.sizes.layout import Unknown, count, padded, room, static
from mlirc.frontend.sizes.rules.masks import dims_of, filled, highest, lowest, padded_dims
from mlirc.frontend.sizes.rules.registry import rule

aten = torch.ops.aten


def without(layout: Any, dims: list[int], keepdim: bool) -> Any:
    """The layout of a reduction's result."""
    return tuple(() if d in dims else dim for d, dim in enumerate(layout) if keepdim or d not in dims)


def _given(w: Any, dim: Any, keepdim: bool) -> tuple:
    """The arguments behind the tensor of an overload that takes dimensions (None: all), or none."""
    takes = any(argument.name == "dim" for argument in w.node.target._schema.arguments)
    return (dim, keepdim) if takes else ()


def _neutral(value: Any) -> Any:
    """A rule for a reduction (x, dim, keepdim) with that neutral element, a number or a function of the dtype."""

    def reduction(w: Any, x: Node, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Node:
        layout = w.layouts[x]
        dims = dims_of(len(layout), dim)
        x = filled(w, x, dims, value(x.meta["val"].dtype) if callable(value) else value)
        return w.made(without(layout, dims, keepdim), w.node.target, x, *_given(w, dim, keepdim), **kwargs)

    return reduction


rule(aten.sum.dim_IntList, aten.sum.default, aten.any.dim, aten.any.default, aten.any.dims, aten.nansum.default)(
    _neutral(0)
)
rule(aten.prod.dim_int, aten.prod.default, aten.all.dim, aten.all.default, aten.all.dims)(_neutral(1))
rule(aten.amax.default, aten.max.default)(_neutral(lowest))
rule(aten.amin.default, aten.min.default)(_neutral(highest))


@rule(aten.logsumexp.default)
def logsumexp(w: Any, x: Node, dim: Any, keepdim: bool = False) -> Node:
    return _neutral(lowest)(w, x, dim, keepdim)


@rule(aten.max.dim, aten.min.dim)
def extreme(w: Any, x: Node, dim: int, keepdim: bool = False) -> Node:
    layout = w.layouts[x]
    (at,) = dims_of(len(layout), dim)
    if len(layout[at]) > 1 and padded(layout[at]):
        raise Unknown("its indices are of a dimension of several sizes")
    fill = lowest if w.node.target is aten.max.dim else highest
    node = w.call(w.node.target, filled(w, x, [at], fill(x.meta["val"].dtype)), dim, keepdim)
    w.layouts[node] = [without(layout, [at], keepdim)] * 2
    return node


@rule(aten.argmax.default, aten.argmin.default)
def place_of_extreme(w: Any, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    layout = w.layouts[x]
    dims = dims_of(len(layout), dim)
    if any(padded(layout[d]) for d in dims[1:]) or any(len(layout[d]) > 1 for d in dims if padded(layout[d])):
        raise Unknown("its indices are of a dimension of several sizes")
    fill = lowest if w.node.target is aten.argmax.default else highest
    x = filled(w, x, dims, fill(x.meta["val"].dtype))
    return w.made(without(layout, dims, keepdim), w.node.target, x, dim, keepdim)


def _counted(w: Any, layout: Any, dims: list[int], dtype: torch.dtype) -> Node:
    """How many elements are reduced, as a tensor of no dimension."""
    number = w.tensor(sympy.Mul(*[count(layout[d]) for d in dims]))
    return w.made((), aten._to_copy.default, number, dtype=dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _mean(w: Any, x: Node, dims: list[int]) -> Node:
    """The mean over `dims`, which stay as ones, in x's dtype."""
    layout, dtype = w.layouts[x], x.meta["val"].dtype
    kept = without(layout, dims, True)
    total = w.made(kept, aten.sum.dim_IntList, filled(w, x, dims, 0), dims, True)
    return w.made(kept, aten.div.Tensor, total, _counted(w, layout, dims, dtype))


def _cast(w: Any, x: Node, dtype: torch.dtype) -> Node:
    return x if x.meta["val"].dtype == dtype else w.made(w.layouts[x], aten._to_copy.default, x, dtype=dtype)


def _dropped(w: Any, x: Node, dims: list[int], keepdim: bool) -> Node:
    if keepdim:
        return x
    layout = without(w.layouts[x], dims, False)
    return w.made(layout, aten.reshape.default, x, [room(d) for d in layout])


@rule(aten.mean.dim, aten.mean.default)
def mean(w: Any, x: Node, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    layout = w.layouts[x]
    dims = dims_of(len(layout), dim)
    if not padded_dims(w, x, dims):
        return w.made(without(layout, dims, keepdim), w.node.target, x, *_given(w, dim, keepdim), dtype=dtype)
    found = _mean(w, _cast(w, x, _wide(w.meant().dtype)), dims)
    return _cast(w, _dropped(w, found, dims, keepdim), w.meant().dtype)


def _moments(w: Any, x: Node, dims: list[int], correction: Any) -> tuple[Node, Node]:
    """Variance and mean over `dims`, which stay as ones, in f32 or f64."""
    layout = w.layouts[x]
    wide = _cast(w, x, _wide(x.meta["val"].dtype))
    center = _mean(w, wide, dims)
    away = filled(w, w.made(layout, aten.sub.Tensor, wide, center), dims, 0)
    kept = without(layout, dims, True)
    total = w.made(kept, aten.sum.dim_IntList, w.made(layout, aten.mul.Tensor, away, away), dims, True)
    number = _counted(w, layout, dims, wide.meta["val"].dtype)
    if correction:
        number = w.made((), aten.clamp_min.default, w.made((), aten.sub.Scalar, number, correction), 0)
    return w.made(kept, aten.div.Tensor, total, number), center


@rule(aten.var.correction, aten.std.correction, aten.var_mean.correction)
def var(w: Any, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Node:
    layout = w.layouts[x]
    dims = dims_of(len(layout), dim)
    correction = 1 if correction is None else correction
    result = without(layout, dims, keepdim)
    pair = w.node.target is aten.var_mean.correction
    if not padded_dims(w, x, dims):
        return w.made([result] * 2 if pair else result, w.node.target, x, dim, correction=correction, keepdim=keepdim)
    if pair:
        raise Unknown("it gives a variance and a mean over a symbolic size: compute them apart")
    found, _ = _moments(w, x, dims, correction)
    if w.node.target is aten.std.correction:
        found = w.made(w.layouts[found], aten.sqrt.default, found)
    return _cast(w, _dropped(w, found, dims, keepdim), w.meant().dtype)


@rule(aten.softmax.int, aten._softmax.default, aten.log_softmax.int, aten._log_softmax.default)
def softmax(w: Any, x: Node, dim: int, *args: Any, **kwargs: Any) -> Node:
    layout = w.layouts[x]
    return w.made(layout, w.node.target, filled(w, x, dims_of(len(layout), dim), float("-inf")), dim, *args, **kwargs)


@rule(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
def cumulative(w: Any, x: Node, dim: int, **kwargs: Any) -> Node:
    """What comes in front does not see padding; how it is computed may, as a product with a triangle."""
    layout = w.layouts[x]
    dims = dims_of(len(layout), dim)
    if any(len(layout[d]) > 1 and padded(layout[d]) for d in dims):
        raise Unknown("it goes along a dimension of several sizes")
    fill = {aten.cumsum.default: 0, aten.cumprod.default: 1}.get(w.node.target, float("-inf"))
    return w.made(layout, w.node.target, filled(w, x, dims, fill), dim, **kwargs)


@rule(aten.linalg_vector_norm.default)
def vector_norm(w: Any, x: Node, ord: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Node:
    if ord < 0:
        raise Unknown("a norm of negative order has no neutral element")
    layout = w.layouts[x]
    dims = dims_of(len(layout), dim)
    return w.made(without(layout, dims, keepdim), w.node.target, filled(w, x, dims, 0), ord, dim, keepdim, **kwargs)


@rule(aten.layer_norm.default, aten.rms_norm.default)
def layer_norm(w: Any, x: Node, shape: list[Any], *args: Any, **kwargs: Any) -> Node:
    layout = w.layouts[x]
    dims = list(range(len(layout) - len(shape), len(layout)))
    if not padded_dims(w, x, dims):
        return w.made(layout, w.node.target, x, [w.size(n) for n in shape], *args, **kwargs)
    if w.node.target is not aten.layer_norm.default or any(a is not None for a in args[:2]):
        raise Unknown("it normalizes along a symbolic size")
    eps = args[2] if len(args) > 2 else 1e-5
    return _cast(w, _normalized(w, x, dims, eps), w.meant().dtype)


def _normalized(w: Any, x: Node, dims: list[int], eps: float) -> Node:
    """(x - mean) / sqrt(variance + eps) in f32 or f64."""
    layout = w.layouts[x]
    wide = _cast(w, x, _wide(x.meta["val"].dtype))
    spread, center = _moments(w, wide, dims, 0)
    kept = w.layouts[spread]
    scale = w.made(kept, aten.rsqrt.default, w.made(kept, aten.add.Scalar, spread, eps))
    return w.made(layout, aten.mul.Tensor, w.made(layout, aten.sub.Tensor, wide, center), scale)


@rule(aten.group_norm.default)
def group_norm(w: Any, x: Node, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Node:
    layout = w.layouts[x]
    if padded(layout[1]):
        raise Unknown("its channels have no fixed number")
    if not padded_dims(w, x, list(range(2, len(layout)))):
        return w.made(layout, aten.group_norm.default, x, groups, weight, bias, eps, False)
    shape = [room(d) for d in layout]
    grouped = (layout[0], static(groups), static(shape[1] // groups), *layout[2:])
    y = w.made(grouped, aten.reshape.default, x, [room(d) for d in grouped])
    y = _normalized(w, y, list(range(2, len(grouped))), eps)
    y = w.made(layout, aten.reshape.default, y, shape)
    for op, parameter in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
        if parameter is not None:
            wide = [shape[1], *[1] * (len(shape) - 2)]
            p = w.made(tuple(static(n) for n in wide), aten.reshape.default, parameter, wide)
            y = w.made(layout, op, y, p)
    return _cast(w, y, w.meant().dtype)


@rule(aten.batch_norm.default)
def batch_norm(w: Any, x: Node, *args: Any) -> Node:
    layout = w.layouts[x]
    if args[4] or args[2] is None or padded(layout[1]):
        raise Unknown("its statistics are of a batch, or its channels have no fixed number")
    return w.made(layout, w.node.target, x, *args)


@rule(aten._native_batch_norm_legit_no_training.default)
def batch_norm_taken_apart(w: Any, x: Node, *args: Any) -> Node:
    """What `batch_norm` becomes where PyTorch takes any other op apart; it makes two empty tensors, too."""
    layout = w.layouts[x]
    if padded(layout[1]):
        raise Unknown("its channels have no fixed number")
    node = w.call(w.node.target, x, *args)
    w.layouts[node] = [layout, *[tuple(static(n) for n in v.shape) for v in node.meta["val"][1:]]]
    return node


@rule(aten.sort.default, aten.sort.stable, aten.argsort.default, aten.argsort.stable, aten.topk.default)
def ordered(w: Any, x: Node, *args: Any, **kwargs: Any) -> Node:
    """Along a static dimension alone: no value is behind all others that a model may have, and told from them."""
    target, layout = w.node.target, w.layouts[x]
    first = {aten.topk.default: 1, aten.sort.default: 0, aten.argsort.default: 0}.get(target, 99)
    dim = kwargs.get("dim", args[first] if len(args) > first else -1)
    (at,) = dims_of(len(layout), dim)
    if padded(layout[at]):
        raise Unknown("it orders what is inside of the sizes and what is not")
    node = w.call(target, x, *args, **kwargs)
    single = target in (aten.argsort.default, aten.argsort.stable)
    size = w.meant().shape[at] if single else w.meant(0).shape[at]
    result = (*layout[:at], w.fresh(size), *layout[at + 1 :])
    w.layouts[node] = result if single else [result] * 2
    return node
