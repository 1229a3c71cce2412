"""The problems of a folder, as benchmark cases. Runs none of their code, and needs neither torch nor MLIR."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from mlirc.bench.cases import Case
from mlirc.errors import MlircError

_NAMES = {"Model", "get_inputs", "get_init_inputs"}


def is_problem(text: str) -> bool:
    """Whether Python source defines what a problem file must, at its top level."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    found = {n.name for n in body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    return found >= _NAMES


def find_problems(named: Sequence[str]) -> list[Case]:
    """One case per problem file under the folders (or files) named, in the order that a reader counts in; its suite is
    the folder that it lies in. Raises MlircError for a folder without any."""
    cases: dict[str, Case] = {}
    for name in named:
        top = Path(name)
        if not top.exists():
            raise MlircError(f"{name}: no such file or directory")
        files = sorted(top.rglob("*.py"), key=lambda p: counted(str(p))) if top.is_dir() else [top]
        texts = {path: path.read_text(errors="replace") for path in files if path.is_file()}
        problems = {path: text for path, text in texts.items() if is_problem(text)}
        if not problems:
            raise MlircError(f"{name}: holds no problem: a Python file with Model, get_inputs() and get_init_inputs()")
        for path, text in problems.items():
            case = _case(top, path, text)
            if case.name in cases:
                raise MlircError(f"{path}: a second problem named {case.name}")
            cases[case.name] = case
    return list(cases.values())


def _case(top: Path, path: Path, text: str) -> Case:
    level = path.parent.name if top.is_dir() and path.parent != top else path.resolve().parent.name
    return Case(f"{level}/{path.stem}", level, "problem", {"path": str(path), "source": text}, {}, "f32")


def counted(path: str) -> list[tuple[int, str]]:
    """A key that sorts `2_x` before `10_x`, in every part of a path."""
    return [(int(word), "") if word.isdigit() else (1 << 60, word) for word in re.split(r"(\d+)", path)]
