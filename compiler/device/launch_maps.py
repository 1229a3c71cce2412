"""Tensor maps that a launch makes of its buffers, as the plan says: what tensor copies do through them counts as done
to the buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from mlirc.backend.kernel import Launch
from mlirc.device.global_copies import Runs
from mlirc.device.memory import Buffer, MemRef
from mlirc.device.tensor_maps import Im2colMap, TensorMap, Writers
from mlirc.runtime.arrays import NUMPY_DTYPES
from mlirc.runtime.tensor_map import TensorMapSpec


@dataclass(kw_only=True)
class OfBuffer:
    """A tensor map of a buffer's bytes from `first` on, of which its `array` is a view."""

    buffer: Buffer
    first: int

    def runs(self, at: tuple) -> Runs:
        """The bytes of what a copy concerns (an index of the array), in order, as runs that are as long as can be."""
        raise NotImplementedError

    def shadow(self, start: Sequence[int], undefined: np.ndarray | None, offsets: Sequence[int]) -> np.ndarray | None:
        """The shadow of a whole box at `start` from that of the bytes in the array (`Machine.fetched`): the zeros
        around them are defined."""
        raise NotImplementedError


@dataclass(kw_only=True)
class BufferMap(TensorMap, OfBuffer):
    """Of copies in tiles."""

    def runs(self, at: tuple) -> Runs:
        shape, item = self.array.shape, self.array.itemsize
        strides = [math.prod(shape[d + 1 :]) * item for d in range(len(shape))]
        counts = [s.stop - s.start for s in at]
        if not all(counts):
            return Runs(self.buffer, np.zeros(0, np.int64), 0)
        inner = len(shape) - 1
        while inner and counts[inner] == shape[inner]:
            inner -= 1
        first = np.array([self.first + at[inner].start * strides[inner]])
        for d in reversed(range(inner)):
            first = (np.arange(at[d].start, at[d].stop)[:, None] * strides[d] + first.reshape(1, -1)).ravel()
        first = first + sum(at[d].start * strides[d] for d in range(inner + 1, len(shape)))
        return Runs(self.buffer, first, counts[inner] * strides[inner])

    def shadow(self, start: Sequence[int], undefined: np.ndarray | None, offsets: Sequence[int]) -> np.ndarray | None:
        if undefined is None:
            return None
        out = np.full((*self.box, self.array.itemsize), 0xFF, np.uint8)
        to, _ = self._overlap(start)
        out[to] = undefined.reshape(out[to].shape)
        return out.reshape(-1)


@dataclass(kw_only=True)
class BufferIm2col(Im2colMap, OfBuffer):
    """Of im2col copies: a run of channels for each pixel that lies in the image."""

    def runs(self, at: tuple) -> Runs:
        shape, item = self.array.shape, self.array.itemsize
        cells = self.first + np.ravel_multi_index(at, shape) * item
        channels = len(np.unique(at[-1]))  # the same of each pixel
        return Runs(self.buffer, cells[:: max(channels, 1)], channels * item)

    def shadow(self, start: Sequence[int], undefined: np.ndarray | None, offsets: Sequence[int]) -> np.ndarray | None:
        if undefined is None:
            return None
        out = np.full((self.pixels, self.channels, self.array.itemsize), 0xFF, np.uint8)
        _, inside = self._positions(start, offsets)
        out[inside] = undefined.reshape(-1, self.array.itemsize)
        return out.reshape(-1)


AnyBufferMap: TypeAlias = BufferMap | BufferIm2col


def granule_of(spec: TensorMapSpec) -> int:
    """Bytes that divide the rows of a map's array and of its boxes: copies at multiples of them begin and end there."""
    return math.gcd(16, spec.shape[-1] * spec.item)


def launch_maps(launch: Launch, buffers: Sequence[Buffer]) -> Mapping[int, AnyBufferMap]:
    """The tensor maps of a launch, by parameter."""
    writers: dict[tuple, Writers] = {}  # of the same array, by several maps
    made: dict[int, AnyBufferMap] = {}
    for p, spec in launch.maps.items():
        buffer, first = buffers[launch.args[p]], launch.offsets[p]
        dtype = NUMPY_DTYPES["u8" if spec.dtype == "i1" else spec.dtype]
        array = buffer.data[first : first + spec.nbytes].view(dtype).reshape(spec.shape)
        known = writers.setdefault((launch.args[p], first, spec.shape), Writers())
        im2col, swizzle, box = spec.im2col, spec.swizzle, spec.box
        if im2col is None:
            made[p] = BufferMap(array=array, box=box, swizzle=swizzle, writers=known, buffer=buffer, first=first)
        else:
            made[p] = BufferIm2col(
                array=array, lower=im2col.lower, upper=im2col.upper, strides=im2col.strides, pixels=box[0],
                channels=box[1], swizzle=swizzle, writers=known, buffer=buffer, first=first,
            )  # fmt: skip
    return made


def pointer_table(launch: Launch, parameter: int, buffers: Sequence[Buffer]) -> MemRef:
    """A table of pointers of a launch, as the address of its first one."""
    places = [(launch.args[parameter], launch.offsets[parameter]), *launch.tables[parameter]]
    addresses = np.array([buffers[number].address + offset for number, offset in places], np.int64)
    table = Buffer(f"the table of argument {parameter}", "global", addresses.nbytes, contents=addresses.view(np.uint8))
    return MemRef(table, 0, (), (), 1)
