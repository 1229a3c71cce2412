"""Decompositions of `grid_sample`, in two and three dimensions.

An element outside of the input is never multiplied: infinities and NaNs reach only samples that they have a part in,
as on PyTorch's CPU. For coordinates that are NaN or infinite it has two rules, which are kept apart by `rank`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mlirc.frontend.resize_taps import cubic_far, cubic_near

aten = torch.ops.aten
Tensor = torch.Tensor

GRIDS: dict[Any, Callable] = {}
_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


@dataclass(frozen=True)
class _Axis:
    """A dimension of the input, of `rank` that are sampled, and what is outside of it."""

    size: int
    rank: int
    padding: int
    align: bool

    def unnormalized(self, place: Tensor) -> Tensor:
        """From -1 to 1 over the input to elements."""
        if self.align:
            return (place + 1) * ((self.size - 1) / 2)
        return (place + 1) * (self.size / 2) - 0.5

    def padded(self, place: Tensor) -> Tensor:
        """Places inside, for those outside; with zeros they stay."""
        if self.padding == _ZEROS:
            return place
        last = self.size - 1
        if self.padding == _REFLECTION:
            place = self._reflected(place)
        if self.rank == 2:
            return torch.where(place > 0, place, 0).clamp(max=last)  # NaN is the first
        return torch.where(place < last, place, last).clamp(min=0)  # NaN is the last

    def _reflected(self, place: Tensor) -> Tensor:
        low, period = (0.0, 2.0 * (self.size - 1)) if self.align else (-0.5, 2.0 * self.size)
        if not period:
            return torch.zeros_like(place)
        beyond = (place - low).abs()
        beyond = beyond - torch.trunc(beyond / period) * period
        return torch.minimum(beyond, period - beyond) + low

    def read(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of whole places, and which of these are inside."""
        inside = (place > -1) & (place < self.size)
        return torch.where(inside, place, 0).to(torch.int64), inside


def _elements(x: Tensor, reads: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """x [N,C,...] at indices [N,...] of each dimension after C, and whether they are inside."""
    ones = [1] * (reads[0][0].dim() - 1)
    batch = torch.arange(x.shape[0], device=x.device).reshape(-1, 1, *ones)
    channel = torch.arange(x.shape[1], device=x.device).reshape(-1, *ones)
    found = aten.index.Tensor(x, [batch, channel, *(index.unsqueeze(1) for index, _ in reads)])
    inside = reads[0][1]
    for _, more in reads[1:]:
        inside = inside & more
    return found, inside.unsqueeze(1)


def _linear(x: Tensor, axes: list[_Axis], places: list[Tensor]) -> Tensor:
    """The weighted sum of the 2^rank elements around each place."""
    corners = []
    for axis, place in zip(axes, places, strict=True):
        first = torch.floor(place)
        beyond = place - first
        corners.append([(axis.read(first), 1 - beyond), (axis.read(first + 1), beyond)])
    total = None
    for corner in itertools.product(*corners):
        found, inside = _elements(x, [read for read, _ in corner])
        weight = corner[0][1]
        for _, more in corner[1:]:
            weight = weight * more
        found, weight = found.to(weight.dtype), weight.unsqueeze(1)
        if len(axes) == 2:  # a weight that is NaN makes NaN of nothing, too
            term = torch.where(inside, found, 0) * weight
        else:
            term = torch.where(inside, found * weight, 0)
        total = term if total is None else total + term
    assert total is not None
    return total


def _nearest(x: Tensor, axes: list[_Axis], places: list[Tensor]) -> Tensor:
    found, inside = _elements(x, [a.read(torch.round(p)) for a, p in zip(axes, places, strict=True)])
    return torch.where(inside, found, 0)


def _cubic(x: Tensor, axes: list[_Axis], places: list[Tensor]) -> Tensor:
    """The weighted sum of four rows of four elements around each place, each of which is padded by itself."""
    reads, weights = [], []
    for dim, (axis, place) in enumerate(zip(axes, places, strict=True)):
        shape = [4, 1, 1, 1] if dim == 0 else [4, 1, 1]
        place = place.reshape([place.shape[0], 1, 1, *place.shape[1:]])
        taps = torch.arange(-1, 3, device=x.device).to(place.dtype).reshape(shape)
        first = torch.floor(place)
        away, far = (place - first - taps).abs(), torch.tensor([True, False, False, True], device=x.device)
        weights.append(torch.where(far.reshape(shape), cubic_far(away, -0.75), cubic_near(away, -0.75)))
        reads.append(axis.read(axis.padded(first + taps)))
    found, inside = _elements(x, reads)
    found = torch.where(inside, found.to(places[0].dtype), 0)
    return aten.sum.dim_IntList(found * (weights[0] * weights[1]).unsqueeze(1), [2, 3])


def _grid_sample(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """x [N,C,H,W] or [N,C,D,H,W] at places [N,...,2 or 3] from -1 to 1, the last dimension's first."""
    rank = grid.shape[-1]
    if not x.is_floating_point() or x.dtype != grid.dtype:
        raise ValueError(f"grid_sample takes floats of one dtype, not {x.dtype} at places of {grid.dtype}")
    wide = grid.float() if grid.element_size() == 2 else grid
    axes = [_Axis(n, rank, padding, align) for n in x.shape[2:]]
    places = [a.unnormalized(wide.select(-1, rank - 1 - i)) for i, a in enumerate(axes)]
    if mode == _BICUBIC:
        return _cubic(x, axes, places).to(x.dtype)
    places = [a.padded(p) for a, p in zip(axes, places, strict=True)]
    return (_nearest if mode == _NEAREST else _linear)(x, axes, places).to(x.dtype)


GRIDS[aten.grid_sampler_2d.default] = _grid_sample
GRIDS[aten.grid_sampler_3d.default] = _grid_sample
