"""The Python of a user's schedule files: loaded from its source, kept apart from the rest of the process, and forgotten
with its owner, so that a file that was edited since is never met in an older form."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType


class SourceLoader(SourceFileLoader):
    """Compiles the source at every load: a .pyc file is told to be current by whole seconds and the file's size, and
    two edits of a knob lie closer than that. `shown` is the path as the user gave it, which errors are to name."""

    def __init__(self, fullname: str, path: str, shown: str = "") -> None:
        super().__init__(fullname, path)
        self.shown = shown or path

    def get_code(self, fullname: str):
        return self.source_to_code(self.get_data(self.get_filename(fullname)), self.shown)


@functools.cache
def library_folders() -> tuple[str, ...]:
    """Where Python, installed packages and mlirc itself lie: what is in there does not belong to a schedule."""
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    for package in ("mlirc", "mlirc.dialects", "mlirc.passes", "mlirc.scripts"):
        spec = importlib.util.find_spec(package)
        folders += spec.submodule_search_locations or [] if spec else []
    return tuple({os.path.realpath(folder) for folder in folders})


def is_library(path: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to mlirc."""
    real = os.path.realpath(path)
    if {"site-packages", "dist-packages"} & set(real.split(os.sep)):
        return True
    return any(real.startswith(folder + os.sep) for folder in library_folders())


class UserCode:
    """The modules of one set of schedule files: the files themselves and what they import from their folders, or from
    elsewhere outside of installed packages. They are in `sys.modules` only while `active`: another set, maybe of later
    forms of the same files, has its own."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.folders: list[str] = []
        self._depth = 0

    def load(self, path: str) -> ModuleType:
        """Executes a file as a module. Its folder is importable, as it is for a Python program. Raises what it does."""
        shown, path = path, os.path.abspath(path)
        folder = os.path.dirname(path)
        if folder not in self.folders:
            self.folders.append(folder)
        name = f"mlirc_user_{len(self.modules)}"
        spec = importlib.util.spec_from_file_location(name, path, loader=SourceLoader(name, path, shown))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with self.active():
            # dataclasses and pickle look their module up by its name
            self.modules[name] = sys.modules[name] = module
            spec.loader.exec_module(module)
        return module

    @contextmanager
    def active(self) -> Iterator[None]:
        """While the body runs the modules are importable, and those that it imports join them."""
        if not self.folders:  # nothing was loaded: this is asked for once per kernel
            yield
            return
        self._depth += 1
        if self._depth > 1:
            try:
                yield
            finally:
                self._depth -= 1
            return
        importlib.invalidate_caches()  # they, too, tell a folder's age by its time
        finder = _Finder(self)
        hidden = {name: sys.modules[name] for name in self.modules if name in sys.modules}
        for name, module in self.modules.items():
            _enter(name, module)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            self._depth -= 1
            sys.meta_path.remove(finder)
            for name in [*self.modules, *finder.found]:
                left = _leave(name)
                if left is not None:
                    self.modules[name] = left
            sys.modules.update(hidden)


def _enter(name: str, module: ModuleType) -> None:
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, module)


def _leave(name: str) -> ModuleType | None:
    """Takes a module out of `sys.modules` and out of its package, where `from package import name` looks first."""
    module = sys.modules.pop(name, None)
    parent, _, leaf = name.rpartition(".")
    package = sys.modules.get(parent)
    if module is not None and package is not None and getattr(package, leaf, None) is module:
        delattr(package, leaf)
    return module


class _Finder:
    """Finds the user's modules: first in the folders of the schedule files, then wherever Python looks."""

    def __init__(self, code: UserCode) -> None:
        self.code = code
        self.found: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None):
        if name.partition(".")[0] in {"mlirc", *sys.stdlib_module_names}:
            return None
        spec = PathFinder.find_spec(name, [*self.code.folders, *sys.path] if path is None else path)
        if spec is None or not spec.origin or not isinstance(spec.loader, SourceFileLoader):
            if spec is not None and path is None and spec.submodule_search_locations is not None:
                return self._namespace(name, spec)
            return None
        if is_library(spec.origin) and os.path.dirname(spec.origin) not in self.code.folders:
            return None
        self.found.append(name)
        spec.loader = SourceLoader(name, spec.origin)
        return spec

    def _namespace(self, name: str, spec: ModuleSpec) -> ModuleSpec | None:
        """A folder without __init__.py beside a schedule file, which Python alone would not find."""
        locations = [os.path.dirname(os.path.realpath(p)) for p in spec.submodule_search_locations or ()]
        if spec.loader is None and any(os.path.realpath(folder) in locations for folder in self.code.folders):
            self.found.append(name)
            return spec
        return None


def source_only(package: str) -> None:
    """From here on modules of a package of ours are loaded from their sources, and those loaded before are forgotten:
    for a process that goes on after they were edited."""
    for name in [n for n in sys.modules if n.startswith(f"{package}.")]:
        _leave(name)
    importlib.invalidate_caches()
    sys.meta_path.insert(0, _PackageFinder(package))


class _PackageFinder:
    def __init__(self, package: str) -> None:
        self.prefix = f"{package}."

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None):
        if not name.startswith(self.prefix):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.origin and isinstance(spec.loader, SourceFileLoader):
            spec.loader = SourceLoader(name, spec.origin)
        return spec
