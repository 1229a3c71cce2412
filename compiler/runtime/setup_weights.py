"""The weights of a model whose plan computes something of them once, at load.

What is computed so is right as long as the weights stay as they are. Those that the model holds copies of do, and those
of a caller who says so (`frozen`); what else is used in place may change at any time, and then every run computes it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from mlirc.runtime.plan import Plan
from mlirc.runtime.repeats import PlanStep, references


def weights_read(steps: Iterable[PlanStep]) -> set[int]:
    """The numbers of the weights that steps use."""
    return {ref.index for step in steps for ref in references(step) if ref.space == "weight"}


def steps_of_a_run(plan: Plan, changing: Container[int]) -> list[PlanStep]:
    """The steps that each run goes through, where the weights of these numbers may change between runs: without those
    at load, unless one of them reads such a weight."""
    if any(number in changing for number in weights_read(plan.steps[: plan.setup])):
        return plan.steps
    return plan.steps[plan.setup :]


def done_with(plan: Plan, run: list[PlanStep]) -> set[int]:
    """The numbers of the weights that steps at load use and those of a run do not, so that they need not stay."""
    return weights_read(plan.steps[: plan.setup]) - weights_read(run)
