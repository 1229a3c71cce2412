"""Tensor maps: what a launch tells tensor copies (TMA) of an array in global memory.

The limits are those of `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col` (CUDA driver API, "Tensor Map Object
Management").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FP8 = ("f8E4M3FN", "f8E5M2")  # as MLIR calls PyTorch's float8_e4m3fn and float8_e5m2
DTYPE_BYTES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "u8": 1, "i1": 1}
DTYPE_BYTES |= dict.fromkeys(FP8, 1)
MAP_BYTES = 128  # of a CUtensorMap, which kernels take by value
MAP_ALIGNMENT = 64  # bytes, of a CUtensorMap
ADDRESS_ALIGNMENT = 16  # bytes, of the array, and of what lies between its rows
SWIZZLES = (0, 32, 64, 128)
MAX_RANK = 5
MAX_BOX = 256
MAX_PIXELS = 1024  # of an im2col copy
MAX_TRAVERSAL = 8  # stride of an im2col copy
CORNERS = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}  # by spatial dimensions: a corner is -so many to so many - 1
_MAX_EXTENT = 1 << 32
_MAX_STRIDE = 1 << 40  # bytes


@dataclass(frozen=True)
class Im2col:
    """What an im2col map says of each spatial dimension, outermost first: a filter's base positions run from `lower`
    to the last element plus `upper`, `strides` apart."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    strides: tuple[int, ...]

    def counts(self, image: Sequence[int]) -> tuple[int, ...]:
        """The base positions in an image of these extents."""
        corners = zip(image, self.lower, self.upper, self.strides, strict=True)
        return tuple(max(-(-(n + up - low) // s), 0) for n, low, up, s in corners)

    def problem(self, image: Sequence[int]) -> str:
        """Why the driver would refuse it for an image of these extents, in words; "" if it would not."""
        rank = len(image)
        if rank not in CORNERS or any(len(x) != rank for x in (self.lower, self.upper, self.strides)):
            return "im2col of an array that is not [N, 1 to 3 dimensions, C], or corners of not as many dimensions"
        most = CORNERS[rank]
        if bad := [x for x in (*self.lower, *self.upper) if not -most <= x < most]:
            return f"an im2col corner of {bad[0]}: from {-most} to {most - 1} with {rank} spatial dimensions"
        if bad := [s for s in self.strides if not 1 <= s <= MAX_TRAVERSAL]:
            return f"an im2col stride of {bad[0]}: it is 1 to {MAX_TRAVERSAL}"
        if 0 in self.counts(image):
            return f"im2col corners {list(self.lower)}, {list(self.upper)} that leave nothing of {list(image)}"
        return ""


@dataclass(frozen=True)
class TensorMapSpec:
    """A tensor map without its address: a dense array, row-major, of which one copy moves a `box`; extents outermost
    first. `swizzle`: bytes of the pattern that the box has in shared memory, 0 for none. Elements outside of the array
    are read as zeros, and not written. With `im2col` the array is [N, spatial dimensions, C], and the box pixels
    (base positions of a filter, which follow each other across rows and images) and channels."""

    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    im2col: Im2col | None = None

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.item

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from an index of each dimension to the next."""
        return tuple(math.prod(self.shape[d + 1 :]) * self.item for d in range(len(self.shape)))

    def __str__(self) -> str:
        swizzle = f", swizzle {self.swizzle}" if self.swizzle else ""
        im2col = self.im2col
        windows = f", im2col {im2col.lower} to {im2col.upper} by {im2col.strides}" if im2col else ""
        return f"{self.dtype}[{','.join(map(str, self.shape))}] by {list(self.box)}{swizzle}{windows}"

    def problem(self) -> str:
        """Why the driver would refuse the map, in words; "" if it would not."""
        if self.dtype not in DTYPE_BYTES:
            return f"elements of type {ascii(self.dtype)[:40]}: use one of {', '.join(DTYPE_BYTES)}"
        if not 1 <= len(self.shape) <= MAX_RANK:
            return f"an array of {len(self.shape)} dimensions: it has 1 to {MAX_RANK}"
        rank = len(self.shape) if self.im2col is None else 2
        if len(self.box) != rank:
            return f"a box of {len(self.box)} dimensions of an array of {len(self.shape)}: they must be {rank}"
        if any(not 1 <= n <= _MAX_EXTENT for n in self.shape):
            return f"an array of extents {list(self.shape)}: each is 1 to {_MAX_EXTENT}"
        if any(s >= _MAX_STRIDE for s in self.strides):
            return f"an array of strides {list(self.strides)}: each is below {_MAX_STRIDE} bytes"
        if self.im2col is not None and (problem := self.im2col.problem(self.shape[1:-1])):
            return problem
        if self.im2col is None and any(not 1 <= n <= MAX_BOX for n in self.box):
            return f"a box of extents {list(self.box)}: each is 1 to {MAX_BOX}"
        if self.im2col is not None and not (1 <= self.box[0] <= MAX_PIXELS and 1 <= self.box[1] <= MAX_BOX):
            return f"a box of {list(self.box)}: im2col takes 1 to {MAX_PIXELS} pixels and 1 to {MAX_BOX} channels"
        if self.swizzle not in SWIZZLES:
            return f"a swizzle of {self.swizzle} bytes: it is 0, 32, 64 or 128"
        inner = self.box[-1] * self.item
        if inner % ADDRESS_ALIGNMENT:
            return f"the innermost extent of the box has {inner} bytes: it must be a multiple of {ADDRESS_ALIGNMENT}"
        # The driver takes shorter rows, too; an H200 then ended with an illegal address.
        if self.swizzle and inner != self.swizzle:
            return f"the innermost extent of the box has {inner} bytes: with a swizzle of {self.swizzle} it has as many"
        if bad := [s for s in self.strides[:-1] if s % ADDRESS_ALIGNMENT]:
            return f"rows of {bad[-1]} bytes: they must be a multiple of {ADDRESS_ALIGNMENT}: pad them"
        return ""


def maps_from_json(record: Mapping[str, Mapping[str, Any]]) -> dict[int, TensorMapSpec]:
    """A launch's maps from what `dataclasses.asdict` and JSON have made of them: keys are text, and tuples lists."""
    return {
        int(i): TensorMapSpec(
            m["dtype"],
            tuple(m["shape"]),
            tuple(m["box"]),
            m["swizzle"],
            Im2col(*(tuple(m["im2col"][name]) for name in ("lower", "upper", "strides"))) if m["im2col"] else None,
        )
        for i, m in record.items()
    }
