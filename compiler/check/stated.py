"""What kernels are judged by where their scripts or instructions state something else than PyTorch's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from mlirc.check.compare import Reference
from mlirc.check.gates import GATES
from mlirc.check.levels import level_runner
from mlirc.ir import levels
from mlirc.mlir import ir


@dataclass
class StatedOfLevel:
    """What is stated of the kernels that a level runs: the relative error that it adds up to, `lines` that say so, and
    the `kernels` level with their references in it, where some have one of their own."""

    tolerance: float = 0.0
    lines: list[str] = field(default_factory=list)
    module: ir.Module | None = None

    def references(
        self, inputs: Sequence[Sequence[torch.Tensor]], tensors: Mapping[str, torch.Tensor]
    ) -> list[list[Reference]]:
        """What is right on each of the inputs by those references; nothing where no kernel has one."""
        if self.module is None:
            return []
        run = level_runner(SimpleNamespace(modules={"kernels": self.module}), "kernels", tensors)
        return [[Reference(t, t) for t in run(given)] for given in inputs]


def stated_of(job: Any, level: str) -> StatedOfLevel:
    """What holds for a level of a compilation: instructions compute at `gpu` and in PTX, scripts from `tiles` on."""
    if level not in ("tiles", "gpu", "ptx") or "tiles" not in job.modules:
        return StatedOfLevel()
    found = StatedOfLevel()
    module, own = job.modules["kernels"], {}
    calls = levels.calls(module)
    for name, what in levels.stated(job.modules["tiles"]).items():
        if what.reference is not None:
            own[name] = levels.as_stated(module, name, levels.Stated(reference=what.reference))
        tolerance = what.tolerance + (GATES[what.rounds] if what.rounds and level != "tiles" else 0.0)
        if tolerance or what.reference is not None:
            found.tolerance += calls[name] * tolerance
            found.lines.append(f"{name}: {what}")
    found.module = levels.replace(module, own) if own else None
    return found
