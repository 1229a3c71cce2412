"""Tensor maps: what a tensor copy (TMA) moves, and how it lies in shared memory.

Limits are cuTensorMapEncodeTiled's (CUDA driver API, "Tensor Map Object Management"); layouts follow the PTX ISA,
"Tensor copies: swizzling modes"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.device.report import Report
from mlirc.mlir import ir

ALIGN = 64  # bytes, of a CUtensorMap
_SWIZZLE_BITS = {128: 7, 64: 3, 32: 1}  # bytes of the pattern's rows -> which 16-byte chunks are exchanged


@dataclass
class TensorMap:
    """What cuTensorMapEncodeTiled makes: a global array, the box that one copy moves (innermost dimension last, as in
    the array), and the swizzle in bytes (0: none). Elements outside the array are zeros. Raises MlircError for one that
    the driver refuses."""

    array: np.ndarray
    box: tuple[int, ...]
    swizzle: int = 0

    def __post_init__(self) -> None:
        a, inner = self.array, self.box[-1] * self.array.itemsize if self.box else 0
        if not 1 <= a.ndim <= 5 or len(self.box) != a.ndim:
            raise MlircError(f"tensor map: a box {self.box} of an array {a.shape}: 1 to 5 dimensions, the same of both")
        if any(not 1 <= n <= 256 for n in self.box):
            raise MlircError(f"tensor map: a box {self.box}: every extent must be 1 to 256: cut it")
        if inner % 16:
            raise MlircError(f"tensor map: the rows of a box have {inner} bytes: make them a multiple of 16")
        if a.strides[-1] != a.itemsize or any(s % 16 for s in a.strides[:-1]):
            raise MlircError(f"tensor map: strides of {a.strides} bytes: the last dimension must be dense, the others "
                             "multiples of 16: pad the array's rows")  # fmt: skip
        if self.swizzle not in (0, 32, 64, 128) or 0 < self.swizzle < inner:
            raise MlircError(f"tensor map: rows of {inner} bytes with a swizzle of {self.swizzle}: it is 32, 64 or 128 "
                             "bytes, and rows are no longer than it")  # fmt: skip

    @property
    def shared_align(self) -> int:
        """The alignment, in bytes, of shared memory that a copy takes: with a swizzle the one at which its pattern
        repeats, without which nobody knows where elements go."""
        return max(128, 8 * self.swizzle)


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
    if "nvvm.grid_constant" not in attributes:
        message = f"argument {number}, a tensor map, is no nvvm.grid_constant: tensor copies get the address of a copy"
        report.add("bad tensor map", message, function, name)


def box_of(source: TensorMap, start: list[int]) -> np.ndarray:
    """The elements of a box, zeros outside the array."""
    out = np.zeros(source.box, dtype=source.array.dtype)
    to, at = overlap(source, start)
    out[to] = source.array[at]
    return out


def overlap(source: TensorMap, start: list[int]) -> tuple[tuple, tuple]:
    """Where a box and the array overlap: slices of the box, and of the array."""
    to, at = [], []
    for o, n, extent in zip(start, source.box, source.array.shape, strict=True):
        low, high = max(o, 0), min(o + n, extent)
        to.append(slice(low - o, max(high, low) - o))
        at.append(slice(low, max(high, low)))
    return tuple(to), tuple(at)
