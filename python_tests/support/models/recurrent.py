"""Models with loops over time steps, compiled and compared."""

from __future__ import annotations

import torch

from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target

STEP_BY_STEP = ("graph:recurrences=false",)  # a launch or more for each step, also of what could be one kernel


def compiled(module: torch.nn.Module, args: tuple, level: str = "ptx", schedules: tuple[str, ...] = ()) -> Compilation:
    """The module, lowered."""
    job = Compilation("model", get_target("sm_90a"), schedules, helpers=1)
    job.import_module(module, args, {})
    job.lower(level)
    return job


def leaves(value) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(value)


def assert_right(got, wanted) -> None:
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)
