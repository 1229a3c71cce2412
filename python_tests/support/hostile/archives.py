"""Zip archives taken apart and put together again with something in them changed."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def members(path: Path) -> dict[str, bytes]:
    """Every member's bytes, without the archive's root folder."""
    with zipfile.ZipFile(path) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}


def pack(path: Path, parts: dict[str, bytes], root: str = "model/", compress: bool = False) -> Path:
    """A sound archive of these members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            archive.writestr(root + name, data)
    return path


def changed(path: Path, source: dict[str, bytes], member: str, data: bytes | None) -> Path:
    """An archive with one member replaced, added, or (None) left out."""
    parts = dict(source)
    parts[member] = data or b""
    if data is None:
        del parts[member]
    return pack(path, parts)


def edited(path: Path, source: dict[str, bytes], member: str, edit: Callable[[Any], object]) -> Path:
    """An archive whose JSON member was edited in place."""
    value = json.loads(source[member])
    edit(value)
    return changed(path, source, member, json.dumps(value).encode())


class Touch:
    """Pickled, it is a call that makes a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


def touching_pickle(marker: Path) -> bytes:
    """A bare pickle that makes a file when it is loaded."""
    return pickle.dumps(Touch(marker), protocol=2)


def with_local_header(data: bytes, number: int, offset: int, value: bytes) -> bytes:
    """The bytes of an archive with a field of its n-th local header changed."""
    at = -1
    for _ in range(number + 1):
        at = data.index(b"PK\3\4", at + 1)
    return data[: at + offset] + value + data[at + offset + len(value) :]


def with_directory(data: bytes, number: int, offset: int, value: bytes) -> bytes:
    """The same for the n-th entry of its directory."""
    start = struct.unpack("<I", data[-6:-2])[0]
    at = start
    for _ in range(number):
        at = data.index(b"PK\1\2", at + 1)
    return data[: at + offset] + value + data[at + offset + len(value) :]
