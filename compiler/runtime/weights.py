"""Weights in safetensors files, read through a memory map.

The format: 8 bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, then the tensors' bytes
(huggingface/safetensors, README, "Format"). Read here without the package's NumPy back end, which knows no bf16.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlirc.errors import MlircError
from mlirc.runtime.arrays import NUMPY_DTYPES, View
from mlirc.runtime.plan import DTYPE_BYTES

_TO_FILE = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "i64": "I64",
    "i32": "I32",
    "i8": "I8",
    "i1": "BOOL",
}
_DTYPES = {v: k for k, v in _TO_FILE.items()} | {"U8": "i8"}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its bytes are `[start, start + nbytes)` of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


class WeightFile:
    """A memory-mapped safetensors file. Tensors of types that mlirc has no name for (fp8, complex) are left out of
    `entries`. Raises MlircError for a file that is missing, truncated or no safetensors file."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        try:
            with self.path.open("rb") as f:
                size = os.fstat(f.fileno()).st_size
                head = f.read(8)
                length = int.from_bytes(head, "little")
                if len(head) < 8 or length > size - 8:
                    raise MlircError(f"{path}: truncated, or no safetensors file")
                header = json.loads(f.read(length))
                self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise MlircError(f"{path}: cannot read the weights: {e.strerror}") from e
        except ValueError as e:
            raise MlircError(f"{path}: no safetensors file: {e}") from e
        self._bytes = np.frombuffer(self._map, np.uint8)
        try:
            self.entries = dict(self._read_entries(header, 8 + length, size))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise MlircError(f"{path}: damaged safetensors header ({type(e).__name__}: {e})") from e

    def _read_entries(self, header: dict, base: int, size: int) -> Iterator[tuple[str, Entry]]:
        for name, about in header.items():
            if name == "__metadata__" or about["dtype"] not in _DTYPES:
                continue
            start, end = map(int, about["data_offsets"])
            entry = Entry(_DTYPES[about["dtype"]], tuple(map(int, about["shape"])), base + start)
            if start < 0 or base + end > size:
                raise MlircError(f"{self.path}: truncated: '{name}' ends at byte {base + end} of {size}")
            if entry.nbytes != end - start:
                raise MlircError(f"{self.path}: damaged: '{name}' has {end - start} bytes, not {entry.nbytes}")
            yield name, entry

    def array(self, name: str) -> np.ndarray:
        """A tensor as a read-only NumPy array on the map (bf16 as ml_dtypes.bfloat16)."""
        entry = self.entries[name]
        raw = self._bytes[entry.start : entry.start + entry.nbytes]
        return raw.view(NUMPY_DTYPES[entry.dtype]).reshape(entry.shape)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def view(self, name: str) -> View:
        """A tensor as host memory."""
        entry = self.entries[name]
        pointer = self._bytes.ctypes.data + entry.start
        return View(pointer, None, entry.dtype, entry.shape, True, self, "numpy")
