"""Is a compiled model right? Every level beside PyTorch, on several kinds of inputs; see docs/checking.md.

The parts are imported when they are asked for: a command line is judged without PyTorch and MLIR.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlirc.errors import MlircError

if TYPE_CHECKING:
    from mlirc.check.result import Result
    from mlirc.check.run import check_job, check_torch

LEVELS = ("linalg", "kernels", "tiles", "gpu", "ptx")
DEFAULT_LEVELS = ("linalg", "kernels", "tiles", "gpu")
_HOME = {"Result": "result", "check_job": "run", "check_torch": "run"}

__all__ = ["DEFAULT_LEVELS", "LEVELS", "Result", "check_job", "check_torch", "parse_levels"]


def parse_levels(words: Sequence[str]) -> list[str]:
    """The levels that the words after `--check` name; raises MlircError for one that there is not."""
    levels = [level for word in words for level in word.split(",") if level]
    for level in levels:
        if level not in LEVELS:
            raise MlircError(f"--check: '{level}' is not one of {', '.join(LEVELS)} (MODEL goes before --check)")
    return levels


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
