"""A user's schedule files: `FILE.py`, whose code runs here, and `FILE.mlir`, printed scripts that were edited."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mlirc.errors import MlircError
from mlirc.files.opening import exists, read_bytes, shorten
from mlirc.ir.text import judge_text
from mlirc.mlir import context, ir, nested
from mlirc.schedule.errors import python_error
from mlirc.schedule.time_limit import limited_time
from mlirc.schedule.user_code import UserCode

ENTRY = "__transform_main"
_loading: str = ""


def loading_file(function: Callable) -> str:
    """The `FILE.py` that is being loaded and that `function` is of, or of a module that it imports; where none is, the
    file of `function` itself, of a program that imports mlirc; "" for our own."""
    if function.__module__.startswith("mlirc."):
        return ""
    return _loading or str(getattr(sys.modules.get(function.__module__), "__file__", "") or function.__module__)


def is_loading() -> bool:
    """Whether a `--schedule FILE.py` is being loaded."""
    return bool(_loading)


@contextlib.contextmanager
def script_code(file: str, line: int | None = None) -> Iterator[None]:
    """Runs code of a script's file: what goes wrong in it becomes an MlircError at its line (or at `line`), and what it
    prints goes to standard error, since standard output is for what was asked for."""
    try:
        with contextlib.redirect_stdout(sys.stderr), limited_time():
            yield
    except (KeyboardInterrupt, MlircError):
        raise
    except BaseException as e:
        raise python_error(file, e, line) from e


def load_python(path: str, code: UserCode) -> None:
    """Runs a user's file, which registers scripts, passes and transform ops, as a part of `code`. Raises MlircError at
    its line."""
    global _loading
    _read(path)
    outer, _loading = _loading, path
    try:
        with script_code(path), context(), ir.Location.unknown():
            code.load(path)
        _codes[os.path.abspath(path)] = code
    finally:
        _loading = outer


_codes: dict[str, UserCode] = {}  # of the files that this process has loaded, the latest of each


def was_loaded(path: str) -> bool:
    """Whether this process has run a user's file."""
    return os.path.abspath(path) in _codes


def _read(path: str) -> str:
    """The file's text; raises MlircError that names the line of what is no UTF-8."""
    if not exists(path):
        raise MlircError(f"--schedule {shorten(path)}: no such file")
    data = read_bytes(path, "--schedule")
    try:
        text = data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as e:
        line = data[: e.start].count(b"\n") + 1
        raise MlircError(f"{path}:{line}: not a text file: byte {data[e.start]:#04x} is no UTF-8") from e
    if "\0" in text:
        raise MlircError(
            f"{path}:{text[: text.index(chr(0))].count(chr(10)) + 1}: not a text file: it holds a zero byte"
        )
    return text


@dataclass
class FileScript:
    """A transform module from a .mlir file, for the kernels (names or kinds) that its `mlirc.kernels` lists."""

    file: str
    line: int
    module: ir.Module
    kernels: list[str]
    met: set[str] = field(default_factory=set)  # which of `kernels` some kernel had

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def load_mlir(path: str) -> list[FileScript]:
    """The scripts of a .mlir file, with its lines as locations; raises MlircError for what is none."""
    text = _read(path)
    judge_text(text, f"--schedule {path}")
    lines = text.split("\n")
    found: list[FileScript] = []
    start = 0
    for end in [i for i, line in enumerate(lines) if line.startswith("// -----")] + [len(lines)]:
        chunk = "\n".join(lines[start:end])
        # empty lines in front keep the file's line numbers in the locations
        padded = "\n" * start + chunk
        first = start + next((i for i, line in enumerate(lines[start:end], 1) if re.match(r"\s*[^/\s]", line)), 1)
        start = end + 1
        if any(line.strip() and not line.strip().startswith("//") for line in chunk.split("\n")):
            found.append(_file_script(path, first, padded))
    if not found:
        raise MlircError(f"--schedule {path}: it holds no script: give one as --emit schedule prints it")
    seen: dict[str, FileScript] = {}
    for part in found:
        for kernel in part.kernels:
            if kernel in seen:
                raise MlircError(f"{part.place}: a second script for '{kernel}': {seen[kernel].place} has one")
            seen[kernel] = part
    return found


def _file_script(path: str, line: int, text: str) -> FileScript:
    with context():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as e:
            raise MlircError(_parse_error(path, line, str(e))) from e
        relocate(module, path)
        attributes = module.operation.attributes
        if "mlirc.kernels" not in attributes:
            raise MlircError(
                f'{path}:{line}: name the kernels or kinds: module attributes {{mlirc.kernels = ["matmul"]}}'
            )
        listed = attributes["mlirc.kernels"]
        names = list(ir.ArrayAttr(listed)) if isinstance(listed, ir.ArrayAttr) else [listed]
        if not names or not all(isinstance(n, ir.StringAttr) for n in names):
            raise MlircError(f'{path}:{line}: mlirc.kernels lists kernels or kinds, as ["matmul"], not {listed}')
        if not any(is_entry(op.operation) for op in module.body.operations):
            raise MlircError(f"{path}:{line}: the script has no transform.named_sequence @{ENTRY}")
        return FileScript(path, line, module, [ir.StringAttr(n).value for n in names])


def _parse_error(path: str, line: int, text: str) -> str:
    """MLIR's first complaint about a script, at its line."""
    found = re.search(r'"-":(\d+):\d+\)?: *(.*)', text)
    what = " ".join((found[2] if found else text).split())
    return f"{path}:{found[1] if found else line}: not valid MLIR: {what}"


def is_entry(op: ir.Operation) -> bool:
    """Whether a top-level op of a script is its `@__transform_main`."""
    named = op.name == "transform.named_sequence" and "sym_name" in op.attributes
    return named and ir.StringAttr(op.attributes["sym_name"]).value == ENTRY


_UNNAMED = re.compile(r'loc\("-":(\d+):(\d+)\)')


def relocate(module: ir.Module, file: str) -> None:
    """Gives the ops of a module that was parsed from a text the name of the file it came from."""
    with module.context:
        for op in [module.operation, *nested(module.operation)]:
            found = _UNNAMED.fullmatch(str(op.location))
            if found:
                op.location = ir.Location.file(file, int(found[1]), int(found[2]))


def call(file: str, function: Callable, *args: Any, **named: Any) -> Any:
    """Calls a function of a script's file under `script_code`, with its modules importable."""
    code = _codes.get(os.path.abspath(file))
    with (
        code.active() if code else contextlib.nullcontext(),
        script_code(file, getattr(getattr(function, "__code__", None), "co_firstlineno", None)),
    ):
        return function(*args, **named)
