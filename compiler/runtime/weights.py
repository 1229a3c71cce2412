"""Weights in safetensors files, read through a memory map.

The format: 8 bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, then the tensors' bytes
(huggingface/safetensors, README, "Format"). Read here without the package's NumPy back end, which knows no bf16.

A file that mlirc wrote has a checksum in its metadata, which come first in the header: of all bytes but its own.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.files.checksums import sum_of
from mlirc.files.marks import METADATA
from mlirc.files.opening import open_regular
from mlirc.runtime.arrays import NUMPY_DTYPES, View
from mlirc.runtime.plan import DTYPE_BYTES

_TO_FILE = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "f8E4M3FN": "F8_E4M3",
    "f8E5M2": "F8_E5M2",
    "i64": "I64",
    "i32": "I32",
    "i16": "I16",
    "i8": "I8",
    "u8": "U8",
    "i1": "BOOL",
}
_DTYPES = {v: k for k, v in _TO_FILE.items()}


_HEADER_LIMIT = 100_000_000  # as the format says
CHECKSUM = "checksum"  # its name in the metadata
_BEGIN = json.dumps({"__metadata__": {**METADATA, CHECKSUM: ""}}, separators=(",", ":")).encode()[:-3]


def checksum_place(end: int) -> range:
    """Where the checksum of a file stands whose header ends there."""
    start = 8 + len(_BEGIN)
    return range(min(start, end), min(start + 64, end))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; names that are there twice could mean either value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _tensors(header: dict) -> list[tuple[str, dict]]:
    return [(name, about) for name, about in header.items() if name != "__metadata__"]


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
    """A memory-mapped safetensors file. Tensors of types that mlirc has no name for (complex, other 8-bit floats) are
    left out of `entries`, and named in `others`. `checksum` is what the file says of itself, "" where another program
    wrote it. Raises MlircError for a file that is missing, truncated or no safetensors file.

    The file stays open: one that takes its name later changes nothing. One that is written to in place does, which is
    an MlircError from then on, told by its size and time; to read what was cut off ends the process."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.others: list[str] = []
        with open_regular(self.path) as f:
            self._descriptor = os.dup(f.fileno())
            weakref.finalize(self, os.close, self._descriptor)
            self._state = self._current_state()
            size = self._state[0]
            head = f.read(8)
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > size - 8:
                raise MlircError(f"{path}: truncated, or no safetensors file")
            if length > _HEADER_LIMIT:
                raise MlircError(f"{path}: no safetensors file: its header would have {length:,} bytes")
            try:
                header = json.loads(f.read(length), object_pairs_hook=_unique)
                self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
            except (ValueError, OSError, RecursionError) as e:
                raise MlircError(f"{path}: no safetensors file: {type(e).__name__}: {e}") from e
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._place = checksum_place(8 + length)
        begin, stated = (
            bytes(self._bytes[a:b]) for a, b in ((8, self._place.start), (self._place.start, self._place.stop))
        )
        self.checksum = stated.decode() if begin == _BEGIN and re.fullmatch(rb"[0-9a-f]{64}", stated) else ""
        try:
            self.entries = dict(self._read_entries(header, 8 + length, size))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise MlircError(f"{path}: damaged safetensors header ({type(e).__name__}: {e})") from e

    def _read_entries(self, header: dict, base: int, size: int) -> Iterator[tuple[str, Entry]]:
        """The tensors of a type that mlirc knows. All tensors lie one behind the other, and together are the file."""
        end = 0
        for name, about in sorted(_tensors(header), key=lambda item: item[1]["data_offsets"]):
            first, last = about["data_offsets"]
            shape = about["shape"]
            if type(about["dtype"]) is not str or any(type(n) is not int or n < 0 for n in (first, last, *shape)):
                raise ValueError(f"type or sizes of '{name}'")
            if base + last > size:
                raise MlircError(f"{self.path}: truncated: '{name}' ends at byte {base + last} of {size}")
            if first != end or last < first:
                raise MlircError(f"{self.path}: damaged: '{name}' does not begin where the tensor before it ends")
            end = last
            if about["dtype"] not in _DTYPES:
                self.others.append(name)
                continue
            entry = Entry(_DTYPES[about["dtype"]], tuple(shape), base + first)
            if entry.nbytes != last - first:
                raise MlircError(f"{self.path}: damaged: '{name}' has {last - first} bytes, not {entry.nbytes}")
            yield name, entry
        if base + end != size:
            raise MlircError(f"{self.path}: damaged: its tensors end at byte {base + end} of {size}")

    def _current_state(self) -> tuple[int, int]:
        about = os.fstat(self._descriptor)
        return about.st_size, about.st_mtime_ns

    def require_same(self) -> None:
        """Raises MlircError where the file has been written to since it was opened."""
        if self._current_state() != self._state:
            raise MlircError(f"{self.path}: was changed while it is loaded: load the model again")

    def verify(self) -> None:
        """Raises MlircError for a file that is not as mlirc wrote it; one of another program has nothing to be held
        against."""
        if self.checksum and sum_of(self._descriptor, self._place) != self.checksum:
            raise MlircError(f"{self.path}: damaged: its checksum does not match: compile the model again")
        self.require_same()

    def array(self, name: str) -> np.ndarray:
        """A tensor as a read-only NumPy array on the map (bf16 and 8-bit floats as ml_dtypes' types)."""
        self.require_same()
        entry = self.entries[name]
        raw = self._bytes[entry.start : entry.start + entry.nbytes]
        return raw.view(NUMPY_DTYPES[entry.dtype]).reshape(entry.shape)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def view(self, name: str) -> View:
        """A tensor as host memory."""
        self.require_same()
        entry = self.entries[name]
        pointer = self._bytes.ctypes.data + entry.start
        return View(pointer, None, entry.dtype, entry.shape, True, self, "numpy")
