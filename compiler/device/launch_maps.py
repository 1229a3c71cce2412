"""Tensor maps that a launch makes of its buffers, as the plan says: what tensor copies do through them counts as done
to the buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlirc.backend.kernel import Launch
from mlirc.device.global_copies import Runs
from mlirc.device.memory import Buffer, MemRef
from mlirc.device.tensor_maps import TensorMap, Writers
from mlirc.runtime.arrays import NUMPY_DTYPES
from mlirc.runtime.tensor_map import TensorMapSpec


@dataclass
class BufferMap(TensorMap):
    """A tensor map of a buffer's bytes from `first` on, of which `array` is a view."""

    buffer: Buffer | None = None
    first: int = 0

    def runs(self, at: tuple) -> Runs:
        """The bytes of what a copy concerns (slices of the array), in order, as runs that are as long as can be."""
        assert self.buffer is not None
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

    def shadow(self, start: Sequence[int], undefined: np.ndarray | None) -> np.ndarray | None:
        """The shadow of a whole box at `start` from that of the bytes in the array (`Machine.fetched`): the zeros
        around them are defined."""
        if undefined is None:
            return None
        out = np.full((*self.box, self.array.itemsize), 0xFF, np.uint8)
        to, _ = self._overlap(start)
        out[to] = undefined.reshape(out[to].shape)
        return out.reshape(-1)


def granule_of(spec: TensorMapSpec) -> int:
    """Bytes that divide the rows of a map's array and of its boxes: copies at multiples of them begin and end there."""
    return math.gcd(16, spec.shape[-1] * spec.item)


def launch_maps(launch: Launch, buffers: Sequence[Buffer]) -> Mapping[int, BufferMap]:
    """The tensor maps of a launch, by parameter."""
    writers: dict[tuple, Writers] = {}  # of the same array, by several maps
    made = {}
    for p, spec in launch.maps.items():
        buffer, first = buffers[launch.args[p]], launch.offsets[p]
        dtype = NUMPY_DTYPES["u8" if spec.dtype == "i1" else spec.dtype]
        array = buffer.data[first : first + spec.nbytes].view(dtype).reshape(spec.shape)
        known = writers.setdefault((launch.args[p], first, spec.shape), Writers())
        made[p] = BufferMap(array, spec.box, spec.swizzle, known, buffer, first)
    return made


def pointer_table(launch: Launch, parameter: int, buffers: Sequence[Buffer]) -> MemRef:
    """A table of pointers of a launch, as the address of its first one."""
    places = [(launch.args[parameter], launch.offsets[parameter]), *launch.tables[parameter]]
    addresses = np.array([buffers[number].address + offset for number, offset in places], np.int64)
    table = Buffer(f"the table of argument {parameter}", "global", addresses.nbytes, contents=addresses.view(np.uint8))
    return MemRef(table, 0, (), (), 1)
