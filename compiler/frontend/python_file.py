"""`FILE.py:name`: a kernel of the user's own, or a factory, in a Python file. Needs no MLIR."""

from __future__ import annotations

import os
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError
from mlirc.files.opening import read_text
from mlirc.frontend.diagnose import first_line


def load_name(path: str, name: str) -> Any:
    """What a Python file has under a name, after its code was run. Raises MlircError at the line that failed."""
    module = _module(path)
    if not hasattr(module, name):
        kernels = [n for n, value in vars(module).items() if getattr(value, "is_kernel", False)]
        there = f"its kernels are {', '.join(kernels)}" if kernels else "it has no kernel (decorate one with @kernel)"
        raise MlircError(f"{path}: has no '{name}': {there}")
    return getattr(module, name)


def only_kernel(path: str) -> Any:
    """The one kernel of a Python file; None where it has none. Raises MlircError where it has several."""
    found = {n: value for n, value in vars(_module(path)).items() if getattr(value, "is_kernel", False)}
    if len(found) > 1:
        raise MlircError(f"{path}: has {len(found)} kernels: name one, as {path}:{next(iter(found))}")
    return next(iter(found.values()), None)


def _module(path: str) -> types.ModuleType:
    """The file as a module, run anew; its folder is importable meanwhile."""
    source = read_text(Path(path))
    module = types.ModuleType(f"mlirc_file_{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look their module up
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except MlircError:
        raise
    except SyntaxError as e:
        raise MlircError(f"{e.filename or path}:{e.lineno}: {e.msg}") from e
    except (Exception, SystemExit) as e:
        line = _line_in(path, e)
        raise MlircError(f"{path}{line}: running it failed: {type(e).__name__}: {first_line(str(e))}") from e
    finally:
        sys.path.remove(folder)
    return module


def _line_in(path: str, error: BaseException) -> str:
    lines = [
        f.lineno
        for f in traceback.extract_tb(error.__traceback__)
        if os.path.abspath(f.filename) == os.path.abspath(path)
    ]
    return f":{lines[-1]}" if lines else ""
