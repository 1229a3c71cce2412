"""Tensors at the bound of a model's sizes: arrays put into their place there, and results cut to their size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlirc.runtime.sizes import Dims


def shape_of(dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor of these sizes."""
    return tuple(math.prod(factor.count(sizes) for factor in factors) for factors in dims)


def _inside(room: np.ndarray, dims: Dims, sizes: Mapping[str, int]) -> np.ndarray:
    """The part of a dense array at the bound that is inside of the sizes, a dimension for every factor."""
    seen = room.reshape([factor.bound for factors in dims for factor in factors])
    return seen[tuple(slice(factor.count(sizes)) for factors in dims for factor in factors)]


def put(array: np.ndarray, room: np.ndarray, dims: Dims, sizes: Mapping[str, int]) -> None:
    """Writes an array into a dense one at the bound, and leaves what lies around it as it is."""
    inside = _inside(room, dims, sizes)
    inside[...] = array.reshape(inside.shape)


def cut(room: np.ndarray, dims: Dims | None, sizes: Mapping[str, int]) -> np.ndarray:
    """The part of a result at the bound that is inside of the sizes, as a dense array of its own; one of static shape,
    which has no `dims`, as it is."""
    if not dims:
        return room
    inside = _inside(room, dims, sizes)
    # A prefix that lies in one piece is copied, too: its strides would be those of the bound where a size is 1.
    dense = inside if inside.size == room.size else inside.copy(order="C")
    return dense.reshape(shape_of(dims, sizes))


@dataclass(frozen=True)
class Rows:
    """`count` rows of `width` bytes: dense from `inner` on in the tensor, and `pitch` bytes apart from `outer` on at
    the bound."""

    inner: int
    outer: int
    width: int
    count: int
    pitch: int


def rows_of(dims: Dims, sizes: Mapping[str, int], item: int) -> Iterator[Rows]:
    """The copies between a dense tensor of these sizes and its place at the bound, `item` bytes to an element."""
    pairs = [(factor.count(sizes), factor.bound) for factors in dims for factor in factors]
    if any(not count for count, _ in pairs):
        return
    width = item
    while pairs:  # what is whole, and the first that is not, lies in one piece
        count, bound = pairs.pop()
        width *= count
        if count != bound:
            break
    pitch = item * math.prod(factor.bound for factors in dims for factor in factors)
    for _, bound in pairs:
        pitch //= bound
    rows = 1
    while pairs:
        count, bound = pairs.pop()
        rows *= count
        if count != bound:
            break
    strides = _strides([count for count, _ in pairs]), _strides([bound for _, bound in pairs])
    block = item * math.prod(factor.bound for factors in dims for factor in factors)
    block //= math.prod(bound for _, bound in pairs)
    for place in np.ndindex(*[count for count, _ in pairs]):
        inner = sum(i * s for i, s in zip(place, strides[0], strict=True)) * rows * width
        yield Rows(inner, sum(i * s for i, s in zip(place, strides[1], strict=True)) * block, width, rows, pitch)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]
