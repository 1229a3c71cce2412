"""Files written all or none: everything goes to temporary names first, and is renamed at the end."""

from __future__ import annotations

import contextlib
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


def check_model_output(path: Path) -> None:
    """Raises MlircError when a compiled model, which has files beside it, could not be written as `path`."""
    if path.suffix in (".safetensors", ".levels"):
        raise MlircError(f"cannot write {path}: the model's {path.suffix} lies beside it: give a name such as OUT.ptx")
    check_writable(path)
    weights, levels = path.with_suffix(".safetensors"), path.with_suffix(".levels")
    if weights.is_dir():
        raise MlircError(f"cannot write {weights}: it is a folder")
    if levels.is_file():
        raise MlircError(f"cannot write {levels}: it is a file, and has to be a folder")


def write_atomically(path: Path, text: str) -> None:
    """Writes one text file so that readers, and other processes that write it too, never see half of it."""
    with Outputs() as outputs:
        outputs.add(path, lambda temporary: temporary.write_text(text))


class Outputs:
    """A set of files that appear together when the `with` block ends without an error, or not at all."""

    def __init__(self) -> None:
        self._renames: list[tuple[Path, Path]] = []
        self._made: list[Path] = []  # folders

    def add(self, path: Path, write: Callable[[Path], object]) -> None:
        """Calls `write` with a temporary path beside `path`, which takes its place at the end."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{len(self._renames)}.tmp")
        self._renames.append((temporary, path))
        try:
            if path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
            self._made += [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
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
            if kind is not None:
                for folder in sorted(self._made, reverse=True):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
