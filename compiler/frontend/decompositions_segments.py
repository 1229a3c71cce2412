"""Decompositions of reductions over segments of rows: bags of embeddings, and `segment_reduce`.

Which segment a row is in is counted from the segments' starts, whose values are not known here: all shapes are static.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirc.frontend.evaluate import evaluate_fake, place
from mlirc.frontend.graph_copy import copied
from mlirc.frontend.scatter import scatter

aten = torch.ops.aten
Tensor = torch.Tensor

SEGMENTS: dict[Any, Callable] = {}
_SUM, _MEAN, _MAX = 0, 1, 2
_BAGS = (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
_COMPOSITE = (aten.embedding_bag.default, aten.embedding_bag.padding_idx)


def _decomposes(*ops: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        for op in ops:
            SEGMENTS[op] = function
        return function

    return add


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype.is_floating_point and x.dtype.itemsize < 4 else x


# -- bags of embeddings


@_decomposes(*_BAGS)
def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = _SUM,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Bag b is the rows of `weight` [E,D] at `indices`[offsets[b]] to the next bag's first [N]; what `padding_idx` says
    is not in any. The other results: the bag of each index, the bags' sizes, and zeros."""
    count = offsets.shape[0] - include_last_offset
    position = torch.arange(indices.shape[0], device=indices.device)
    bag = (aten.slice.Tensor(offsets, 0, 0, count)[None, :] <= position[:, None]).sum(1) - 1
    counted = indices != padding_idx if padding_idx >= 0 else torch.ones_like(indices, dtype=torch.bool)
    if include_last_offset:
        counted = counted & (position < aten.select.int(offsets, 0, count))
    size = scatter(torch.zeros(count, dtype=torch.int64, device=indices.device), {0: bag}, counted, "add")
    rows = _weighted(weight, indices, per_sample_weights)

    def reduced(combine: str, values: Tensor, start: float) -> Tensor:
        out = torch.full((count, *values.shape[1:]), start, dtype=values.dtype, device=values.device)
        return scatter(out, {0: bag}, values, combine)

    if not indices.shape[0]:
        out = torch.zeros((count, weight.shape[1]), dtype=weight.dtype, device=weight.device)
    elif mode == _MAX:
        first = reduced("min", torch.where(counted, position, indices.shape[0]), indices.shape[0])
        first_rows = aten.embedding.default(rows, first.clamp(max=indices.shape[0] - 1))
        best = reduced("max", _without_nan(rows, counted[:, None]), -math.inf)
        out = _largest(best, first_rows, size[:, None])
    else:
        total = reduced("add", torch.where(counted[:, None], rows, 0), 0.0)
        out = total / size.clamp(min=1)[:, None] if mode == _MEAN else total
    return out.to(weight.dtype), bag, size, torch.zeros_like(size)


def _weighted(weight: Tensor, indices: Tensor, per_sample_weights: Tensor | None) -> Tensor:
    rows = _wide(aten.embedding.default(weight, indices))
    return rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(-1)


def _without_nan(rows: Tensor, counted: Tensor) -> Tensor:
    return torch.where(counted & ~torch.isnan(rows), rows, -math.inf)


def _largest(best: Tensor, first: Tensor, size: Tensor) -> Tensor:
    """PyTorch keeps a bag's first row until one is larger: a NaN in it stays, and others do not count."""
    return torch.where(size > 0, torch.where(torch.isnan(first), first, best), 0)


def with_equal_bags(graph: Graph) -> Graph | None:
    """A copy of a graph where bags whose offsets it counts up in equal steps, as those of indices of two dimensions,
    are sums of rows next to each other; None if there are none."""
    new = copied(graph)
    changed = False
    for node in [n for target in _BAGS + _COMPOSITE for n in new.find_nodes(op="call_function", target=target)]:
        arguments = dict(zip([a.name for a in node.target._schema.arguments], node.args, strict=False)) | node.kwargs
        size = _step(arguments["offsets"], arguments["indices"], arguments.get("include_last_offset", False))
        if size is None or any(u.users for u in node.users if u.args[1] != 0):
            continue
        weight, indices = arguments["weight"], arguments["indices"]
        padding = arguments.get("padding_idx", -1)
        if node.target in _COMPOSITE:
            padding = -1 if padding is None else padding % weight.meta["val"].shape[0]
        args = (
            weight, indices, arguments.get("per_sample_weights"), arguments.get("mode", _SUM), padding, size,
        )  # fmt: skip
        with new.inserting_before(node), weight.meta["val"].fake_mode:
            made = new.call_function(equal_bags_op._opoverload, args)
            made.meta = {"val": evaluate_fake(made.target, args, {}), **place(node)}
        for user in list(node.users):
            user.replace_all_uses_with(made)
            new.erase_node(user)
        new.erase_node(node)
        changed = True
    return new if changed else None


