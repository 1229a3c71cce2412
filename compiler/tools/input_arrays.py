"""`.npy` and `.npz` files given as inputs, whose headers are judged before memory is taken for their data."""

from __future__ import annotations

import contextlib
import math
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mlirc.errors import MlircError
from mlirc.files.opening import open_regular, shorten
from mlirc.runtime.plan import TensorSpec
from mlirc.runtime.scalars import scalar_array

_LIMIT = 64 << 30  # bytes of an array in an archive, where it may be compressed; no input is larger


def read_arrays(path: Path, option: str = "--input") -> np.ndarray | dict[str, np.ndarray]:
    """The array of an .npy file, or those of an .npz file by name; raises MlircError for anything else.

    An array is read only when the file holds all of its bytes: a header alone could ask for any amount of memory.
    """
    with open_regular(path, option) as file:
        try:
            start = file.read(6)
            file.seek(0)
            if not start.startswith(b"PK"):
                return _read(file, path.stat().st_size, str(path))
            with zipfile.ZipFile(file) as archive:
                return {
                    info.filename.removesuffix(".npy"): _read_member(archive, info, f"{path}: {info.filename}")
                    for info in archive.infolist()
                }
        except MlircError:
            raise
        except Exception as e:  # a damaged header is evaluated as Python's literals, which fail in many ways
            raise MlircError(
                f"{path}: no .npy or .npz file ({type(e).__name__}: {shorten(' '.join(str(e).split()))})"
            ) from e


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, shown: str) -> np.ndarray:
    with archive.open(info) as member:
        return _read(member, info.file_size, shown)


def _read(file: Any, size: int, shown: str) -> np.ndarray:
    """Reads one array from a file of `size` bytes."""
    shape, dtype = _header(file)
    count = math.prod(shape)
    if dtype.hasobject:
        raise MlircError(f"{shown}: holds Python objects, which are never loaded: save an array of numbers")
    if file.tell() + count * dtype.itemsize > size or count * dtype.itemsize > _LIMIT:
        claimed = f"{count * dtype.itemsize:,} bytes of {dtype}{list(shape)}"
        raise MlircError(f"{shown}: truncated or damaged: its header says {claimed}, the file has {size:,} bytes")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version in ((2, 0), (3, 0)):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"unknown version {version}")
    if any(n < 0 for n in shape):
        raise ValueError(f"sizes {shape}")
    return shape, dtype


def given_number(text: str, spec: TensorSpec | None) -> np.ndarray | None:
    """The number that a text is, for an input that is one; None for what is a file's name, or another input's. Raises
    MlircError for a number that the input's dtype does not hold."""
    if spec is None or spec.kind != "scalar":
        return None
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return scalar_array(kind(text), spec)
    return None
