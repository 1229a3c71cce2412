"""Files of the user's that mlirc writes: whole or not at all, and never in the place of something that is not its own.

An output may replace what carries mlirc's mark (`mlirc.files.marks`) or is empty. Whatever else has its name stays and
is an error: an input of the same run, another program's file, a symbolic link, a device, a FIFO, a socket, a folder.
Folders on the way to it may be symbolic links.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from mlirc.errors import MlircError
from mlirc.files.marks import is_ours, marked_text
from mlirc.files.temporary import Held, new_file, turn, unused_name

_Made = TypeVar("_Made")
LEVEL_FILES = ("linalg.mlir", "kernels.mlir", "tiles.mlir", "gpu.mlir")  # of a levels folder
_KINDS = {stat.S_IFBLK: "a device", stat.S_IFCHR: "a device", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def check_writable(path: Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raises MlircError when a file at `path` could not be written, or must not be, before any work is done. `inputs`:
    files and folders that the same run reads."""
    try:
        if not path.parent.is_dir():
            raise MlircError(f"cannot write {path}: folder {path.parent} does not exist: create it first")
        check_replaceable(path, inputs)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (OSError, ValueError) as e:
        raise MlircError(f"cannot write {path}: {getattr(e, 'strerror', None) or e}") from e


def check_replaceable(path: Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raises MlircError when something has the name `path` that an output must not replace."""
    about = _about(path)
    if about is None:
        return
    if stat.S_ISDIR(about.st_mode):
        raise MlircError(f"cannot write {path}: it is a folder: give a file name")
    if stat.S_ISLNK(about.st_mode):
        raise MlircError(f"cannot write {path}: it is a symbolic link: give the name of a file, or remove the link")
    if not stat.S_ISREG(about.st_mode):
        kind = _KINDS.get(stat.S_IFMT(about.st_mode), "no regular file")
        raise MlircError(f"cannot write {path}: it is {kind}: give the name of a file")
    if (about.st_dev, about.st_ino) in _identities(inputs):
        raise MlircError(f"cannot write {path}: this run reads it: give another name, or another folder")
    if not is_ours(path):
        raise MlircError(f"cannot write {path}: it exists, and mlirc did not write it: remove it, or give another name")
    if not os.access(path, os.W_OK):
        raise MlircError(f"cannot write {path}: it is write-protected: remove it, or give another name")


def _about(path: Path) -> os.stat_result | None:
    """What lies at `path`, symbolic links not followed; None when nothing does."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise MlircError(f"cannot write {path}: {getattr(e, 'strerror', None) or e}") from e


def _identities(inputs: Iterable[str | Path]) -> set[tuple[int, int]]:
    """Device and inode of every input. Of a folder: of its files that are not mlirc's own, so that a model compiled
    into its own folder may be compiled again."""
    found = set()
    for given in inputs:
        path = Path(given)
        with contextlib.suppress(OSError, ValueError):
            files = [path]
            if path.is_dir():
                files = [f for f in path.iterdir() if not is_ours(f)]
            found |= {(about.st_dev, about.st_ino) for about in map(os.stat, files)}
    return found


def model_files(path: Path) -> tuple[Path, Path]:
    """The safetensors file and the levels folder of the compiled model `path`."""
    return path.with_suffix(".safetensors"), path.with_suffix(".levels")


def check_model_output(path: Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raises MlircError when a compiled model, which has files beside it, could not be written as `path`, or must not
    be. `inputs`: files and folders that the same run reads."""
    if path.suffix != ".ptx":  # m.v1 and m.v2 would share m.safetensors
        raise MlircError(f"cannot write {path}: weights and levels lie beside it: give a name that ends in .ptx")
    inputs = list(inputs)
    weights, levels = model_files(path)
    check_writable(path, inputs)
    check_replaceable(weights, inputs)
    if weights.name == "model.safetensors" and (path.parent / "config.json").exists():
        raise MlircError(
            f"cannot write {weights}: it would be taken for the Hugging Face model's own: give another name"
        )
    check_levels(levels, inputs)


def check_levels(folder: Path, inputs: Iterable[str | Path] = ()) -> None:
    """Raises MlircError when `folder` is no place for a model's levels: something else, or with others' files only."""
    about = _about(folder)
    if about is None:
        return
    if not stat.S_ISDIR(about.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(about.st_mode) else "a file"
        raise MlircError(
            f"cannot write {folder}: it is {what}, and has to be a folder: remove it, or give another name"
        )
    for name in LEVEL_FILES:
        check_replaceable(folder / name, inputs)
    try:
        names = os.listdir(folder)
    except OSError as e:
        raise MlircError(f"cannot write {folder}: {e.strerror}") from e
    if names and not set(names) & set(LEVEL_FILES):
        raise MlircError(f"cannot write {folder}: it holds files that mlirc did not write: give another name")


def write_atomically(path: Path, text: str, what: str = "text", inputs: Iterable[str | Path] = ()) -> None:
    """Writes one text file, with mlirc's mark and what it is, so that readers, and other processes that write it too,
    never see half of it."""
    with Outputs(inputs) as outputs:
        outputs.add_text(path, text, what)


def set_permissions(temporary: Path, path: Path) -> None:
    """Gives a temporary file what the file at `path` has, or what the umask leaves of 0666 where there is none."""
    try:
        about = os.stat(path)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        return
    with contextlib.suppress(OSError):  # giving away is root's
        os.chown(temporary, about.st_uid, about.st_gid)
    os.chmod(temporary, stat.S_IMODE(about.st_mode))


class Outputs:
    """A set of files that appear together when the `with` block ends without an error, or not at all. `inputs`: files
    and folders that the same run reads.

    The file that is added last is the one that readers open first. Where there are several, it goes away before any
    other is replaced and comes last: a process that is killed in between leaves no mixture of two runs, but files
    without their first one. Processes that write the same set take turns, by a lock on that file's folder."""

    def __init__(self, inputs: Iterable[str | Path] = ()) -> None:
        self._inputs = list(inputs)
        self._renames: list[tuple[Path, Path]] = []
        self._removals: list[Path] = []
        self._kept: list[tuple[Path, Path | None]] = []  # a path, and the second name of what is replaced
        self._made: list[Path] = []  # folders
        self._held: list[Held] = []  # the locks of what is temporary

    def add(self, path: Path, write: Callable[[Path], _Made]) -> _Made:
        """Calls `write` with a temporary path beside `path`, which takes its place at the end; returns what it does."""
        if any(path == other for _, other in self._renames):
            raise MlircError(f"cannot write {path} twice: give every output a file of its own")
        check_replaceable(path, self._inputs)
        try:
            self._made += [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            held = new_file(path)
            temporary = held.path
            self._held.append(held)
            self._renames.append((temporary, path))
            made = write(temporary)
            set_permissions(temporary, path)
            return made
        except OSError as e:
            raise MlircError(f"cannot write {path}: {e.strerror or e}") from e

    def add_text(self, path: Path, text: str, what: str) -> None:
        """Adds a text file with mlirc's mark, which says `what` it is."""
        content = marked_text(path, text, what)
        self.add(path, lambda temporary: temporary.write_text(content, encoding="utf-8"))

    def remove(self, path: Path) -> None:
        """An earlier output that must not stay beside the new ones: goes away at the end if it is there and ours."""
        about = _about(path)
        if about is not None and stat.S_ISREG(about.st_mode) and is_ours(path):
            check_replaceable(path, self._inputs)
            self._removals.append(path)

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        done = False
        try:
            if kind is None:
                self._replace()
                done = True
        except OSError as e:
            raise MlircError(f"cannot write {e.filename2 or e.filename}: {e.strerror}") from e
        finally:
            if not done:
                self._restore()
            for temporary in (*(t for t, _ in self._renames), *(k for _, k in self._kept if k)):
                temporary.unlink(missing_ok=True)
            for held in self._held:
                held.close()
            if not done:
                for folder in sorted(self._made, reverse=True):
                    with contextlib.suppress(OSError):
                        folder.rmdir()

    def _replace(self) -> None:
        """Puts all files in place; what they replace keeps a second name until all are."""
        paths = [*self._removals, *(path for _, path in self._renames)]
        if not paths:
            return
        with turn(paths[-1]):
            if len(paths) > 1:
                for path in paths:
                    self._keep(path)
                paths[-1].unlink(missing_ok=True)
            for path in self._removals:
                path.unlink(missing_ok=True)
            for temporary, path in self._renames:
                os.replace(temporary, path)

    def _keep(self, path: Path) -> None:
        if _about(path) is None:
            self._kept.append((path, None))
            return
        self._held.append(Held(path))  # so that nobody takes its second name for one that a dead process has left
        second = unused_name(path.parent)
        with contextlib.suppress(OSError):  # some file systems have no second names
            os.link(path, second)
            self._kept.append((path, second))

    def _restore(self) -> None:
        for path, second in self._kept:
            with contextlib.suppress(OSError):
                if second is None:
                    path.unlink(missing_ok=True)
                else:
                    os.replace(second, path)
