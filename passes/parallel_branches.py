"""`mlirc-parallel-branches`: lets the branches of a model that do not depend on each other run at the same time.

A `kernels`-level pass, which marks `@main` (`mlirc.branches`): the plan's launches wait for what they need alone
(`mlirc.backend.plan_branches`).
"""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.ir.levels import BRANCHES
from mlirc.mlir import ir
from mlirc.passes import register
from mlirc.passes.graph.outline import main_function


@register("mlirc-parallel-branches")
def run(module: ir.Module, **options: str) -> None:
    """Marks `@main`, in place. Raises MlircError for an option: it has none."""
    if options:
        raise MlircError("mlirc-parallel-branches has no options")
    main_function(module).attributes[BRANCHES] = ir.UnitAttr.get(module.context)
