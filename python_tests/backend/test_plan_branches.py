"""Branches that do not depend on each other: which steps wait for which, what they share, and who notices mistakes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mlirc.backend.plan_branches import find_branches
from mlirc.backend.plan_views import Buffer, Step, View
from mlirc.device.model import DeviceModel
from mlirc.device.plan.check import FileCheck
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.runtime.plan import Extent, KernelLaunch, Plan
from mlirc.runtime.plan_check import check_plan
from mlirc.runtime.plan_json import from_json, to_json
from mlirc.targets import get_target


def step(reads: str, writes: str, **more) -> Step:
    """A launch on buffers that are called by letters."""
    views = [View(ord(name), 0, 4) for name in reads + writes]
    return Step(tuple(views), KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, (), **more), tuple(views[len(reads) :]))


def ended(after: dict[int, tuple[int, ...]], count: int) -> list[set[int]]:
    """For each step, those that have ended when it begins."""
    found: list[set[int]] = []
    for number in range(count):
        waits = after.get(number, (number - 1,) if number else ())
        found.append(set(waits).union(*(found[n] for n in waits)))
    return found


def test_steps_wait_for_what_they_read_and_for_who_uses_what_they_write():
    steps = [step("x", "a"), step("a", "b"), step("a", "c"), step("c", "d"), step("bd", "e"), step("e", "b")]
    assert find_branches(steps, 0).after == {2: (0,), 4: (1, 3)}
    assert find_branches([step("x", "a"), step("a", "b"), step("x", "a")], 0).after == {}


def test_what_runs_alone_waits_for_all_and_all_wait_for_it():
    steps = [step("x", "a"), step("x", "b"), step("x", "c", cooperative=True), step("x", "d"), step("x", "e")]
    assert find_branches(steps, 0).after == {1: (), 2: (0, 1), 4: (2,)}
    steps[2] = step("x", "c", extents={0: Extent(0)})
    assert find_branches(steps, 0).after == {1: (), 2: (0, 1), 4: (2,)}
    steps[2] = step("x", "c")
    assert find_branches(steps, 0).after == {1: (), 2: (), 3: (), 4: ()}


def test_what_runs_at_load_has_ended():
    steps = [step("w", "a"), step("w", "b"), step("xb", "c"), step("x", "d"), step("cd", "e")]
    assert find_branches(steps, 2).after == {3: (), 4: (2, 3)}


@pytest.mark.parametrize("seed", range(20))
def test_no_two_steps_at_the_same_time_use_what_one_writes(seed):
    rng = np.random.default_rng(seed)
    names = "abcdefgh"
    steps = []
    for _ in range(rng.integers(1, 25)):
        reads = "".join(rng.choice(list(names + "x"), rng.integers(1, 4), replace=False))
        steps.append(step(reads, str(rng.choice(list(names))), cooperative=bool(rng.random() < 0.1)))
    branches = find_branches(steps, 0)
    before = ended(branches.after, len(steps))
    for a, b in itertools.combinations(range(len(steps)), 2):
        first, second = ({v.buffer for v in s.views} for s in (steps[a], steps[b]))
        written = {v.buffer for v in steps[a].written} & second | {v.buffer for v in steps[b].written} & first
        assert a in before[b] or not written
        if branches.after and a not in before[b]:
            # Buffers of the one and of the other are held at the same time, whatever else is.
            one, other = (branches.lifetime(Buffer("arena", 4, first=n, last=n)) for n in (a, b))
            assert one.first <= other.last and other.first <= one.last


class Block(nn.Module):
    """Four branches of one input, as Inception has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(24, n) for n in (8, 16, 24, 8))
        self.second = nn.ModuleList(nn.Linear(n, n) for n in (8, 16, 24, 8))

    def forward(self, x):
        inner = [torch.relu(layer(x)) for layer in self.first]
        return torch.cat([torch.softmax(f(y), -1) for f, y in zip(self.second, inner, strict=True)], -1)


@pytest.fixture(scope="module")
def built() -> tuple[Compilation, Block, torch.Tensor]:
    torch.manual_seed(3)
    block, x = Block().eval(), torch.randn(5, 24)
    job = Compilation("block", get_target("sm_90a"), ("graph:branches=true",), helpers=1)
    job.import_module(block, (x,), {})
    job.lower("ptx")
    return job, block, x


def check(job: Compilation, plan: Plan) -> list[str]:
    found = FileCheck(plan, DeviceModel.parse(job.text("gpu")), job.text("gpu"), Path("m.ptx"), None).of_plan()
    return [str(f) for f in found]


def test_branches_of_a_model_run_at_the_same_time(built):
    job, _, _ = built
    plan = job.plan
    assert plan.after and from_json(to_json(plan)) == plan
    count = len(plan.steps)
    before = ended({n: plan.waits(n) for n in range(count)}, count)
    assert sum(a not in before[b] for a, b in itertools.combinations(range(plan.setup, count), 2)) >= 12
    assert check(job, plan) == []


def test_a_step_that_does_not_wait_for_what_it_reads_is_found(built):
    job, _, _ = built
    number = max(job.plan.after)
    for lost in job.plan.after[number]:
        data = json.loads(to_json(job.plan))
        (row,) = [row for row in data["after"] if row[0] == number]
        row[1].remove(lost)
        found = check(job, from_json(json.dumps(data)))
        assert any(f"may run at the same time as step {lost}" in f for f in found)


def test_memory_that_is_shared_at_the_same_time_is_found(built):
    job, _, _ = built
    in_order = Compilation("block", get_target("sm_90a"), helpers=1)
    in_order.import_module(*(built[1], (built[2],), {}))
    in_order.lower("ptx")
    assert in_order.plan.after == {} and len(in_order.plan.steps) == len(job.plan.steps)
    in_order.plan.after = job.plan.after
    assert any("may run at the same time" in f for f in check(in_order, in_order.plan))


@pytest.mark.parametrize(
    ("after", "why"),
    [({2: (2,)}, "step 2 waits for"), ({1: (5,)}, "step 1 waits for"), ({99: ()}, "step 99 is no step of a run")],
)
def test_a_plan_whose_steps_wait_for_no_earlier_ones_is_refused(built, after, why):
    plan = from_json(to_json(built[0].plan))
    plan.after = after
    with pytest.raises(MlircError, match=why):
        check_plan(plan)