def _step(offsets: Node, indices: Node, include_last_offset: bool) -> int | None:
    """The size of all bags, where the offsets are 0, size, 2 size, ... for all indices."""
    target, count = offsets.target, indices.meta["val"].shape[0]
    if include_last_offset or target not in (aten.arange.start_step, aten.arange.start) or not count:
        return None
    start, end, step = (*offsets.args, 1)[:3]
    return step if start == 0 and end == count and isinstance(step, int) and step > 0 and count % step == 0 else None


@torch.library.custom_op("mlirc::equal_bags", mutates_args=())
def equal_bags_op(
    weight: Tensor, indices: Tensor, per_sample_weights: Tensor | None, mode: int, padding_idx: int, size: int
) -> Tensor:
    """`_embedding_bag`'s first result for bags of one size."""
    return _equal_bags(weight, indices, per_sample_weights, mode, padding_idx, size)


@equal_bags_op.register_fake
def _(weight, indices, per_sample_weights, mode, padding_idx, size):
    return weight.new_empty((indices.shape[0] // size, weight.shape[1]))


@_decomposes(equal_bags_op._opoverload)
def _equal_bags(
    weight: Tensor, indices: Tensor, per_sample_weights: Tensor | None, mode: int, padding_idx: int, size: int
) -> Tensor:
    indices = indices.reshape(-1, size)
    weights = per_sample_weights.reshape(-1, size) if per_sample_weights is not None else None
    rows = _weighted(weight, indices, weights)
    counted = (indices != padding_idx).unsqueeze(-1) if padding_idx >= 0 else None
    count: Any = size if counted is None else counted.sum(1)
    if mode == _MAX:
        kept = torch.ones_like(indices, dtype=torch.bool).unsqueeze(-1) if counted is None else counted
        position = torch.arange(size, device=indices.device)[None, :, None]
        first = aten.amin.default(torch.where(kept, position, size - 1), [1], True)
        first_rows = torch.gather(rows, 1, first.expand(-1, 1, rows.shape[2])).squeeze(1)
        out = _largest(_without_nan(rows, kept).amax(1), first_rows, kept.sum(1))
    else:
        out = (rows if counted is None else torch.where(counted, rows, 0)).sum(1)
        if mode == _MEAN:
            out = out / (count if counted is None else count.clamp(min=1))
    return out.to(weight.dtype)


@_decomposes(aten.embedding_renorm.default)
def _embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """The weight [E,D] with those of the rows at `indices` whose norm is above `max_norm` scaled down to it."""
    norm = torch.linalg.vector_norm(weight, norm_type, 1)
    found = torch.zeros_like(norm, dtype=torch.bool)
    found = scatter(found, {0: indices.reshape(-1)}, torch.ones_like(indices, dtype=torch.bool).reshape(-1))
    scaled = weight * (max_norm / (norm + 1e-7)).unsqueeze(1)
    return torch.where((found & (norm > max_norm)).unsqueeze(1), scaled, weight)


# -- segments of an axis


@_decomposes(aten.segment_reduce.default)
def _segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """Segments of axis `axis` of data [*B,N,*W], by lengths [*B,S] or offsets [*B,S+1]: [*B,S,*W]."""
    axis %= data.dim()
    before, size, after = list(data.shape[:axis]), data.shape[axis], list(data.shape[axis + 1 :])
    if offsets is None:
        assert lengths is not None
        ends = torch.cumsum(lengths.to(torch.int64), -1)
        starts = ends - lengths
    else:
        count = offsets.shape[-1] - 1
        starts, ends = aten.slice.Tensor(offsets, -1, 0, count), aten.slice.Tensor(offsets, -1, 1, count + 1)
    count, batch = starts.shape[-1], math.prod(before)
    combine = {"sum": "add", "mean": "add", "prod": "mul", "max": "max", "min": "min"}[reduce]
    neutral = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}[combine]
    start = neutral if initial is None else initial
    rows = _wide(data)
    out = torch.full((batch * count, *after), start, dtype=rows.dtype, device=data.device)
    if data.numel() and out.numel():
        position = torch.arange(size, device=data.device)[:, None]
        starts, ends = starts.unsqueeze(-2), ends.unsqueeze(-2)
        segment = ((ends <= position).sum(-1)).clamp(max=count - 1)  # [*B,N]
        inside = ((starts <= position) & (position < ends)).any(-1)
        first = torch.arange(batch, device=data.device).reshape(before)[..., None] * count
        rows = torch.where(inside.reshape([*before, size] + [1] * len(after)), rows, neutral)
        out = scatter(out, {0: (segment + first).reshape(-1)}, rows.reshape(batch * size, *after), combine)
    if reduce == "mean":
        length = (ends - starts).reshape([-1] + [1] * len(after))
        if initial is None:
            out = torch.where(length > 0, out / length, math.nan)
        else:
            out = torch.where(length > 0, out / length, out)
    return out.reshape([*before, count, *after]).to(data.dtype)
