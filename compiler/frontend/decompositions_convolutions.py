"""Decompositions of convolutions that are products, or that torch-mlir lowers for some groups and ranks only, and of
the gradients of transposed and grouped ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

CONVOLUTIONS: dict[Any, Callable] = {}

GATHERED = (torch.float32, torch.float16, torch.bfloat16)  # whose windows GEMMs read as they lie (`mlirc-convolutions`)
FEW_CHANNELS = 8  # below which a pixel is too little to be read alone: patches are put in rows, channels first


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        CONVOLUTIONS[op] = function
        return function

    return add


def _each(values: Sequence[int], rank: int) -> list[int]:
    return list(values) * (rank // len(values))


@_decomposes(aten.convolution.default)
def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    rank = weight.dim() - 2
    stride, padding, dilation, output_padding = (_each(v, rank) for v in (stride, padding, dilation, output_padding))
    if x.dim() != rank + 2:
        return NotImplemented
    depthwise, integers = groups == x.shape[1] > 1, groups > 1 and not x.is_floating_point()
    if transposed:
        wide = weight.shape[1] > 1 or weight.shape[0] > groups
        if x.dtype in GATHERED and wide and not any(n == 0 for n in (*x.shape, *weight.shape)):
            return _by_phases(x, weight, bias, stride, padding, dilation, output_padding, groups)
        if not depthwise and not (integers and rank == 3):
            return NotImplemented
        return _transposed(x, weight, bias, stride, padding, dilation, output_padding, groups)
    if rank == 3 and (integers or (depthwise and weight.shape[0] == groups)):
        return _by_depth(x, weight, bias, stride, padding, dilation, groups)
    # A single pixel's channels are rows of f32 where images lie channels first.
    alone = x.dtype == torch.float32 and x.shape[0] > 1 and math.prod(weight.shape[2:]) == 1 and set(stride) == {1}
    if groups != 1 or any(padding) or x.dtype in GATHERED and (alone or weight.shape[1] >= FEW_CHANNELS):
        return NotImplemented
    return _as_product(x, weight, bias, stride, dilation)


def _as_product(x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], dilation: list[int]) -> Tensor:
    """Convolutions whose windows do not overlap (patch embeddings, 1x1) are products of reordered input."""
    kernel = list(weight.shape[2:])
    rank = len(kernel)
    if all(k == 1 for k in kernel):
        for dim, step in enumerate(stride, start=2):
            x = x if step == 1 else aten.slice.Tensor(x, dim, 0, x.shape[dim], step)
        stride = [1] * rank
        if x.shape[0] == 1:  # pixels stay the columns
            out = aten.mm.default(weight.reshape(weight.shape[0], -1), x.reshape(x.shape[1], -1))
            out = out if bias is None else out + bias[:, None]
            return out.reshape(1, -1, *x.shape[2:])
    sizes = list(x.shape[2:])
    dense = all(d == 1 or k == 1 for d, k in zip(dilation, kernel, strict=True))
    if stride != kernel or not dense or any(n % k for n, k in zip(sizes, kernel, strict=True)):
        return NotImplemented
    counts = [n // k for n, k in zip(sizes, kernel, strict=True)]
    split = x.reshape(x.shape[0], x.shape[1], *[n for pair in zip(counts, kernel, strict=True) for n in pair])
    # [B, C, n0, k0, n1, k1, ...] -> [B, n0, n1, ..., C, k0, k1, ...]
    split = split.permute(0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2))
    out = aten.linear.default(split.reshape(-1, weight[0].numel()), weight.reshape(weight.shape[0], -1), bias)
    return out.reshape(x.shape[0], *counts, -1).permute(0, rank + 1, *range(1, rank + 1))


@dataclass(frozen=True)
class _Class:
    """Phases of one dimension that one convolution computes: the first one, how many; the first one's first tap, and
    how many taps each has; how many of the input's elements their results lie behind what they read."""

    first: int
    count: int
    tap: int
    taps: int
    shift: int


