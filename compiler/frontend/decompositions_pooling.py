"""Decompositions of pooling that torch-mlir does not have, or lowers only for some shapes.

A maximum over windows is taken one dimension after the other, from the last. Along a dimension every output has a list
of places, all of one length: a shorter window repeats one of its own, which changes neither its maximum nor where that
is. Indices are those of PyTorch: the first maximum in the order of the input, but the last NaN if there is one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirc.frontend.evaluate import evaluate_fake, place

aten = torch.ops.aten
Tensor = torch.Tensor
Windows = list[list[int]]  # of one dimension: the places that each output looks at

POOLING: dict[Any, Callable] = {}
MOST_COMPARED = 16  # elements of a window that are compared one by one, where their places are asked for
MOST_UNROLLED = 64  # elements of a window that a map reads one by one (`mlirc-unroll-windows`)


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        POOLING[op] = function
        return function

    return add


def each(value: int | Sequence[int], rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def sliding_windows(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Windows:
    """The places of each window inside of a dimension of `size` elements; raises ValueError for a window with none."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-reach // stride) if ceil_mode else reach // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1  # a window that starts in the padding after the end is none
    starts = [i * stride - padding for i in range(count)]
    windows = [[p for p in range(s, s + kernel * dilation, dilation) if 0 <= p < size] for s in starts]
    if not all(windows):
        raise ValueError(f"a pooling window over {size} elements has no element, only padding: use less padding")
    return windows


