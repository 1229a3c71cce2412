"""Mean and variance of data that may be far from 0: what the mean's rounding leaves is taken off afterwards.

The corrected two-pass algorithm: T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms for computing the sample variance:
analysis and recommendations", The American Statistician 37 (1983).
"""

from __future__ import annotations

import math

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

LONGEST_ROW = 1 << 19  # elements that a cluster of blocks reduces at once
LONGEST_PART, SHORTEST_PART = 1 << 14, 1 << 6  # elements of the parts of longer ones
# Pixels of a part of one channel, where groups have channels between them: a thread's, whose neighbours have others.
MOST_PIXELS, FEWEST_PIXELS = 64, 16


def moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, x - mean, mean of the squares of x - mean) of f32 or f64 x over `dims`, which are kept as 1."""
    near = average(x, dims)
    apart = x - near
    rest = average(apart, dims)
    return near + rest, apart - rest, _spread(apart, rest, dims)


def wide_moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """(mean, variance in f64), for its root: squares overflow f32, or are 0 in it, where the root does not."""
    near = average(x, dims)
    apart = x - near
    rest = average(apart, dims)
    return near + rest, _spread(apart.double(), rest.double(), dims)


def rounded_moments(x: Tensor, dims: list[int], pixels: bool = False) -> tuple[Tensor, Tensor]:
    """(mean, variance) for a kernel that writes both and nothing else: whoever subtracts the mean afterwards has its
    rounding, as in PyTorch's norms. Reductions that no block holds, or that are
    not of rows, are of parts of rows first; of `pixels`, the last dimension, which may be stored in front of channels,
    so are all that are long."""
    parts, inner, outer = _in_parts(x, dims, pixels)
    near = average(parts, inner)
    mean = near + average(parts - near, inner)
    apart = parts - mean
    if not outer:
        square = _spread(apart, average(apart, inner), inner)
    else:  # Chan, Golub and LeVeque's formula for parts of one size
        means, square = mean, average(apart * apart, inner)
        near = average(means, outer)
        mean = near + average(means - near, outer)
        apart = means - mean
        square = average(square + apart * apart, outer)
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
    return mean.reshape(shape), square.reshape(shape)


def _in_parts(x: Tensor, dims: list[int], pixels: bool) -> tuple[Tensor, list[int], list[int]]:
    """(x, reshaped; the dimensions of a part; those of the parts of one mean, or none)."""
    last = x.dim()
    if pixels and math.prod(x.shape[d] for d in dims) > LONGEST_PART:
        last -= 1
        part = next((n for n in range(MOST_PIXELS, FEWEST_PIXELS - 1, -1) if x.shape[last] % n == 0), None)
        if part is not None:
            return x.reshape(*x.shape[:last], -1, part), [last + 1], [*(d for d in dims if d < last), last]
    while last - 1 in dims:
        last -= 1
    length = math.prod(x.shape[last:])
    rest = [d for d in dims if d < last]
    part = length if length <= LONGEST_ROW else next((d for d in range(LONGEST_PART, 0, -1) if length % d == 0), 1)
    if part < SHORTEST_PART or (part == length and not rest):
        return x, dims, []
    split = x.reshape(*x.shape[:last], length // part, part)
    return split, [last + 1], [*rest, last]


def average(x: Tensor, dims: list[int], keepdim: bool = True) -> Tensor:
    return aten.sum.dim_IntList(x, dims, keepdim) / math.prod(x.shape[d] for d in dims)


def _spread(apart: Tensor, rest: Tensor, dims: list[int]) -> Tensor:
    return torch.clamp(average(apart * apart, dims) - rest * rest, min=0.0)