def _classes(kernel: int, stride: int, dilation: int) -> list[_Class]:
    """All phases of a dimension, in order; one that no tap reaches has none. Result o of the input's element i and tap
    t: o + padding = i * stride + t * dilation."""
    step = stride // math.gcd(stride, dilation)  # of the taps of a phase
    if step == stride and dilation == 1:  # phases that have equally many taps are together
        full = kernel % stride
        both = _Class(0, full, 0, -(-kernel // stride), 0), _Class(full, stride - full, full, kernel // stride, 0)
        return [c for c in both if c.count]
    taps = {tap * dilation % stride: tap for tap in range(step)}
    found = []
    for phase in range(stride):
        tap = taps.get(phase, kernel)
        found.append(_Class(phase, 1, tap % step, len(range(tap, kernel, step)), tap * dilation // stride))
    return found


def _by_phases(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """Convolutions of stride 1 whose channels are the results of phases (of places modulo the stride), and then these
    in their places: what lies between the input's elements is never multiplied. `weight` [C, outputs / groups, ...]."""
    rank, kernel, outputs = len(stride), list(weight.shape[2:]), weight.shape[1]
    steps = [s // math.gcd(s, d) for s, d in zip(stride, dilation, strict=True)]  # of the taps of a phase
    apart = [d // math.gcd(s, d) for s, d in zip(stride, dilation, strict=True)]  # what they read of the input
    whole = [-(-k // s) for k, s in zip(kernel, steps, strict=True)]
    more = [n for k, s, t in reversed(list(zip(kernel, steps, whole, strict=True))) for n in (0, t * s - k)]
    split = torch.nn.functional.pad(weight, more).reshape(
        groups, -1, outputs, *[n for pair in zip(whole, steps, strict=True) for n in pair]
    )
    geometry = list(zip(x.shape[2:], stride, padding, dilation, kernel, output_padding, strict=True))
    sizes = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + o for n, s, p, d, k, o in geometry]
    counts = [(size - 1 + p) // s + 1 - p // s for size, s, p in zip(sizes, stride, padding, strict=True)]

    def results(chosen: list[_Class]) -> Tensor:
        """[N, groups, *phases, outputs / groups, *counts] of the phases that are chosen, and of all in the dimensions
        after those."""
        i = len(chosen)
        if i < rank:
            classes = _classes(kernel[i], stride[i], dilation[i])
            return torch.cat([results([*chosen, c]) for c in classes], 2 + i)
        part, phases = split, [c.count for c in chosen]
        edges: list[int] = []
        for i, c in enumerate(chosen):
            part = part.narrow(3 + 2 * i, 0, c.taps).narrow(4 + 2 * i, c.tap, c.count)
            before = padding[i] // stride[i] - c.shift
            edges = [apart[i] * (c.taps - 1) - before, counts[i] + before - x.shape[2 + i], *edges]
        if not part.numel():
            empty = x.new_zeros([x.shape[0], groups, *phases, outputs, *counts])
            return empty if bias is None else empty + bias.reshape(groups, *[1] * rank, outputs, *[1] * rank)
        places = range(3, 3 + 2 * rank, 2)
        part = part.flip(list(places)).permute(0, *range(4, 4 + 2 * rank, 2), 2, 1, *places)
        part = part.reshape(-1, *part.shape[2 + rank :])
        each = None if bias is None else bias.reshape(groups, 1, -1).expand(-1, math.prod(phases), -1).reshape(-1)
        padded = torch.nn.functional.pad(x, edges)
        out = aten.convolution.default(padded, part, each, [1] * rank, [0] * rank, apart, False, [0] * rank, groups)
        return out.reshape(x.shape[0], groups, *phases, outputs, *counts)

    out = results([])
    out = out.permute(0, 1, 2 + rank, *[n for i in range(rank) for n in (3 + rank + i, 2 + i)])
    out = out.reshape(x.shape[0], -1, *[n * s for n, s in zip(counts, stride, strict=True)])
    for i, (size, s, p) in enumerate(zip(sizes, stride, padding, strict=True)):
        out = aten.slice.Tensor(out, 2 + i, p % s, p % s + size)
    return out


def _transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """A convolution of the input with zeros between its elements, by weights in the reverse order. `weight`
    [C, outputs / groups, ...]."""
    rank = len(stride)
    edges: list[int] = []
    for i in range(rank):
        x = _with_gaps(x, 2 + i, stride[i])
        reach = dilation[i] * (weight.shape[2 + i] - 1) - padding[i]
        edges = [reach, reach + output_padding[i], *edges]
    x = torch.nn.functional.pad(x, edges)
    kernel = list(weight.shape[2:])
    split = weight.flip(list(range(2, 2 + rank))).reshape(groups, weight.shape[0] // groups, weight.shape[1], *kernel)
    swapped = split.transpose(1, 2).reshape(groups * weight.shape[1], weight.shape[0] // groups, *kernel)
    return aten.convolution.default(x, swapped, bias, [1] * rank, [0] * rank, dilation, False, [0] * rank, groups)


def _with_gaps(x: Tensor, dim: int, stride: int) -> Tensor:
    """x with stride - 1 zeros between the elements of a dimension."""
    size = x.shape[dim]
    if stride == 1 or size < 1:
        return x
    behind = x.dim() - dim - 1
    spread = aten.constant_pad_nd.default(x.unsqueeze(dim + 1), [0] * (2 * behind) + [0, stride - 1], 0)
    joined = spread.reshape(*x.shape[:dim], size * stride, *x.shape[dim + 1 :])
    return aten.slice.Tensor(joined, dim, 0, (size - 1) * stride + 1)


def _by_depth(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """The sum of convolutions in two dimensions, one for each step in depth; `weight` [outputs, C / groups, ...]."""
    dtype = x.dtype
    if dtype in (torch.float16, torch.bfloat16):  # each of the terms would be rounded
        x, weight, bias = x.float(), weight.float(), None if bias is None else bias.float()
    x = torch.nn.functional.pad(x, [0, 0, 0, 0, padding[0], padding[0]])
    count = (x.shape[2] - dilation[0] * (weight.shape[2] - 1) - 1) // stride[0] + 1
    settings = (stride[1:], padding[1:], dilation[1:], False, [0, 0], groups)
    total = None
    for tap in range(weight.shape[2]):
        slices = _every(x, 2, tap * dilation[0], count, stride[0]).transpose(1, 2)
        images = slices.reshape(-1, *slices.shape[2:])
        term = aten.convolution.default(images, weight[:, :, tap], None if tap else bias, *settings)
        total = term if total is None else total + term
    assert total is not None
    return total.reshape(x.shape[0], count, *total.shape[1:]).transpose(1, 2).to(dtype)


def _every(x: Tensor, dim: int, first: int, count: int, step: int) -> Tensor:
    return aten.slice.Tensor(x, dim, first, first + (count - 1) * step + 1, step)


@_decomposes(aten.convolution_backward.default)
def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> Any:
    """The gradients of the input, the weights and the bias, or None where the mask does not ask for one."""
    rank = weight.dim() - 2
    stride, padding, dilation = (_each(v, rank) for v in (stride, padding, dilation))
    if x.dim() != rank + 2 or not (transposed or groups > 1):
        return NotImplemented
    of_input = of_weight = of_bias = None
    if output_mask[0]:
        none = [0] * rank if transposed else _left_over(x, gradient, weight, stride, padding, dilation)
        of_input = aten.convolution.default(
            gradient, weight, None, stride, padding, dilation, not transposed, none, groups
        )
    if output_mask[1]:
        windows, seen = (gradient, x) if transposed else (x, gradient)
        of_weight = _weight_gradient(windows, seen, list(weight.shape[2:]), stride, padding, dilation, groups)
    if output_mask[2]:
        of_bias = aten.sum.dim_IntList(gradient, [0, *range(2, rank + 2)])
    return of_input, of_weight, of_bias


def _left_over(
    x: Tensor, out: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int]
) -> list[int]:
    """How many elements at the end of each dimension no window reaches: the output padding of the transposed one."""
    reached = [
        (out.shape[i] - 1) * s - 2 * p + d * (weight.shape[i] - 1) + 1
        for i, (s, p, d) in enumerate(zip(stride, padding, dilation, strict=True), start=2)
    ]
    return [n - r for n, r in zip(x.shape[2:], reached, strict=True)]


def _weight_gradient(
    x: Tensor,
    gradient: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """[outputs, C / groups, ...]: for each group the product of the results' gradients and the windows that they are
    of. x [N, C, ...], gradient [N, outputs, ...]."""
    x = torch.nn.functional.pad(x, [p for n in reversed(padding) for p in (n, n)])
    parts = []
    for taps in itertools.product(*map(range, kernel)):
        part = x
        for i, tap in enumerate(taps):
            part = _every(part, 2 + i, tap * dilation[i], gradient.shape[2 + i], stride[i])
        parts.append(part.reshape(x.shape[0], groups, x.shape[1] // groups, -1))
    windows = torch.stack(parts, -1).permute(1, 0, 3, 2, 4)  # [groups, N, places, C / groups, taps]
    windows = windows.reshape(groups, -1, x.shape[1] // groups * len(parts))
    rows = gradient.reshape(x.shape[0], groups, gradient.shape[1] // groups, -1).permute(1, 2, 0, 3)
    out = aten.bmm.default(rows.reshape(groups, gradient.shape[1] // groups, -1), windows)
    return out.reshape(gradient.shape[1], x.shape[1] // groups, *kernel)
