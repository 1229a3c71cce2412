"""MLIR text that a user gives: judged before this process parses it.

MLIR's parser is native code and recursive: deep nesting ends in a crash, aliases of aliases in all of the memory. So
the nesting is counted, and a copy of the process parses and prints the text first.
"""

from __future__ import annotations

import re
from pathlib import Path

from mlirc.apart import fails_apart
from mlirc.errors import MlircError
from mlirc.files.opening import exists

DEPTH = 256  # of brackets of all kinds; a model's has some twenty
_MEMORY = 3 << 30
_BRACKET = re.compile(r"""//[^\n]*|"(?:[^"\\\n]|\\.)*"|->|[<>]=|([(\[{<])|([)\]}>])""")
_ALIAS = re.compile(r"^[ \t]*([#!](?!loc)[\w$.-]+)[ \t]*=(.*)$", re.MULTILINE)
_REFERENCE = re.compile(r"[#!][\w$.-]+")
_EXPANDED = 10_000_000
_DIGITS = re.compile(r"(?<![\w\"])\d{4000}")
SEPARATOR = re.compile(r"^// -----.*\n", re.MULTILINE)


def judge_text(text: str, what: str) -> None:
    """Raises MlircError for text that MLIR's parser would not survive; text that is not valid MLIR is left to it."""
    depth = 0
    for match in _BRACKET.finditer(text):
        if match[1]:
            depth += 1
            if depth > DEPTH:
                line = text.count("\n", 0, match.start()) + 1
                raise MlircError(f"{what}:{line}: nested more than {DEPTH} deep, which no model's MLIR is")
        elif match[2]:
            depth = max(0, depth - 1)
    _judge_sizes(text, what)
    why = fails_apart(lambda: _parse(text), seconds=4 + len(text) / (1 << 18), memory=_MEMORY + 64 * len(text))
    if why:
        raise MlircError(f"{what}: MLIR's parser does not survive it ({why}): it is not MLIR that a tool would write")


def _judge_sizes(text: str, what: str) -> None:
    """Aliases of aliases that stand for more than memory holds, and numbers that take for ever to read."""
    sizes: dict[str, int] = {}
    for match in _ALIAS.finditer(text):
        sizes[match[1]] = 1 + sum(sizes.get(name, 1) for name in _REFERENCE.findall(match[2]))
        if sizes[match[1]] > _EXPANDED:
            raise MlircError(
                f"{what}: {match[1]} stands for more than {_EXPANDED:,} parts: no tool writes such aliases"
            )
    if digits := _DIGITS.search(text):
        raise MlircError(f"{what}: holds a number of {len(digits[0]):,} or more digits")


def require_level(file: Path) -> None:
    """Raises MlircError when a level that should lie beside a compiled model is not there."""
    if not exists(file):
        raise MlircError(f"{file}: cannot read level {file.stem} (no such file): mlirc writes it beside the PTX file")


def _parse(text: str) -> None:
    from mlirc.mlir import context, ir

    with context(), ir.Location.unknown():
        for part in SEPARATOR.split(text):
            str(ir.Module.parse(part))
