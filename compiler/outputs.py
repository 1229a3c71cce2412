"""Files written all or none: everything goes to temporary names first, and is renamed at the end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from mlirc.errors import MlircError


def check_writable(path: Path) -> None:
    """Raises MlircError when a file at `path` could not be written, before any work is done."""
    if path.is_dir():
        raise MlircError(f"cannot write {path}: it is a folder: give a file name")
    if not path.parent.is_dir():
        raise MlircError(f"cannot write {path}: folder {path.parent} does not exist: create it first")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as e:
        raise MlircError(f"cannot write {path}: {e.strerror}") from e


def write_atomically(path: Path, text: str) -> None:
    """Writes one text file so that readers, and other processes that write it too, never see half of it."""
    with Outputs() as outputs:
        outputs.add(path, lambda temporary: temporary.write_text(text))


class Outputs:
    """A set of files that appear together when the `with` block ends without an error, or not at all."""

    def __init__(self) -> None:
        self._renames: list[tuple[Path, Path]] = []

    def add(self, path: Path, write: Callable[[Path], object]) -> None:
        """Calls `write` with a temporary path beside `path`, which takes its place at the end."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{len(self._renames)}.tmp")
        self._renames.append((temporary, path))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
        except OSError as e:
            raise MlircError(f"cannot write {path}: {e.strerror or e}") from e

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if kind is None:
                for temporary, path in self._renames:
                    os.replace(temporary, path)
        except OSError as e:
            raise MlircError(f"cannot write {e.filename2 or e.filename}: {e.strerror}") from e
        finally:
            for temporary, _path in self._renames:
                temporary.unlink(missing_ok=True)
