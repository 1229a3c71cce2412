"""Passes written in Python, one per file. Each takes a module of one level and changes it in place.

A pass is a function `run(module: ir.Module, **options: str) -> None` registered with `@register("mlirc-name")`.
The registry imports every file of this package, so that a new pass is a new file and nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from mlirc.errors import MlircError

_passes: dict[str, Callable] = {}


def register(name: str) -> Callable[[Callable], Callable]:
    """Registers a pass under its command-line name."""

    def add(function: Callable) -> Callable:
        _passes[name] = function
        return function

    return add


def all_passes() -> dict[str, Callable]:
    """Name to function of every pass in this package."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")
    return dict(sorted(_passes.items()))


def get_pass(name: str) -> Callable:
    """Looks a pass up; raises MlircError for an unknown name."""
    passes = all_passes()
    if name not in passes:
        raise MlircError(f"unknown pass '{name}': choose one of {', '.join(passes)}")
    return passes[name]
