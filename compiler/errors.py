"""Errors meant for the person at the command line."""

from __future__ import annotations

import resource
import unicodedata
from typing import Any


class MlircError(Exception):
    """What was wrong, where, and what to do, in one line, whatever is quoted in it: a file's name, a library's words.
    Tools print it as `error: ...` and exit with status 1."""

    def __str__(self) -> str:
        return one_line(super().__str__())


def require_type(value: Any, kinds: type | tuple[type, ...], what: str, advice: str) -> None:
    """Raises MlircError, `what` is another thing, and what to give instead, unless a value is of one of these types."""
    if not isinstance(value, kinds):
        shown = f"{one_line(repr(value))[:60]}, " if isinstance(value, (str, bytes, int, float)) else ""
        raise MlircError(f"{what} is {shown}of type {type(value).__name__}: give {advice}")


# What turns the direction of writing.
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_control(character: str) -> bool:
    """Whether a terminal or a reader could be deceived with a character: control characters, lone surrogates, line and
    paragraph separators, and what turns the direction of writing."""
    return character in _DIRECTIONS or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def one_line(text: str) -> str:
    """A text as one line that is safe to print: white space is one space, control characters are written as escapes."""
    words = " ".join(text.split())
    return "".join(ascii(c)[1:-1] if is_control(c) else c for c in words)


# What libraries say who got no memory, to map a shared object among others.
_NO_MEMORY = ("can't allocate memory", "cannot allocate memory", "failed to map segment", "can't start new thread")


def memory_error(error: BaseException, doing: str = "") -> MlircError | None:
    """What to say of an exception for want of memory, `doing` something in words; None for any other one."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    is_limited = limit != resource.RLIM_INFINITY
    kinds = (MemoryError, SystemError) if is_limited else MemoryError  # Python's own code fails so without memory
    found: BaseException | None = error
    while found is not None:
        text = str(found).lower()
        if isinstance(found, kinds) or any(words in text for words in _NO_MEMORY):
            hint = f" (ulimit -v allows {limit >> 20:,} MiB)" if is_limited else ""
            while_ = f" while {doing}" if doing else ""
            return MlircError(f"out of memory{while_}{hint}: give the program more, or compile a smaller model")
        found = found.__cause__ or found.__context__
    return None


# Module to package of what compiling needs and running does not.
_COMPILER = {
    "torch": "torch",
    "torch_mlir": "torch-mlir",
    "llvmlite": "llvmlite",
    "transformers": "transformers",
    "safetensors": "safetensors",
    "rich": "rich",
}


def missing_package(error: ImportError) -> MlircError | None:
    """What to say of a module that is not installed, None when it is none of those that an installation for running
    only does without."""
    package = _COMPILER.get((error.name or "").partition(".")[0])
    if package is None:
        return None
    return MlircError(
        f"this needs the package {package}, and mlirc is installed here for running only: pip install 'mlirc[compiler]'"
    )
