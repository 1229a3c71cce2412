"""A script that is registered, as the registry and its knobs' checks know it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlirc.mlir import ir
from mlirc.schedule.kernel_info import KernelInfo


@dataclass(frozen=True)
class Script:
    """A registered script. `matches(kernel)` must be exact: a script that matches must be able to schedule. `user`: it
    is from a `--schedule FILE.py`."""

    name: str
    build: Callable[..., ir.Module]
    matches: Callable[[KernelInfo], bool]
    priority: int
    file: str
    user: bool = False

    @property
    def knobs(self) -> dict[str, Any]:
        """Knob names and their defaults (None: chosen from the kernel's shapes)."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}

    @property
    def place(self) -> str:
        return f"{self.file}:{self.build.__code__.co_firstlineno}"
