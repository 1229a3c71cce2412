"""What one compilation takes over from an earlier one of the same model, so that a new schedule costs only the kernels
that it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mlirc.driver.kernel_build import KernelBuild, KernelJob

if TYPE_CHECKING:
    from mlirc.mlir import ir


@dataclass(frozen=True)
class Earlier:
    """The results of an earlier compilation, each with all that it was made from. None of it is ever changed.

    `kernels` is the `kernels` level that the graph script `graph` made of the model; `builds` are compiled kernels, by
    name, and `jobs` what they were compiled from.
    """

    graph: str = ""
    kernels: Any = None
    jobs: Mapping[str, KernelJob] = field(default_factory=dict)
    builds: Mapping[str, KernelBuild] = field(default_factory=dict)

    def build(self, job: KernelJob) -> KernelBuild | None:
        """The kernel, if it was compiled from just this; locations count, since they show in the `gpu` level."""
        known = self.jobs.get(job.name)
        return replace(self.builds[job.name], cached=True) if known == job and job.name in self.builds else None


def identity(script: ir.Module) -> str:
    """A script as text, with the line that made each of its operations: what two scripts that do the same share."""
    from mlirc.mlir import nested
    from mlirc.schedule.errors import script_place

    places = [script_place(str(op.location)) for op in nested(script.operation)]
    return "\n".join([str(script), *places])


def runs_user_code(script: ir.Module) -> bool:
    """Whether a script asks for passes, transform ops or instructions of a user's, whose meaning its text does not
    tell."""
    from mlirc.dialects.schedule import users_ops
    from mlirc.passes import users_passes
    from mlirc.passes.distribute.instructions import users_instructions

    text, quoted = str(script), (*(f"schedule.{op}" for op in users_ops()), *users_instructions())
    return any(name in text for name in [*users_passes(), *(f'"{name}"' for name in quoted)])
