"""Zip archives of models, read so that every reader would see the same files, and none is damaged.

PyTorch reads archives with another program (miniz, without checksums, names compared without case) than Python does, so
whatever two readers could see differently is refused: names twice, data before, between or after the members, headers
that disagree.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from mlirc.errors import MlircError
from mlirc.files.opening import open_regular, shorten

MEMBERS = 200_000  # members of an archive; a large model has a few thousand
INFLATED = 256 << 20  # bytes that compressed members may hold in all; tensors are never compressed
_END, _END64, _LOCATOR, _LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\3\4"
_FLAGS = (
    0x080E  # sizes behind the data, level of compression, names in UTF-8; encryption and patches are not among them
)


class Archive:
    """A zip archive whose structure is sound. `names` are those of its members, in the file's order.

    Raises MlircError, on opening for a structure that is not, and on reading for data that does not match its checksum.
    """

    def __init__(self, source: Path | BinaryIO, what: str):
        self.what = what
        self._file = open_regular(source) if isinstance(source, Path) else source
        try:
            _check_end(self._file, what)
            try:
                self._zip = zipfile.ZipFile(self._file)
            except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as e:
                raise damaged(what, str(e)) from e
            self._infos = {info.filename: info for info in self._zip.infolist()}
            self._check_names()
            self._check_members()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def names(self) -> list[str]:
        return list(self._infos)

    def size(self, name: str) -> int:
        """The number of bytes of a member."""
        return self._infos[name].file_size

    def read(self, name: str, limit: int = 1 << 62) -> bytearray:
        """A member's bytes, checked; raises MlircError when it is missing, damaged or longer than `limit`."""
        if name not in self._infos:
            raise damaged(self.what, f"it has no {shorten(name)}")
        if self.size(name) > limit:
            raise MlircError(f"{self.what}: its {shorten(name)} has {self.size(name):,} bytes, more than a model's has")
        data = bytearray(self.size(name))
        at = 0
        for part in self._parts(name):
            data[at : at + len(part)] = part
            at += len(part)
        if at != len(data):
            raise damaged(self.what, f"{shorten(name)} is cut short")
        return data

    def check(self) -> None:
        """Compares every member with its checksum."""
        for name in self.names:
            if sum(map(len, self._parts(name))) != self.size(name):
                raise damaged(self.what, f"{shorten(name)} is cut short")

    def _parts(self, name: str) -> Iterator[bytes]:
        try:
            with self._zip.open(self._infos[name]) as member:
                while part := member.read(1 << 24):
                    yield part
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as e:
            raise damaged(self.what, str(e)) from e

    def _check_names(self) -> None:
        seen: dict[str, str] = {}
        for info in self._zip.infolist():
            name = info.filename
            parts = name.split("/")
            if info.orig_filename != name or "\\" in name or not name.isprintable() or len(name) > 1000:
                raise MlircError(f"{self.what}: a member of the archive is called {ascii(shorten(name))}: not a model")
            if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
                raise MlircError(f"{self.what}: the archive's member '{shorten(name)}' points outside of it")
            if name.lower() in seen:
                raise MlircError(f"{self.what}: the archive has two members '{shorten(name)}': which one is meant?")
            seen[name.lower()] = name

    def _check_members(self) -> None:
        """Local headers agree with the directory, and the members' data do not overlap."""
        inflated, end = 0, 0
        for info in sorted(self._infos.values(), key=lambda i: i.header_offset):
            name = shorten(info.filename)
            if info.flag_bits & ~_FLAGS or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise MlircError(f"{self.what}: the archive's member '{name}' is encrypted or packed in an unusual way")
            if info.extra and (len(info.extra) < 4 or info.extra[:2] != b"\1\0" or not _one_field(info.extra)):
                raise damaged(self.what, f"{name} has unknown fields in the directory")
            if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
                raise damaged(self.what, f"{name} has two sizes")
            if info.compress_type == zipfile.ZIP_DEFLATED:
                inflated += info.file_size
                if inflated > INFLATED:
                    raise MlircError(
                        f"{self.what}: a zip bomb: its compressed members hold more than {INFLATED >> 20} MiB; tensors "
                        "are never compressed in a model: save it again with PyTorch"
                    )
            if info.header_offset < end:
                raise damaged(self.what, f"{name} overlaps the member before it")
            end = self._check_local(info)

    def _check_local(self, info: zipfile.ZipInfo) -> int:
        """Compares one local header with the directory; returns where the member's data ends."""
        self._file.seek(info.header_offset)
        header = self._file.read(30)
        name = shorten(info.filename)
        if len(header) < 30 or header[:4] != _LOCAL:
            raise damaged(self.what, f"{name} has no header")
        _, flags, method, _, _, crc, packed, size, name_length, extra = struct.unpack("<HHHHHIIIHH", header[4:])
        found = self._file.read(name_length)
        sizes_follow = flags & 8 and not (crc or packed or size)
        wide = 0xFFFFFFFF in (packed, size)
        agrees = (crc, packed, size) == (info.CRC, info.compress_size, info.file_size) or sizes_follow
        if wide:
            agrees = crc in (info.CRC, 0)
        if (
            found != info.orig_filename.encode()
            or method != info.compress_type
            or flags != info.flag_bits
            or not agrees
        ):
            raise damaged(self.what, f"{name} has two headers that disagree")
        return info.header_offset + 30 + name_length + extra + info.compress_size


