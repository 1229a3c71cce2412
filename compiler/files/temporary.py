"""Temporary files and folders beside an output. Who makes one holds a lock on it, which ends with the process, however
that ends: so the next run can tell what a dead one has left, and removes it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mlirc.errors import MlircError

PREFIX, SUFFIX, REPLACED = ".mlirc-", ".tmp", ".old"
PATIENCE = 60  # seconds that a process waits for others that replace files in a folder
_NAMES = re.compile(r"\.mlirc-\w+\.(tmp|old)")
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of linux/fcntl.h, linux/fs.h


@contextlib.contextmanager
def turn(path: Path, patience: float | None = None) -> Iterator[None]:
    """The turn of this process among those that change names beside `path`. The lock ends with the process, however
    that ends. Raises MlircError where the others take longer than `patience` seconds (`PATIENCE`)."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a folder that may be written and not read has no lock
        yield
        return
    try:
        end = time.monotonic() + (PATIENCE if patience is None else patience)
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                if time.monotonic() > end:
                    raise MlircError(f"cannot write {path}: another process has locked its folder") from e
                time.sleep(0.01)
                continue
            except OSError:
                pass  # some file systems have no locks
            break
        yield
    finally:
        os.close(folder)


class Held:
    """A temporary file or folder `path`, locked as long as this process lives, or until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):  # some file systems have no locks: what lies there is never removed
            self._descriptor = lock(path)

    def close(self) -> None:
        """Gives the lock back; what lies there is left as it is."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock(path: Path) -> int:
    """A descriptor that holds the lock of a file or folder. OSError where another process has it, or there is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def new_file(path: Path) -> Held:
    """A new empty file beside `path` that no other process has, and nobody else may read until it is whole."""
    with turn(path):  # nobody finds it without its lock
        clean(path.parent)
        handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX, dir=path.parent)
        os.close(handle)
        return Held(Path(name))


def new_folder(path: Path) -> Held:
    """A new empty folder beside `path`, as `new_file`."""
    with turn(path):
        clean(path.parent)
        return Held(Path(tempfile.mkdtemp(prefix=PREFIX, suffix=SUFFIX, dir=path.parent)))


def unused_name(folder: Path) -> Path:
    """A name that nothing in a folder has; in a turn of this process nobody else takes it."""
    handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX, dir=folder)
    os.close(handle)
    os.unlink(name)
    return Path(name)


def clean(folder: Path) -> None:
    """Removes what dead processes of this user have left in a folder; to be called in a turn of this process. A folder
    that was taken away to be replaced gets its name back where nothing has it."""
    for name in filter(_NAMES.fullmatch, os.listdir(folder)):
        path = folder / name
        with contextlib.suppress(OSError):  # a living process has it, or it is gone
            about = os.lstat(path)
            if about.st_uid != os.geteuid() or not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
                continue
            descriptor = lock(path)
            try:
                _remove(path, stat.S_ISDIR(about.st_mode))
            finally:
                os.close(descriptor)


def _remove(path: Path, folder: bool) -> None:
    if not folder:
        path.unlink()
        return
    if path.suffix == REPLACED:
        for old in path.iterdir():
            if not os.path.lexists(path.parent / old.name):
                os.rename(old, path.parent / old.name)
    shutil.rmtree(path, ignore_errors=True)


def replace_folder(made: Path, folder: Path) -> None:
    """Puts the folder `made` where `folder` is or was; the old one is then `made`, or gone. Where the system can, both
    change names at once; else a process that is killed in between leaves the old one to `clean`."""
    if not folder.is_dir():
        os.rename(made, folder)
        return
    if _exchanged(made, folder):
        return
    old = Held(Path(tempfile.mkdtemp(prefix=PREFIX, suffix=REPLACED, dir=folder.parent)))
    try:
        os.rename(folder, old.path / folder.name)
        try:
            os.rename(made, folder)
        except BaseException:
            os.rename(old.path / folder.name, folder)
            raise
    finally:
        shutil.rmtree(old.path, ignore_errors=True)
        old.close()


def _exchanged(a: Path, b: Path) -> bool:
    """Exchanges two names in one step (renameat2, Linux 3.15); False where the system or file system cannot."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return exchange(_HERE, os.fsencode(a), _HERE, os.fsencode(b), _EXCHANGE) == 0
