"""The folder of what was compiled before: what was made once, by anyone with the same tools, is not made again.

One file each, named by a hash of what it was made from and of what made it: a line of JSON with that name and a
checksum over name and content, then the content. A file that is damaged, changed, renamed, of another owner or writable
for others is as good as absent. Several processes may use the folder at once: a file appears whole, by a rename. Those
least recently used go when all take more than the limit.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from mlirc.errors import MlircError

DEFAULT_LIMIT = 2 << 30  # bytes
KERNEL, CODE = "json", "code"  # how files end: a compiled kernel, a level as code for this processor
_MARK = "mlirc kernel"
_FORMAT = 1
_TEMPORARY = re.compile(r"\.mlirc-.*\.tmp")
_NAME = re.compile(rf"[0-9a-f]{{64}}\.({KERNEL}|{CODE})")
_ABANDONED = 3600  # seconds, after which a temporary file's process is taken for dead


@functools.cache
def _versions_digest() -> str:
    """A hash over everything that decides what something compiles to: our own sources and the tools' versions."""
    digest = hashlib.sha256()
    for package in ("torch-mlir", "llvmlite"):
        digest.update(f"{package} {metadata.version(package)}\n".encode())
    specs = [find_spec(name) for name in ("mlirc", "mlirc.dialects", "mlirc.passes", "mlirc.scripts")]
    for root in (Path(p) for spec in specs if spec for p in spec.submodule_search_locations or ()):
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(parts: Iterable[str]) -> str:
    """The name of what is made from `parts` by these versions of the tools and of our sources."""
    digest = hashlib.sha256(_versions_digest().encode())
    for part in parts:
        digest.update(f"{len(part)} {part}\n".encode())
    return digest.hexdigest()


def cache_folder() -> Path:
    """`$MLIRC_CACHE_DIR`, or `mlirc` in the user's cache folder."""
    given = os.environ.get("MLIRC_CACHE_DIR")
    if given:
        return Path(given)
    with contextlib.suppress(RuntimeError):  # a user without a home
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlirc"
    return Path(os.devnull)  # no folder: nothing is kept


