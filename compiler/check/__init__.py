"""Is a compiled model right? Every level beside PyTorch, on several kinds of inputs; see docs/checking.md.

The parts are imported when they are asked for: a command line is judged without PyTorch and MLIR.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mlirc.check.chosen import DEFAULT_LEVELS, LEVELS, parse_levels

if TYPE_CHECKING:
    from mlirc.check.live import check_torch
    from mlirc.check.result import Result
    from mlirc.check.run import check_job

_HOME = {"Result": "result", "check_job": "run", "check_torch": "live"}

__all__ = ["DEFAULT_LEVELS", "LEVELS", "Result", "check_job", "check_torch", "parse_levels"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
