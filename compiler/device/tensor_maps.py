"""Tensor maps: what a tensor copy (TMA) moves, and how it lies in shared memory.

Limits are those of cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col (CUDA driver API, "Tensor Map Object
Management"); layouts follow the PTX ISA, "Tensor copies: swizzling modes"."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from mlirc.device.order.tensor_order import TensorOrder
from mlirc.device.report import Report
from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.runtime.tensor_map import Im2col

ALIGN = 64  # bytes, of a CUtensorMap
_SWIZZLE_BITS = {128: 7, 64: 3, 32: 1}  # bytes of the pattern's rows -> which 16-byte chunks are exchanged


class Writers:
    """Which block has last written each element of an array by tensor copies, in one launch."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Starts anew, as another run of the launch does."""
        self.order: TensorOrder | None = None  # within a block or cluster
        self.last: np.ndarray | None = None  # -1: none; 2 * block, and 1 more for a reduction

    def within(self, shape: tuple[int, ...]) -> TensorOrder:
        """The order of the copies within a block or cluster."""
        if self.order is None:
            self.order = TensorOrder(shape)
        return self.order

    def clash(self, shape: tuple[int, ...], at: Any, block: int, kind: str) -> int | None:
        """Notes a copy's elements (an index of the array) by `kind`: read, write or reduce. Returns another block that
        writes one of them in an order that nobody knows, if there is one."""
        if self.last is None:
            if kind == "read":
                return None
            self.last = np.full(shape, -1, np.int64)
        last = self.last[at]
        bad = (last >= 0) & (last // 2 != block)
        if kind == "reduce":  # in any order
            bad &= last % 2 == 0
        if kind != "read":
            self.last[at] = 2 * block + (kind == "reduce")
        return int(last[bad].flat[0]) // 2 if bad.any() else None


Combine: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]
REDUCTIONS: dict[str, Combine] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "inc": lambda old, top: np.where(old >= top, 0, old + 1).astype(old.dtype),
    "dec": lambda old, top: np.where((old == 0) | (old > top), top, old - 1).astype(old.dtype),
}  # fmt: skip


@dataclass
class TensorMap:
    """What cuTensorMapEncodeTiled makes: a global array, the box that one copy moves (innermost dimension last, as in
    the array), and the swizzle in bytes (0: none). Elements outside the array are zeros. Raises MlircError for one that
    the driver refuses."""

    array: np.ndarray
    box: tuple[int, ...]
    swizzle: int = 0
    writers: Writers = field(default_factory=Writers, repr=False)
    mode = "tile"

    def __post_init__(self) -> None:
        a = self.array
        if not 1 <= a.ndim <= 5 or len(self.box) != a.ndim:
            raise MlircError(f"tensor map: a box {self.box} of an array {a.shape}: 1 to 5 dimensions, the same of both")
        if any(not 1 <= n <= 256 for n in self.box):
            raise MlircError(f"tensor map: a box {self.box}: every extent must be 1 to 256: cut it")
        _check_layout(a, self.box[-1] * a.itemsize, self.swizzle)

    @property
    def shared_align(self) -> int:
        """The alignment, in bytes, of shared memory that a copy takes; see `shared_align`."""
        return shared_align(self.swizzle)

    @property
    def nbytes(self) -> int:
        """What a copy moves."""
        return math.prod(self.box) * self.array.itemsize

    def place(self, start: Sequence[int], offsets: Sequence[int] = ()) -> tuple:
        """What of the array a copy concerns, as an index of it."""
        return self._overlap(start)[1]

    def read(self, start: Sequence[int], offsets: Sequence[int] = ()) -> np.ndarray:
        """The elements of the box at `start` (outermost dimension first), zeros outside the array."""
        out = np.zeros(self.box, dtype=self.array.dtype)
        to, at = self._overlap(start)
        out[to] = self.array[at]
        return out

    def write(self, start: Sequence[int], raw: np.ndarray, combine: Combine | None = None) -> None:
        """Writes the part of a box (its bytes) that lies inside the array, combined with what is there if asked for."""
        to, at = self._overlap(start)
        new = raw.view(self.array.dtype).reshape(self.box)[to]
        self.array[at] = new if combine is None else combine(self.array[at], new)

    def _overlap(self, start: Sequence[int]) -> tuple[tuple, tuple]:
        """Where the box and the array overlap: slices of the box, and of the array."""
        to, at = [], []
        for o, n, extent in zip(start, self.box, self.array.shape, strict=True):
            low, high = max(o, 0), min(o + n, extent)
            to.append(slice(low - o, max(high, low) - o))
            at.append(slice(low, max(high, low)))
        return tuple(to), tuple(at)


