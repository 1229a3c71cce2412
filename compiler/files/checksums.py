"""Checksums of files: what was damaged or swapped is refused, and not run."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError
from mlirc.files.opening import open_regular

try:
    from isal.isal_zlib import crc32
except ModuleNotFoundError:  # the same sum, at a quarter of the speed
    from zlib import crc32

_BLOCK = 4 << 20  # bytes; what fits the caches is read once from memory
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Checksum:
    """Of one file: its size in bytes, and its `sum_of`."""

    size: int
    digest: str

    def as_json(self) -> list[Any]:
        """What `from_json` reads."""
        return [self.size, self.digest]

    @staticmethod
    def from_json(found: Any) -> Checksum:
        """Raises ValueError for anything else than `as_json` makes."""
        if type(found) is not list or [type(x) for x in found] != [int, str] or found[0] < 0:
            raise ValueError("a file's checksum")
        if not _DIGEST.fullmatch(found[1]):
            raise ValueError("a file's checksum")
        return Checksum(*found)


def checksums(folder: Path, names: Iterable[str]) -> dict[str, Checksum]:
    """Those of files of a folder, by name. Raises MlircError where one cannot be read."""
    found = {}
    for name in names:
        with open_regular(folder / name) as file:
            size = os.fstat(file.fileno()).st_size
            found[name] = Checksum(size, sum_of(file.fileno()))
    return found


def check_files(folder: Path, wanted: Mapping[str, Checksum], names: Iterable[str], advice: str) -> None:
    """Raises MlircError, which ends with `advice`, unless each of `names` is in `wanted` and as it was."""
    names = list(names)
    for name, now in checksums(folder, names).items():
        was = wanted.get(name)
        if was is None:
            raise MlircError(f"{folder / name}: is no file of this model: {advice}")
        if now != was:
            what = f"{now.size:,} bytes, not {was.size:,}" if now.size != was.size else "its checksum does not match"
            raise MlircError(f"{folder / name}: damaged, or another model's: {what}: {advice}")


def sum_of(descriptor: int, blank: range = range(0)) -> str:
    """The SHA-256 of the CRC-32 of each block of 4 MiB of an open file, whose bytes at `blank`, in its first block,
    count as zeros: the sum itself may stand there. It tells damage, several times as fast as SHA-256 alone."""
    starts = range(0, max(1, os.fstat(descriptor).st_size), _BLOCK)
    count = min(16, len(os.sched_getaffinity(0)), len(starts))

    def crcs(first: int) -> list[bytes]:
        block, found = memoryview(bytearray(_BLOCK)), []
        for start in starts[first::count]:
            size = os.preadv(descriptor, [block], start)
            if not start:
                block[blank.start : blank.stop] = bytes(len(blank))
            found.append(crc32(block[:size]).to_bytes(4, "little"))
        return found

    if count == 1:
        parts = [crcs(0)]
    else:
        with ThreadPoolExecutor(count) as pool:
            parts = list(pool.map(crcs, range(count)))
    return hashlib.sha256(b"".join(parts[i % count][i // count] for i in range(len(starts)))).hexdigest()


def digest_of(text: str) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
