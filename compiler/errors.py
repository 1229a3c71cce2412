"""Errors meant for the person at the command line."""

from __future__ import annotations

import unicodedata


class MlircError(Exception):
    """What was wrong, where, and what to do, in one line. Tools print it as `error: ...` and exit with status 1."""


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