def _one_field(extra: bytes) -> bool:
    return len(extra) == 4 + struct.unpack("<H", extra[2:4])[0]


def _check_end(file: BinaryIO, what: str) -> None:
    """The directory's end record is the file's last 22 bytes, and the directory lies right before it."""
    size = os.fstat(file.fileno()).st_size if _has_descriptor(file) else file.seek(0, os.SEEK_END)
    if size < 22:
        raise damaged(what, "it is too short")
    file.seek(size - 22)
    tail = file.read(22)
    if tail[:4] != _END or tail[20:] != b"\0\0":
        raise damaged(what, "its directory is not at its end")
    disks, directory_disk, here, count, length, start = struct.unpack("<HHHHII", tail[4:20])
    end = size - 22
    file.seek(max(0, size - 42))
    locator = file.read(20)
    if locator[:4] == _LOCATOR:
        end = struct.unpack("<Q", locator[8:16])[0]
        if end > size - 42 - 56:
            raise damaged(what, "its directory is damaged")
        file.seek(end)
        record = file.read(56)
        if record[:4] != _END64 or end + 12 + struct.unpack("<Q", record[4:12])[0] != size - 42:
            raise damaged(what, "its directory is damaged")
        wide = struct.unpack("<IIQQQQ", record[16:56])
        for narrow, value, most in zip(
            (disks, directory_disk, here, count, length, start), wide, (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2, strict=True
        ):
            if narrow not in (value, most):
                raise damaged(what, "its two directories disagree")
        disks, directory_disk, here, count, length, start = wide
    if disks or directory_disk or here != count or start + length != end:
        raise damaged(what, "its directory is damaged")
    if count > MEMBERS:
        raise MlircError(f"{what}: the archive has {count:,} members: not a model")


def _has_descriptor(file: BinaryIO) -> bool:
    try:
        file.fileno()
    except OSError:
        return False
    return True


def damaged(what: str, why: str) -> MlircError:
    """The error for an archive that is not whole."""
    return MlircError(f"{what}: truncated or damaged archive: {' '.join(why.split())}: copy or save it again")


class NotJudged(MlircError):
    """A file holds what cannot be told to be harmless without running it; with `--allow-pickle` it is opened."""


def not_judged(what: str, why: str) -> NotJudged:
    """The error for a file that is refused because it could run code."""
    return NotJudged(
        f"{what}: {why}, and opening it could run code: refused (if you trust the file, pass --allow-pickle; else save "
        "the model with torch.export.save)"
    )