def adaptive_windows(size: int, count: int) -> Windows:
    """`count` windows that cover a dimension of `size` elements, as PyTorch's adaptive pooling places them."""
    return [list(range(i * size // count, -(-(i + 1) * size // count))) for i in range(count)]


def _look(x: Tensor, dim: int, windows: Windows) -> Tensor:
    """x with the dimension `dim` (from the end) as two: windows, and the elements of each."""
    length = max(map(len, windows), default=1)
    table = torch.tensor([w + [w[-1]] * (length - len(w)) for w in windows], dtype=torch.int64, device=x.device)
    places: list[Tensor | None] = [None] * (x.dim() + dim)
    return aten.index.Tensor(x, [*places, table])


def max_over_windows(x: Tensor, windows: Sequence[Windows], with_indices: bool) -> tuple[Tensor, Tensor | None]:
    """The maxima of windows over the last dimensions, and their places in these dimensions, flattened, in int64."""
    indices = None
    if with_indices:
        sizes = x.shape[x.dim() - len(windows) :]
        indices = torch.arange(math.prod(sizes), device=x.device).reshape(sizes)
    for dim in range(-1, -1 - len(windows), -1):
        seen = _look(x, dim, windows[dim])
        x = aten.amax.default(seen, [dim])
        if indices is not None:
            where = _look(indices, dim, windows[dim])
            top = x.unsqueeze(dim)
            first = aten.amin.default(torch.where(seen == top, where, torch.iinfo(torch.int64).max), [dim])
            if x.is_floating_point():
                last_nan = aten.amax.default(torch.where(seen != seen, where, -1), [dim])
                first = torch.where(x != x, last_nan, first)
            indices = first
    return x, indices


def _sliding(
    x: Tensor, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> list[Windows]:
    kernel = each(kernel, rank)
    settings = (each(stride, rank) if stride else kernel, each(padding, rank), each(dilation, rank))
    sizes = x.shape[x.dim() - rank :]
    return [sliding_windows(n, k, s, p, d, ceil_mode) for n, k, s, p, d in zip(sizes, kernel, *settings, strict=True)]


def _with_indices(rank: int) -> Callable:
    def pool(x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False):
        windows = _sliding(x, rank, kernel, stride, padding, dilation, ceil_mode)
        kernel, padding, dilation = each(kernel, rank), each(padding, rank), each(dilation, rank)
        steps = each(stride, rank) if stride else kernel
        if math.prod(kernel) <= MOST_COMPARED and x.is_floating_point() and all(windows) and x.numel():
            return _compared(x, [len(w) for w in windows], list(zip(kernel, steps, padding, dilation, strict=True)))
        return max_over_windows(x, windows, True)

    return pool


def _compared(x: Tensor, counts: Sequence[int], geometry: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The maxima of so many windows along each of the last dimensions, of (kernel, stride, padding, dilation) there,
    and their places, flattened: first all elements of a window are compared, and then each of them with the maximum,
    so that either is one map."""
    rank, lead = len(counts), x.dim() - len(counts)
    sizes = x.shape[lead:]
    ends = [(n - 1) * s - p + d * (k - 1) + 1 for n, (k, s, p, d) in zip(counts, geometry, strict=True)]
    around = [n for end, size, g in zip(ends, sizes, geometry, strict=True) for n in (max(end - size, 0), g[2])][::-1]
    firsts = [
        (torch.arange(n, device=x.device) * s - p).view([-1 if i == at else 1 for i in range(rank)])
        for at, (n, (_, s, p, _)) in enumerate(zip(counts, geometry, strict=True))
    ]
    taps = [
        [t * g[3] for t, g in zip(taps, geometry, strict=True)]
        for taps in itertools.product(*(range(g[0]) for g in geometry))
    ]

    def elements(outside: float) -> list[Tensor]:
        wide = aten.constant_pad_nd.default(x, around, outside)
        found = [wide] * len(taps)
        for i, (n, g) in enumerate(zip(counts, geometry, strict=True)):
            last = (n - 1) * g[1] + 1
            found = [aten.slice.Tensor(v, lead + i, t[i], t[i] + last, g[1]) for v, t in zip(found, taps, strict=True)]
        return found

    def place(offsets: Sequence[int]) -> Tensor:
        places = [
            (first + o) * math.prod(sizes[i + 1 :]) for i, (first, o) in enumerate(zip(firsts, offsets, strict=True))
        ]
        return functools.reduce(torch.add, places)

    top = functools.reduce(torch.maximum, elements(-math.inf))
    first = last_nan = torch.zeros(top.shape, dtype=torch.int64, device=x.device)
    for element, offsets in list(zip(elements(math.nan), taps, strict=True))[::-1]:
        first = torch.where(element == top, place(offsets), first)
    for element, offsets in zip(elements(0.0), taps, strict=True):
        last_nan = torch.where(element != element, place(offsets), last_nan)
    return top, torch.where(top != top, last_nan, first)


def _adaptive(rank: int, with_indices: bool) -> Callable:
    def pool(x: Tensor, output_size: Any) -> Any:
        counts = each(output_size, rank)
        windows = [adaptive_windows(n, count) for n, count in zip(x.shape[x.dim() - rank :], counts, strict=True)]
        out = max_over_windows(x, windows, with_indices)
        return out if with_indices else out[0]

    return pool


POOLING |= {
    aten.max_pool1d_with_indices.default: _with_indices(1),
    aten.max_pool2d_with_indices.default: _with_indices(2),
    aten.max_pool3d_with_indices.default: _with_indices(3),
    aten.adaptive_max_pool1d.default: _adaptive(1, True),
    aten.adaptive_max_pool2d.default: _adaptive(2, True),
    aten.adaptive_max_pool3d.default: _adaptive(3, True),
}


def _unpool(rank: int) -> Callable:
    def unpool(x: Tensor, indices: Tensor, output_size: list[int], *_: Any) -> Tensor:
        """Where two values have one place, the last is there: PyTorch does not say which."""
        lead = list(x.shape[: x.dim() - rank])
        empty = x.new_zeros([*lead, math.prod(output_size)])
        out = aten.scatter.src(empty, -1, indices.reshape([*lead, -1]), x.reshape([*lead, -1]))
        return out.reshape([*lead, *output_size])

    return unpool


POOLING |= {aten.max_unpool2d.default: _unpool(2), aten.max_unpool3d.default: _unpool(3)}

_RANKS = {
    aten.max_pool1d.default: 1,
    aten.max_pool2d.default: 2,
    aten.max_pool3d.default: 3,
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
}


def has_small_windows(node: Node) -> bool:
    """Whether a call is a maximum over windows that torch-mlir lowers whole, and that become a map."""
    if node.target is not aten.max_pool3d.default:
        return False
    kernel: Any = node.args[1]
    return math.prod(each(kernel, 3)) <= MOST_UNROLLED and node.meta["val"].is_floating_point()


def fit_poolings(graph: Graph) -> None:
    """Gives poolings of one image a batch of one, which torch-mlir's lowering wants, and cuts windows that are larger
    than the padded input to its size: torch-mlir would pad the input to the window's."""
    for node in list(graph.nodes):
        if node.target not in _RANKS:
            continue
        source = node.args[0]
        node.args = (source, *_fitted(node.args[1:], source.meta["val"].shape[-_RANKS[node.target] :]))
        if source.meta["val"].dim() != _RANKS[node.target] + 1:
            continue
        with graph.inserting_before(node):
            batch = _call(graph, node, aten.unsqueeze.default, source, 0)
            pooled = _call(graph, node, node.target, batch, *node.args[1:])
            one = _call(graph, node, aten.squeeze.dim, pooled, 0)
        node.replace_all_uses_with(one)
        graph.erase_node(node)


def _fitted(settings: Sequence[Any], sizes: Sequence[int]) -> Sequence[Any]:
    """The arguments after the input, kernel, stride and padding first, with no kernel beyond the padded input, and
    with a stride, which torch-mlir takes for 1 where it is the kernel's.

    PyTorch allows such a kernel in ceil mode only: it is one window, of which the part outside counts for nothing.
    """
    kernel = each(settings[0], len(sizes))
    stride = each(settings[1], len(sizes)) if len(settings) > 1 and settings[1] else kernel
    padding = each(settings[2], len(sizes)) if len(settings) > 2 else [0] * len(sizes)
    room = [n + 2 * p for n, p in zip(sizes, padding, strict=True)]
    if all(k <= n for k, n in zip(kernel, room, strict=True)):
        return [kernel, stride, *settings[2:]]
    fitted = [min(k, n) for k, n in zip(kernel, room, strict=True)]
    return [fitted, [min(s, n) for s, n in zip(stride, room, strict=True)], *settings[2:]]


def _call(graph: Graph, like: Node, target: Any, *args: Any) -> Node:
    node = graph.call_function(target, args)
    node.meta = {"val": evaluate_fake(target, args, {}), **place(like)}
    return node
