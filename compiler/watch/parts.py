"""A compilation as plain data, to travel between processes: everything that a schedule decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlirc.driver.compilation import Compilation

_STATE = ("records", "schedule_text", "builds", "plan", "ptx", "checked", "_graph", "_jobs")


@dataclass(frozen=True)
class Parts:
    """`modules` are levels as text with locations; a level that the receiver has already is not among them."""

    schedules: tuple[str, ...]
    modules: dict[str, str]
    state: dict[str, Any]


def take_apart(job: Compilation, base: Compilation) -> Parts:
    """What of `job` is not in `base`, from which it was derived."""
    known = {id(m) for m in (*base.modules.values(), base.results().kernels)}
    modules = {n: m.operation.get_asm(enable_debug_info=True) for n, m in job.modules.items() if id(m) not in known}
    return Parts(job.schedules, modules, {name: getattr(job, name) for name in _STATE})


def put_together(parts: Parts, base: Compilation) -> Compilation:
    """The compilation that `take_apart` was given, on the modules of `base`."""
    from mlirc import mlir

    job = base.derive(parts.schedules)
    if job._given != "kernels":
        job.modules["kernels"] = base.results().kernels
    job.modules |= {name: mlir.parse(text, name) for name, text in parts.modules.items()}
    for name, value in parts.state.items():
        setattr(job, name, value)
    return job
