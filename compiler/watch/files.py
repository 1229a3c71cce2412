"""Which files a result was made from, and in which state: a result is stale when one of them has another one now."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from mlirc.files.marks import is_ours
from mlirc.schedule.user_code import is_library

# Changes with every way of saving: in place, by a rename, with the old time put back.
Signature = tuple[int, ...] | tuple[str, ...] | None
Signatures = dict[str, Signature]


def signature(path: str) -> Signature:
    """A file's state, for a folder the names that may be modules or scripts in it; None where there is nothing."""
    try:
        if path.endswith(os.sep):
            return tuple(sorted(n for n in os.listdir(path) if n.endswith((".py", ".mlir")) or "." not in n))
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    return (about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino, about.st_dev)


def signatures(paths: Iterable[str]) -> Signatures:
    """The state of each file."""
    return {path: signature(path) for path in paths}


def changed(old: Signatures, new: Signatures) -> list[str]:
    """The files whose state differs; a file that is in one of them only counts as absent in the other."""
    return [path for path in {**old, **new} if old.get(path) != new.get(path)]


def own_sources() -> list[str]:
    """The files of mlirc, apart from its scripts: a change of these needs another process."""
    import mlirc
    from mlirc import dialects, passes

    folders = [folder for package in (mlirc, dialects, passes) for folder in package.__path__]
    found = sorted(str(path) for folder in folders for path in Path(folder).rglob("*.py"))
    apart = {os.path.realpath(p) for p in script_sources()}
    return [p for p in found if os.path.realpath(p) not in apart]


def script_sources() -> list[str]:
    """The files of mlirc's scripts, which every round can read anew."""
    from mlirc import scripts

    return sorted(os.path.join(f, n) for f in scripts.__path__ for n in os.listdir(f) if n.endswith(".py"))


def model_files(spec: str) -> list[str]:
    """The files that a model's name stands for; none for a factory. What mlirc wrote into the model's folder is not of
    the model."""
    path = Path(spec)
    if path.is_dir():
        return sorted(str(p) for p in path.iterdir() if p.is_file() and not is_ours(p))
    return [spec] if path.exists() else []


class Imports:
    """Notes the Python files outside of libraries that are imported in the body, as they were before."""

    def __init__(self) -> None:
        self.files: Signatures = {}

    def __enter__(self) -> Imports:
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        return self

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None):
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.origin and spec.has_location and not is_library(spec.origin):
            self.files[os.path.abspath(spec.origin)] = signature(spec.origin)
        return spec


class Reads:
    """Notes the files that this process opens for reading from now on, as they are before, but for those of libraries.
    There is no end to it: it is for a process that ends itself."""

    def __init__(self, ignored: Sequence[str] = ()) -> None:
        self.files: Signatures = {}
        self._written: set[str] = set()
        zipped = [p for p in sys.path if p.endswith(".zip")]  # Python looks for one, which seldom exists
        self._ignored = ("/proc/", "/sys/", "/dev/", *zipped, *(os.path.abspath(folder) + os.sep for folder in ignored))
        sys.addaudithook(self._event)

    def _event(self, event: str, args: tuple) -> None:
        if event != "open" or not isinstance(args[0], str | bytes | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(args[0]))
        if args[2] & (os.O_WRONLY | os.O_RDWR):
            self._written.add(path)
        elif path not in self.files and not path.startswith(self._ignored) and not is_library(path):
            self.files[path] = signature(path)

    def result(self) -> Signatures:
        """What was read, without what this process wrote itself."""
        return {path: state for path, state in self.files.items() if path not in self._written}
