"""Tensor maps: what a launch tells tensor copies (TMA) of an array in global memory.

The limits are those of `cuTensorMapEncodeTiled` (CUDA driver API, "Tensor Map Object Management").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
_MAX_EXTENT = 1 << 32
_MAX_STRIDE = 1 << 40  # bytes


@dataclass(frozen=True)
class TensorMapSpec:
    """A tensor map without its address: a dense array, row-major, of which one copy moves a `box`; extents outermost
    first. `swizzle`: bytes of the pattern that the box has in shared memory, 0 for none. Elements outside of the array
    are read as zeros, and not written."""

    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

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
        return f"{self.dtype}[{','.join(map(str, self.shape))}] by {list(self.box)}{swizzle}"

    def problem(self) -> str:
        """Why the driver would refuse the map, in words; "" if it would not."""
        if self.dtype not in DTYPE_BYTES:
            return f"elements of type {ascii(self.dtype)[:40]}: use one of {', '.join(DTYPE_BYTES)}"
        if not 1 <= len(self.shape) <= MAX_RANK:
            return f"an array of {len(self.shape)} dimensions: it has 1 to {MAX_RANK}"
        if len(self.box) != len(self.shape):
            return f"a box of {len(self.box)} dimensions of an array of {len(self.shape)}: they must be as many"
        if any(not 1 <= n <= _MAX_EXTENT for n in self.shape):
            return f"an array of extents {list(self.shape)}: each is 1 to {_MAX_EXTENT}"
        if any(s >= _MAX_STRIDE for s in self.strides):
            return f"an array of strides {list(self.strides)}: each is below {_MAX_STRIDE} bytes"
        if any(not 1 <= n <= MAX_BOX for n in self.box):
            return f"a box of extents {list(self.box)}: each is 1 to {MAX_BOX}"
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
        int(i): TensorMapSpec(m["dtype"], tuple(m["shape"]), tuple(m["box"]), m["swizzle"]) for i, m in record.items()
    }