def size_limit() -> int:
    """The bytes that all files may take together: `$MLIRC_CACHE_SIZE`, a number with K, M or G behind it (of 1024),
    or 2 GiB. Raises MlircError when that is no size."""
    given = os.environ.get("MLIRC_CACHE_SIZE", "").strip()
    match = re.fullmatch(r"([0-9]{1,15})\s*([KMGT]?)(i?B)?", given, flags=re.IGNORECASE)
    if given and not match:
        raise MlircError(f"MLIRC_CACHE_SIZE={given}: no size: give bytes, or a number such as 500M or 2G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2].upper()] if match else DEFAULT_LIMIT


@dataclass(frozen=True)
class Kept:
    """One file of the cache: `used` is when it was last written or read, in seconds."""

    path: Path
    size: int
    used: float


class KeptFolder:
    """A folder of what was compiled before. One that cannot be read or written only costs time; one that others may
    write to, or that belongs to somebody else, is not used, and standard error says so once. `limit` in bytes."""

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder
        self.limit = size_limit() if limit is None else limit
        self._size: int | None = None  # of all files; None until the first one is written

    def path(self, key: str, end: str) -> Path:
        """Where the file of a key lies, or would: `end` is KERNEL or CODE."""
        return self.folder / f"{key}.{end}"

    def read(self, key: str, end: str) -> bytes | None:
        """What was written as `key`, None where it is not there whole and unchanged."""
        if not self._trusted():
            return None
        path = self.path(key, end)
        try:
            content = _content(_read_own(path), key)
            os.utime(path)
            return content
        except (OSError, ValueError, RecursionError):
            return None

    def write(self, key: str, end: str, content: bytes) -> None:
        """Keeps something for later."""
        if not self._trusted(make=True):
            return
        head = {_MARK: _FORMAT, "key": key, "sha256": _checksum(key, content)}
        data = json.dumps(head).encode() + b"\n" + content
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(prefix=".mlirc-", suffix=".tmp", dir=self.folder)  # for the user alone
            with open(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, self.path(key, end))
            temporary = None
            self._size = sum(k.size for k in self.kept()) if self._size is None else self._size + len(data)
            if self._size > self.limit:
                self.prune(self.limit)
        except OSError:
            pass  # documented: a cache that cannot be written is no error
        finally:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def kept(self) -> Iterator[Kept]:
        """The cache's own files; what else lies in the folder is left out."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process may have removed it
                    about = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(about.st_mode) and self._is_ours(entry):
                        yield Kept(Path(entry.path), about.st_size, about.st_mtime)

    def _is_ours(self, entry: os.DirEntry) -> bool:
        if _TEMPORARY.fullmatch(entry.name):
            return True
        if not _NAME.fullmatch(entry.name):
            return False
        with open(entry.path, "rb") as file:
            return file.read(len(_MARK) + 4).startswith(f'{{"{_MARK}"'.encode())

    def prune(self, limit: int) -> tuple[int, int]:
        """Removes what was not used for longest until a tenth less than `limit` bytes are left, and what processes that
        died left behind. Returns how many files and bytes went."""
        kept = sorted(self.kept(), key=lambda k: k.used)
        self._size, goal = sum(k.size for k in kept), limit - limit // 10
        files = removed = 0
        goal = self._size if 0 < self._size <= limit else goal  # other processes made room, or one file was replaced
        for one in kept:
            temporary = _TEMPORARY.fullmatch(one.path.name) is not None
            if (time.time() - one.used > _ABANDONED or not limit) if temporary else self._size > goal:
                with contextlib.suppress(OSError):
                    one.path.unlink()
                    files, removed, self._size = files + (not temporary), removed + one.size, self._size - one.size
        return files, removed

    def problem(self) -> str:
        """Why the folder is not used, "" when it is or when it is not there yet."""
        try:
            about = os.stat(self.folder)
        except OSError as e:
            return "" if isinstance(e, FileNotFoundError) else f"{e.strerror}"
        if not stat.S_ISDIR(about.st_mode):
            return "it is no folder"
        if about.st_uid != os.geteuid():
            return "it belongs to somebody else"
        if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others may write to it: chmod 700 {self.folder}"
        return ""

    def _trusted(self, make: bool = False) -> bool:
        if make:
            with contextlib.suppress(OSError):
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                self.folder.mkdir(mode=0o700, exist_ok=True)
        why = self.problem()
        if why.startswith(("it belongs", "others")):
            _say(f"warning: the folder of compiled kernels, {self.folder}, is not used: {why}")
        return not why

    def info(self) -> str:
        """For people: the folder, what it holds, the limit, and why it is not used if it is not."""
        kept = [k for k in self.kept() if _NAME.fullmatch(k.path.name)]
        codes = sum(k.path.suffix == f".{CODE}" for k in kept)
        why = self.problem()
        return (
            f"{self.folder}: {len(kept) - codes} kernels, {codes} levels for this processor, "
            f"{sum(k.size for k in kept) / 2**20:.1f} MiB of at most "
            f"{self.limit / 2**20:,.0f} MiB" + (f"; not used: {why}" if why else "")
        )


@functools.cache
def _say(text: str) -> None:
    """Prints a line on standard error, the same one only once."""
    print(text, file=sys.stderr)


def _read_own(path: Path) -> bytes:
    """A file's content; OSError unless it is a regular file of the user's that nobody else may write."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        others = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or others:
            raise OSError("not a file of the user's alone")
        return file.read()


def _checksum(key: str, content: bytes) -> str:
    return hashlib.sha256(key.encode() + b"\n" + content).hexdigest()


def _content(data: bytes, key: str) -> bytes:
    """What a file holds behind its first line; ValueError unless it is the whole and unchanged content for `key`."""
    head, _, content = data.partition(b"\n")
    if json.loads(head) != {_MARK: _FORMAT, "key": key, "sha256": _checksum(key, content)}:
        raise ValueError("changed, or of another key")
    return content
