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
) -> tuple[Tensor, ...]:  # fmt: skip
    """Bag b is the rows of `weight` [E,D] at `indices`[offsets[b]] to the next bag's first [N]; what `padding_idx` says
    is not in any. The others: the bag of each index, the bags' sizes, which rows of `weight` have the largest elements
    (no backward reads it in other modes)."""
    count = offsets.shape[0] - include_last_offset
    bag, counted = _bags(indices, offsets, count, padding_idx)
    size = scatter(torch.zeros(count, dtype=torch.int64, device=indices.device), {0: bag}, counted, "add")
    rows = _weighted(weight, indices, per_sample_weights)
    position = torch.arange(indices.shape[0], device=indices.device)
    chosen = torch.zeros_like(size)

    def reduced(combine: str, values: Tensor, start: float) -> Tensor:
        out = torch.full((count, *values.shape[1:]), start, dtype=values.dtype, device=values.device)
        return scatter(out, {0: bag}, values, combine)

    if not indices.shape[0]:
        out = torch.zeros((count, weight.shape[1]), dtype=weight.dtype, device=weight.device)
        chosen = torch.zeros_like(out, dtype=torch.int64) if mode == _MAX else chosen
    elif mode == _MAX:
        last = indices.shape[0] - 1
        first = reduced("min", torch.where(counted, position, last), last)
        first_rows = aten.embedding.default(rows, first)
        best = reduced("max", _without_nan(rows, counted[:, None]), -math.inf)
        out = _largest(best, first_rows, size[:, None])
        has_it = counted[:, None] & (rows == aten.embedding.default(out, bag))
        place = reduced("min", torch.where(has_it, position[:, None], indices.shape[0]), indices.shape[0])
        place = torch.where(place > last, first[:, None], place)
        chosen = aten.index_select.default(indices, 0, place.reshape(-1)).reshape(place.shape)
    else:
        total = reduced("add", torch.where(counted[:, None], rows, 0), 0.0)
        out = total / size.clamp(min=1)[:, None] if mode == _MEAN else total
    return out.to(weight.dtype), *_saved(weight, offsets, mode, padding_idx, (bag, size, chosen))


def _saved(
    weight: Tensor, offsets: Tensor, mode: int, padding_idx: int, found: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """The bag of each index, the bags' sizes and the largest rows in the shapes that PyTorch has on the device."""
    bag, size, chosen = (t.to(offsets.dtype) for t in found)
    if weight.device.type == "cpu":
        is_fast = mode == _SUM and padding_idx < 0 and weight.dtype in (torch.float32, torch.float16)
        return bag[:0] if is_fast else bag, size, chosen
    if offsets.shape[0] > size.shape[0]:
        size = torch.cat([size, torch.zeros_like(offsets[:1])])
    return bag, size, chosen if mode == _MAX else chosen[:0]


def _bags(indices: Tensor, offsets: Tensor, count: int, padding_idx: int) -> tuple[Tensor, Tensor]:
    """Of each index [N], the number of its bag, and whether the bag counts it."""
    position = torch.arange(indices.shape[0], device=indices.device)
    bag = (aten.slice.Tensor(offsets, 0, 0, count)[None, :] <= position[:, None]).sum(1) - 1
    counted = indices != padding_idx if padding_idx >= 0 else torch.ones_like(indices, dtype=torch.bool)
    if offsets.shape[0] > count:
        counted = counted & (position < aten.select.int(offsets, 0, count))
    return bag, counted


@_decomposes(aten._embedding_bag_backward.default)
def _embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, bag_size: Tensor, maximum_indices: Tensor,
    num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Tensor | None = None,
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient [E,D] of `weight` for that of the bags [B,D], dense. By frequency, it is divided by how often the
    batch has a row, as on a GPU; on a CPU, PyTorch 2.13 takes the frequency of another row."""
    wide = _wide(grad)
    out = torch.zeros((num_weights, grad.shape[1]), dtype=wide.dtype, device=grad.device)
    if not indices.shape[0] or not grad.numel():
        return out.to(grad.dtype)
    bag, counted = _bags(indices, offsets, grad.shape[0], padding_idx)
    size = scatter(torch.zeros(grad.shape[0], dtype=torch.int64, device=grad.device), {0: bag}, counted, "add")
    if mode == _MAX:
        column = torch.arange(grad.shape[1], device=grad.device).expand(grad.shape)
        places = {0: maximum_indices.reshape(-1), 1: column.reshape(-1)}
        return scatter(out, places, torch.where(size[:, None] > 0, wide, 0).reshape(-1), "add").to(grad.dtype)
    if mode == _MEAN:
        wide = wide / size.clamp(min=1)[:, None]
    rows = _weighted(wide, bag, per_sample_weights)
    if scale_grad_by_freq:
        often = scatter(torch.zeros(num_weights, dtype=torch.int64, device=grad.device), {0: indices}, counted, "add")
        rows = rows / aten.index_select.default(often, 0, indices).clamp(min=1)[:, None]
    return scatter(out, {0: indices}, torch.where(counted[:, None], rows, 0), "add").to(grad.dtype)


@_decomposes(aten._embedding_bag_per_sample_weights_backward.default)
def _embedding_bag_per_sample_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, mode: int,
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient [N] of the weights of the sums' terms."""
    if not indices.shape[0]:
        return torch.zeros_like(indices, dtype=grad.dtype)
    bag, counted = _bags(indices, offsets, grad.shape[0], padding_idx)
    terms = aten.embedding.default(_wide(grad), bag) * aten.embedding.default(_wide(weight), indices)
    return torch.where(counted, terms.sum(1), 0).to(grad.dtype)


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
