"""Opening files that a user names: never waits on a pipe, never reads a device, never more than fits.

Everything that reads a user's file goes through here, so that whatever lies there ends in one line.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from mlirc.errors import MlircError

TEXT_LIMIT = 256 << 20  # bytes of a text file: MLIR, a plan, JSON; the largest that mlirc writes has a tenth of it
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str | os.PathLike, what: str = "") -> BinaryIO:
    """Opens a regular file (or a link to one) for reading bytes.

    Raises MlircError, naming `what` (the option or kind of file) before the path, for anything else: opening a pipe or
    a device could wait for ever, and reading one need not end.
    """
    shown = f"{what} {shorten(path)}".strip()
    try:
        # Opening a pipe without this waits for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        raise MlircError(f"{shown}: cannot be read: {getattr(e, 'strerror', None) or e}") from e
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = next((name for test, name in _KINDS if test(mode)), "no file")
        raise MlircError(f"{shown}: cannot be read: it is {kind}, and a file is needed")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: str | os.PathLike, what: str = "", limit: int = TEXT_LIMIT) -> bytes:
    """The content of a regular file of at most `limit` bytes; raises MlircError for anything else."""
    with open_regular(path, what) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise MlircError(f"{what} {shorten(path)}: is larger than {limit >> 20} MiB, which is no such file".strip())
    return data


def read_text(path: str | os.PathLike, what: str = "", limit: int = TEXT_LIMIT) -> str:
    """The content of a text file (UTF-8, without NUL characters); raises MlircError for anything else."""
    return as_text(read_bytes(path, what, limit), f"{what} {shorten(path)}".strip())


def as_text(data: bytes, shown: str) -> str:
    """Bytes as UTF-8 text; raises MlircError, which starts with `shown`, for what is not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise MlircError(f"{shown}: not a text file (byte {e.start} is no UTF-8)") from e
    if "\0" in text:
        raise MlircError(f"{shown}: not a text file (byte {data.index(0)} is NUL)")
    return text.replace("\r\n", "\n")


def parse_json(data: bytes | bytearray | str, what: str) -> Any:
    """The value of a JSON text; raises MlircError for anything else, and for one nested beyond reason."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        why = "nested too deep" if isinstance(e, RecursionError) else " ".join(str(e).split())
        raise MlircError(f"{what} is not JSON: {why}") from e


def check_inside(folder: Path, path: Path) -> None:
    """Raises MlircError for a link that leads out of the folder, unless to where the hub's cache keeps its files."""
    with open_regular(path):
        pass
    real, home = path.resolve(), folder.resolve()
    cached = home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs"
    if real.parent != home and not cached:
        raise MlircError(f"{path}: a link that leads out of the folder: copy the file into it")


def exists(path: str | os.PathLike) -> bool:
    """Whether something lies at `path`; a name that the system does not take is nothing."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def shorten(text: object, limit: int = 200) -> str:
    """A name for a message: a very long one is cut in its middle."""
    shown = str(text)
    return shown if len(shown) <= limit else f"{shown[: limit // 2]}...{shown[-limit // 3 :]}"
