"""How the files in rules/ say what an operation does. All of them are found: a new file there is enough.

`@rule("scf.if")` is on `f(tr, op) -> step`, called once when a kernel is translated; step(state) reads and writes
`state.r[tr.reg(value)]`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

from mlirc.host.device import rules

_rules: dict[str, Callable] = {}


def rule(*names: str) -> Callable:
    """Registers the translation of operations."""

    def add(function: Callable) -> Callable:
        for name in names:
            if name in _rules:
                raise ValueError(f"two rules for {name}: {_rules[name].__module__} and {function.__module__}")
            _rules[name] = function
        return function

    return add


def waiting(step: Callable) -> Callable:
    """Marks a step as a generator: it may wait for other threads."""
    step.waits = True  # type: ignore[attr-defined]
    return step


@functools.cache
def all_rules() -> dict[str, Callable]:
    """Every operation's translation, from all files in rules/."""
    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
    return _rules
