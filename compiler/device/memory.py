"""Memory of the host device: buffers of bytes, gathered from and scattered to by arrays of addresses."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any

import numpy as np

from mlirc.device.numbers import UNSIGNED
from mlirc.errors import MlircError

POISON = 0xFF  # what fresh memory holds: NaN as a float of any width
_ADDRESS_BITS = 40  # of an address, its byte within a buffer; the bits above are the buffer's number
_numbers = itertools.count(1)
_buffers: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # bytes of memory
_SLACK = 64  # bytes past the end, so that any access width divides the storage


class Buffer:
    """`instances` pieces of `nbytes` bytes each (one per block for shared memory, one per thread for local memory, a
    single one for global memory), with a shadow that tells which bytes have been written."""

    def __init__(
        self,
        name: str,
        space: str,
        nbytes: int,
        instances: int = 1,
        contents: np.ndarray | None = None,
        poison: int = POISON,
        align: int | None = None,
    ):
        self.name, self.space, self.nbytes, self.instances = name, space, nbytes, instances
        self.align = 256 if align is None else align  # bytes, as declared; cuMemAlloc gives 256
        self.stride = -(-nbytes // 1024) * 1024 if instances > 1 else nbytes
        total = self.stride * instances
        total += _SLACK + (-total) % _SLACK
        if total > MACHINE // (1 if contents is not None else 2):  # a shadow is as large
            raise MlircError(f"host device: {name} takes {total:,} bytes: more memory than this machine has")
        self.data = np.full(total, poison, dtype=np.uint8)
        self.written: np.ndarray | None = None  # per byte 0xFF once written; None: all of it was, from the start
        if contents is None:
            self.written = np.zeros(total, dtype=np.uint8)
        else:
            self.data[:nbytes] = contents
        self.pending: np.ndarray | None = None  # per byte 0xFF while an asynchronous copy is on its way
        self.generic: np.ndarray | None = None  # 0xFF where a thread wrote and no proxy fence followed (global memory)
        self.reading: np.ndarray | None = None  # how many wgmmas under way read a byte
        self.tracked = space == "shared"  # whether accesses are logged for the race detector
        self.writer_block: np.ndarray | None = None  # per granule, in this launch; -1: nobody
        self.reader_block: np.ndarray | None = None  # likewise; -2: several
        self.atomic_block: np.ndarray | None = None  # likewise, of atomic accesses
        self.sectors: np.ndarray | None = None  # [2, sectors]: those read, and those written, in this launch; counted
        self.watch: tuple[int, list] | None = None  # a byte, and who wrote it: (block, thread, operation)
        self.given: Any = None  # arguments.Given of a kernel's input: nobody may write here
        self.place = 0  # in shared memory: the address of its first byte
        self.earlier = ""  # what earlier launches do to it that griddepcontrol.wait waits for: "reads", "writes", or ""
        self._views: dict = {}
        if space == "global":
            self.number = next(_numbers)
            _buffers[self.number] = self

    @property
    def address(self) -> int:
        """The address of a buffer in global memory, as an integer."""
        return self.number << _ADDRESS_BITS

    def within(self, byte: int) -> int:
        """A byte of the storage, counted in its instance: as the block or thread that it belongs to counts."""
        return byte % self.stride if self.instances > 1 else byte

    def start_launch(self) -> None:
        """Forgets which blocks wrote where: launches are ordered."""
        self.writer_block = self.reader_block = self.atomic_block = self.sectors = self.generic = None

    def words(self, plane: str, size: int) -> np.ndarray:
        """The storage ("data"), or one of its shadows, as unsigned words of 1, 2, 4 or 8 bytes; as rows of 8-byte
        words for larger multiples of 8."""
        key = (plane, size)
        found = self._views.get(key)
        if found is None:
            raw = getattr(self, plane)
            if size <= 8:
                found = raw[: len(raw) // size * size].view(UNSIGNED[size])
            else:
                found = raw[: len(raw) // size * size].view(np.uint64).reshape(-1, size // 8)
            self._views[key] = found
        return found

    def mark(self, plane: str) -> Buffer:
        """Starts to keep a shadow: `pending`, `generic` or `reading`."""
        if getattr(self, plane) is None:
            setattr(self, plane, np.zeros(len(self.data), dtype=np.uint8))
        return self


def buffer_at(address: np.ndarray) -> tuple[Buffer, np.ndarray]:
    """The buffer in global memory, the same for all threads, that addresses lie in, and their bytes within it."""
    number = int(address.flat[0]) >> _ADDRESS_BITS
    found = _buffers.get(number)
    if found is None or (address >> _ADDRESS_BITS != number).any():
        raise MlircError("host device: an integer that is no address, or that lies in another buffer in each thread")
    return found, address & ((1 << _ADDRESS_BITS) - 1)


def word_size(nbytes: int) -> bool:
    """Whether an access of so many bytes can be made as one word (or row of words)."""
    return nbytes in (1, 2, 4, 8, 16, 32)


def gather(buffer: Buffer, plane: str, address: np.ndarray, item: int, width: int, aligned: bool) -> np.ndarray:
    """Reads `width` elements of `item` bytes at each address (in elements): unsigned words with the shape of the
    address array, and a last dimension for the elements of an access."""
    nbytes = item * width
    if aligned and word_size(nbytes):
        index = address // width if width > 1 else address
        if nbytes <= 8:
            out = buffer.words(plane, nbytes).take(index, mode="clip")[..., None]
        else:
            out = buffer.words(plane, nbytes).take(index, axis=0, mode="clip")
        return out.view(UNSIGNED[item]) if width > 1 else out
    return buffer.words(plane, item).take(address[..., None] + np.arange(width), mode="clip")


def scatter(buffer: Buffer, plane: str, address: np.ndarray, values: np.ndarray, item: int, aligned: bool) -> None:
    """Writes rows of elements, `values` [n, width] as unsigned words, at `address` [n] (in elements)."""
    width = values.shape[-1]
    nbytes = item * width
    if aligned and word_size(nbytes):
        index = address // width if width > 1 else address
        if nbytes <= 8:
            buffer.words(plane, nbytes)[index] = values.view(UNSIGNED[nbytes])[:, 0]
        else:
            buffer.words(plane, nbytes)[index] = values.view(np.uint64)
        return
    buffer.words(plane, item)[address[:, None] + np.arange(width)] = values


class MemRef:
    """A memref value: a window of a buffer. `base` is its first element's number within an instance (an int, or an
    array [blocks or 1, threads or 1]); strides are in elements. `start` is the element that its aligned pointer points
    to, from which its offset counts: that of the parameter, allocation or `memref.view` that it is a window of."""

    __slots__ = ("buffer", "base", "strides", "shape", "item", "rank", "start")

    def __init__(
        self,
        buffer: Buffer,
        base,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        item: int,
        rank=None,
        start: Any = 0,
    ):
        self.buffer, self.base, self.shape, self.strides, self.item = buffer, base, shape, strides, item
        self.rank = rank  # of the block of the cluster whose shared memory it is; None: the thread's own
        self.start = start

    def offset(self, indices: list):
        """The element number of an access, within an instance: an int or an array."""
        total = self.base
        for i, s in zip(indices, self.strides, strict=True):
            if s == 1:
                total = total + i
            elif s:
                total = total + i * s
        return total


def merge_windows(c: np.ndarray, a: MemRef, b: MemRef) -> MemRef:
    """Per thread a where c, else b: windows of one form of one buffer. Raises MlircError for others."""
    if a.buffer is not b.buffer or (a.shape, a.strides, a.item) != (b.shape, b.strides, b.item):
        what = (
            " and ".join(sorted((a.buffer.name, b.buffer.name)))
            if a.buffer is not b.buffer
            else f"{a.buffer.name} in two forms"
        )
        raise MlircError(
            f"host device: some threads take a window of {what}: branch around the loads and stores, not the memrefs"
        )
    if (a.rank is None) != (b.rank is None):
        raise MlircError("host device: some threads take the shared memory of another block, and some their own")
    rank = None if a.rank is None else np.where(c, a.rank, b.rank)
    return MemRef(
        a.buffer, np.where(c, a.base, b.base), a.shape, a.strides, a.item, rank, np.where(c, a.start, b.start)
    )