@dataclass
class Im2colMap:
    """What cuTensorMapEncodeIm2col makes: an array [N, ..., W, C], of which a copy takes `pixels` positions of
    `channels` elements each. Positions run through the image between two corners, W fastest: from `lower` to the last
    element plus `upper`, per spatial dimension, outermost first, `strides` apart (none: 1). A copy adds its offsets to
    each position. (PTX ISA, "im2col mode".)"""

    array: np.ndarray
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    pixels: int
    channels: int
    swizzle: int = 0
    writers: Writers = field(default_factory=Writers, repr=False)
    strides: tuple[int, ...] = ()
    mode = "im2col"

    def __post_init__(self) -> None:
        self.strides = self.strides or (1,) * len(self.lower)
        self.corners = Im2col(self.lower, self.upper, self.strides)
        if problem := self.corners.problem(self.array.shape[1:-1]):
            raise MlircError(f"tensor map: {problem}")
        if not 1 <= self.channels <= 256 or not 1 <= self.pixels <= 1024:
            raise MlircError("tensor map: im2col takes 1 to 256 channels and 1 to 1024 pixels")
        _check_layout(self.array, self.channels * self.array.itemsize, self.swizzle)

    @property
    def shared_align(self) -> int:
        """The alignment, in bytes, of shared memory that a copy takes; see `shared_align`."""
        return shared_align(self.swizzle)

    @property
    def nbytes(self) -> int:
        """What a copy moves."""
        return self.pixels * self.channels * self.array.itemsize

    def place(self, start: Sequence[int], offsets: Sequence[int] = ()) -> tuple:
        """What of the array a copy concerns, as an index of it."""
        return self._positions(start, offsets)[0]

    def read(self, start: Sequence[int], offsets: Sequence[int] = ()) -> np.ndarray:
        """The elements [pixels, channels] from the position `start` (as in the array) on, zeros outside the array."""
        out = np.zeros((self.pixels, self.channels), dtype=self.array.dtype)
        where, inside = self._positions(start, offsets)
        out[inside] = self.array[where]
        return out

    def write(self, start: Sequence[int], raw: np.ndarray, combine: Combine | None = None) -> None:
        """Writes [pixels, channels] (their bytes); see `TensorMap.write`."""
        where, inside = self._positions(start, ())
        new = raw.view(self.array.dtype).reshape(self.pixels, self.channels)[inside]
        self.array[where] = new if combine is None else combine(self.array[where], new)

    def _positions(self, start: Sequence[int], offsets: Sequence[int]) -> tuple[tuple, np.ndarray]:
        """Where the elements lie in the array [those inside], and which are inside [pixels, channels]."""
        images, *image, channels = self.array.shape
        low, steps = np.array(self.lower), np.array(self.strides)
        counts = self.corners.counts(image)
        begin, between = np.divmod(np.array(start[1:-1]) - low, steps)
        if between.any():
            raise MlircError(
                f"tensor map: im2col from {tuple(start)}: that is no multiple of {self.strides} from {self.lower}"
            )
        number = start[0]
        for x, n in zip(begin, counts, strict=True):
            number = number * n + int(x)
        at = number + np.arange(self.pixels)
        columns: list[np.ndarray] = []
        for d in reversed(range(len(counts))):
            shift = low[d] + (offsets[d] if offsets else 0)
            columns.append(at % counts[d] * steps[d] + shift)
            at = at // counts[d]
        columns.append(at)
        columns.reverse()
        place = [c[:, None] for c in columns] + [start[-1] + np.arange(self.channels)[None, :]]
        inside = np.ones((self.pixels, self.channels), bool)
        for x, extent in zip(place, (images, *image, channels), strict=True):
            inside &= (x >= 0) & (x < extent)
        return tuple(np.broadcast_to(x, inside.shape)[inside] for x in place), inside


AnyMap: TypeAlias = TensorMap | Im2colMap


def shared_align(swizzle: int) -> int:
    """The alignment, in bytes, of shared memory under a swizzle: where its pattern repeats, without which nobody knows
    where elements go; 128 for tensor copies without one."""
    return max(128, 8 * swizzle)


def _check_layout(a: np.ndarray, inner: int, swizzle: int) -> None:
    """What both kinds of maps ask of the array, of the bytes of a row that a copy moves, and of the swizzle."""
    if inner % 16:
        raise MlircError(f"tensor map: the rows of a box have {inner} bytes: make them a multiple of 16")
    if a.strides[-1] != a.itemsize or any(s % 16 for s in a.strides[:-1]):
        raise MlircError(f"tensor map: strides of {a.strides} bytes: the last dimension must be dense, the others "
                         "multiples of 16: pad the array's rows")  # fmt: skip
    if swizzle not in (0, 32, 64, 128) or 0 < swizzle < inner:
        raise MlircError(f"tensor map: rows of {inner} bytes with a swizzle of {swizzle}: it is 32, 64 or 128 bytes, "
                         "and rows are no longer than it")  # fmt: skip


def swizzled(byte: np.ndarray, swizzle: int) -> np.ndarray:
    """Shared memory addresses under a swizzling mode: bits 4.. are exchanged with bits 7.. of the address."""
    if not swizzle:
        return byte
    return byte ^ ((byte >> 7 & _SWIZZLE_BITS[swizzle]) << 4)


def check_parameter(function: ir.Operation, number: int, name: str, report: Report) -> None:
    """Reports a kernel's parameter that holds a tensor map by value, and not as tensor copies can read it."""
    listed = function.attributes
    attributes = ir.DictAttr(ir.ArrayAttr(listed["arg_attrs"])[number]) if "arg_attrs" in listed else {}
    if "llvm.byval" not in attributes:
        return
    align = ir.IntegerAttr(attributes["llvm.align"]).value if "llvm.align" in attributes else 1
    if align < ALIGN:
        message = f"argument {number}, a tensor map, is declared with an alignment of {align} bytes, not {ALIGN}"
        report.add("misaligned", message, function, name)
    if "nvvm.grid_constant" not in attributes and function.name != "gpu.func":  # there the back end adds it
        message = f"argument {number}, a tensor map, is no nvvm.grid_constant: tensor copies get the address of a copy"
        report.add("bad tensor map", message, function, name)
