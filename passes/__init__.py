"""Passes written in Python, one per file. Each takes a module of one level and changes it in place.

A pass is a function `run(module: ir.Module, **options: str) -> None` registered with `@register("mlirc-name")`.
The registry imports every file of this package, so that a new pass is a new file and nothing else.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import re
from collections.abc import Callable
from difflib import get_close_matches

from mlirc.errors import MlircError
from mlirc.schedule.errors import VerbError
from mlirc.schedule.user import loading_file

NEAREST = 8  # names that an error lists
_passes: dict[str, Callable] = {}
_users: dict[str, Callable] = {}  # of `--schedule FILE.py`
_files: dict[str, str] = {}  # where those are from


def register(name: str) -> Callable[[Callable], Callable]:
    """Registers a pass under its command-line name, `mlirc-` and words. One that a `--schedule FILE.py` registers can
    be run by `apply_pass`, or be a kernel's lowering: `annotate(function, lowering="x")` asks for `mlirc-x`."""

    def add(function: Callable) -> Callable:
        if not loading_file(function):
            _passes[name] = function
            return function
        if not isinstance(name, str) or not re.fullmatch(r"mlirc-[a-z][\w-]*", name):
            raise VerbError(f"register: a pass is named mlirc-something, not {name!r}")
        known = all_passes().get(name) or _users.get(name)
        if known is not None and _file(known) != _file(function):
            raise VerbError(f"register: pass {name} exists, from {known.__code__.co_filename}: give yours another name")
        _users[name], _files[name] = function, _file(function)
        return function

    return add


def _file(function: Callable) -> str:
    return os.path.abspath(function.__code__.co_filename)


def passes_of(file: str) -> list[str]:
    """Names of the passes that a user's file registered."""
    return [name for name in _users if _files[name] == os.path.abspath(file)]


def users_passes() -> list[str]:
    """Names of the passes that users' files registered in this process."""
    return list(_users)


def is_users(name: str) -> bool:
    """Whether a pass is from a user's file."""
    return name in _users


def all_passes() -> dict[str, Callable]:
    """Name to function of every pass in this package."""
    _import_all()
    return dict(sorted(_passes.items()))


@functools.cache
def _import_all() -> None:
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")


def get_pass(name: str) -> Callable:
    """Looks a pass up; raises MlircError for an unknown name."""
    passes = all_passes() | _users
    if name not in passes:
        near = get_close_matches(name, list(passes), n=NEAREST, cutoff=0)
        others = f", or {len(passes) - len(near)} others" if len(passes) > len(near) else ""
        raise MlircError(f"unknown pass '{name}': choose one of {', '.join(near)}{others}")
    return passes[name]
