"""A whole launch plan executed by its PTX in one arena: what `@main` computes, to the bit; a plan that does something
else computes something else."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from mlirc.device import HostModel
from mlirc.device.ptx import run_plan
from mlirc.driver.compilation import HOST_LEVELS, Compilation
from mlirc.errors import MlircError
from mlirc.host.level_files import Levels
from mlirc.runtime.plan import CopyStep
from mlirc.targets import get_target


class Mixed(torch.nn.Module):
    """Intermediate results of several sizes, two outputs, and a view that starts at an odd address."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(13, 37), torch.nn.Linear(37, 13)

    def forward(self, x):
        h = torch.softmax(self.up(x), -1)
        y = self.down(h - h.amax(0)) + x
        return torch.softmax(y[1:], -1) @ self.down.weight, h.sum(0)


@pytest.fixture(scope="module")
def compiled():
    job = Compilation("mixed", get_target("sm_90a"), helpers=0)
    x = torch.randn(7, 13, generator=torch.Generator().manual_seed(1))
    job.import_module(Mixed().eval(), (x,), {})
    job.lower("ptx")
    given = {name: t.detach().numpy() for name, t in job.tensors().items()} | {job.plan.inputs[0].name: x.numpy()}
    levels = Levels.of({level: job.text(level) for level in HOST_LEVELS}, job.plan)
    return job, given, HostModel(job.name, job.plan, job.tensors(), levels=levels)(x.numpy())


def same(found, right) -> bool:
    return all(a.tobytes() == np.asarray(b).tobytes() for a, b in zip(found, right, strict=True))


def test_it_computes_what_main_does(compiled):
    job, given, right = compiled
    assert len(job.plan.steps) > 4 and same(run_plan(job.ptx, job.plan, given), right)


def test_a_plan_that_does_something_else_computes_something_else(compiled):
    job, given, right = compiled
    steps, changed = job.plan.steps, []
    for i, step in enumerate(steps):
        changed.append((f"without step {i}", [*steps[:i], *steps[i + 1 :]]))
        refs = [step.source, step.target] if isinstance(step, CopyStep) else list(step.args)
        for k, ref in enumerate(refs):
            if ref.space == "arena":
                moved = copy.copy(refs)
                moved[k] = dataclasses.replace(ref, offset=(ref.offset + 256) % job.plan.arena_size)
                if isinstance(step, CopyStep):
                    other = CopyStep(*moved)
                else:
                    other = dataclasses.replace(step, args=tuple(moved))
                changed.append((f"step {i}, argument {k}", [*steps[:i], other, *steps[i + 1 :]]))
    unseen = []
    for what, other in changed:
        try:
            if same(run_plan(job.ptx, dataclasses.replace(job.plan, steps=other), given), right):
                unseen.append(what)
        except MlircError:
            pass
    assert len(changed) > 10 and unseen == []
