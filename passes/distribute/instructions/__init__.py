"""Instructions that make products of tiles, a class per file: `@instruction` registers one under its name, which is
what the attribute `mma` of a schedule holds. A new instruction is a new file and nothing else; a `--schedule FILE.py`
may define one, too."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import re
import sys
from typing import Any

from mlirc.passes.distribute.instructions.base import Instruction
from mlirc.passes.distribute.products.geometry import BlockProduct, ElementTypes, Spread
from mlirc.schedule.attributes import listed, offer
from mlirc.schedule.errors import VerbError
from mlirc.schedule.user import call, loading_file
from mlirc.targets import Target

__all__ = [
    "BlockProduct", "ElementTypes", "Instruction", "Spread", "all_instructions", "ask", "automatic", "defined_in",
    "fitting", "instruction", "refusal", "users_instructions",
]  # fmt: skip

_own: dict[str, Instruction] = {}
_users: dict[str, Instruction] = {}  # of `--schedule FILE.py`
_paths: dict[str, str] = {}  # where those are from


def instruction(cls: type[Instruction]) -> type[Instruction]:
    """Registers an instruction under its `name`. A user's raises VerbError for a name that is none, or is taken; a file
    that is loaded again may define its own again."""
    if not isinstance(cls, type) or not issubclass(cls, Instruction):
        raise VerbError(f"instruction: decorate a class that is an Instruction, not {cls!r}")
    cls.file = loading_file(cls) or sys.modules[cls.__module__].__file__ or ""
    if not loading_file(cls):
        _own[cls.name] = cls()
        return cls
    if not isinstance(cls.name, str) or not re.fullmatch(r"[a-z]\w*", cls.name):
        raise VerbError(f"instruction: a name is letters, digits and underscores, not {cls.name!r}")
    known = all_instructions().get(cls.name)
    if known is not None and os.path.abspath(known.file) != os.path.abspath(cls.file):
        raise VerbError(
            f"instruction: '{cls.name}' exists, from {os.path.relpath(known.file)}: give yours another name"
        )
    _users[cls.name], _paths[cls.name] = cls(), os.path.abspath(cls.file)
    return cls


def defined_in(file: str) -> list[str]:
    """Names of the instructions that a user's file defined."""
    return [name for name in _users if _paths[name] == os.path.abspath(file)]


def users_instructions() -> list[str]:
    """Names of the instructions that users' files defined in this process."""
    return list(_users)


def all_instructions() -> dict[str, Instruction]:
    """Name to instruction: those of this package, and those of users' files."""
    _import_all()
    return dict(sorted(_own.items())) | _users


@functools.cache
def _import_all() -> None:
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")


def ask(i: Instruction, question: str, *arguments: Any) -> Any:
    """Calls a method of an instruction. What goes wrong in a user's is an MlircError at its line."""
    method = getattr(i, question)
    if _users.get(i.name) is not i:
        return method(*arguments)
    return call(i.file, method, *arguments)


def fitting(types: ElementTypes, target: Target | None) -> list[Instruction]:
    """The instructions that take a product, those first that are chosen for it where a schedule names none."""
    found = [i for i in all_instructions().values() if not ask(i, "refuses", types, target)]
    return sorted(found, key=lambda i: -i.preference)


def automatic(types: ElementTypes, target: Target | None) -> Instruction:
    """The instruction of a product whose schedule names none: one of ours, since a helper process that compiles a
    kernel knows a user's instructions only if the kernel names one."""
    return next(i for i in fitting(types, target) if i.preference and _own.get(i.name) is i)


def refusal(name: str, types: ElementTypes, target: Target | None) -> str:
    """Why an instruction of this name does not make a product, in one line, and which do; "" where it does."""
    known = all_instructions()
    if name not in known:
        return f"choose {listed(list(known))}"
    why = ask(known[name], "refuses", types, target)
    return f"{why}: use {listed([i.name for i in fitting(types, target)])}" if why else ""


offer("mma", lambda: list(all_instructions()))
