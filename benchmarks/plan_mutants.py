"""Writes results/plan-mutants.md: what the host device says to every mutant of launch plans, and of the PTX behind
them, each with its checksum renewed. Needs no GPU; takes some minutes, a process for
each core:

    python benchmarks/plan_mutants.py [--jobs 16]
"""

from __future__ import annotations

import functools
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import side_by_side
import tests_path  # noqa: F401
import torch

from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.mutants.plans import KINDS, PlanCase, model_text, plan_mutants, ptx_mutants, ptx_of, resign

VERDICTS = ("refused", "found", "missed", "other", "same")
_HEAD = (
    "| {} | mutants | refused at load | reported | missed | reported, same numbers | no effect |\n|---|" + "---:|" * 6
)


class Block(torch.nn.Module):
    """A transformer block of odd sizes, with a slice that is not aligned and a result that is used later."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(20), torch.nn.Linear(20, 36), torch.nn.Linear(36, 20)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = self.norm(x)
        h = torch.nn.functional.scaled_dot_product_attention(a[None], a[None], a[None])[0] + x
        y = self.down(torch.nn.functional.gelu(self.up(h))) + h
        return y * mask, y[1:, :3].exp()


def of_torch(module: torch.nn.Module, args: tuple, train: bool = False) -> PlanCase:
    """A live module, compiled."""
    job = Compilation("model", get_target("sm_90a"), helpers=1)
    job.import_module(module, args, {}, train)
    job.lower("ptx")
    return PlanCase(job, list(args))


def of_text() -> PlanCase:
    """The model of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.mlir"
        path.write_text(model_text())
        job = Compilation("m", get_target("sm_90a"), helpers=1)
        job.open(str(path))
        job.lower("ptx")
    rng = np.random.default_rng(0)
    made = {name: rng.standard_normal((5, 3)).astype(np.float32) for name in "xywvc"}
    inputs = [torch.from_numpy(made.pop(name)) for name in "xy"]
    return PlanCase(job, inputs, made)


def cases() -> dict[str, Callable[[], PlanCase]]:
    """The models, each made when it is its turn."""
    torch.manual_seed(0)
    dropout = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 12),
                                  torch.nn.Dropout(0.5))  # fmt: skip
    return {
        "a loop with a stack, a constant at load": of_text,
        "a transformer block": lambda: of_torch(Block().eval(), (torch.randn(7, 20), torch.randn(7, 20))),
        "a GRU": lambda: of_torch(torch.nn.GRU(5, 7).eval(), (torch.randn(4, 3, 5),)),
        "a model that draws random numbers": lambda: of_torch(dropout.train(), (torch.randn(5, 12),), train=True),
    }


@functools.lru_cache(maxsize=1)
def made(name: str) -> PlanCase:
    case = cases()[name]()
    assert case.says(case.job.ptx) == [] and case.checker(case.job.ptx).of_text() == []
    return case


def judge(work: side_by_side.Part) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, bool]]]:
    """A part of a model's mutants: of its plan by what was changed and the verdict, of its PTX by how it was changed
    and whether that is reported."""
    name, part, parts = work
    case = made(name)
    mine = itertools.islice(plan_mutants(case.job.plan), part, None, parts)
    plans = Counter((m.what, case.judge(m, thorough=True)) for m in mine)
    edited = itertools.islice(dict.fromkeys(ptx_mutants(ptx_of(case.job.ptx))), part, None, parts)
    edits = Counter((how, bool(case.checker(resign(case.job.ptx, ptx)).of_text())) for how, ptx in edited)
    return plans, edits


def main() -> int:
    start = time.perf_counter()
    plans: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in cases()}
    edits: Counter[tuple[str, bool]] = Counter()
    workers = side_by_side.jobs(__doc__)
    for name, (found, edited) in side_by_side.shared(judge, plans, workers, died := []):
        plans[name] += found
        edits += edited
        print(f"{name}: {dict(plans[name])} {time.perf_counter() - start:.0f} s", flush=True)
    return side_by_side.write("plan-mutants.md", report(plans, edits, time.perf_counter() - start, workers), died)


def report(
    plans: dict[str, Counter[tuple[str, str]]], edits: Counter[tuple[str, bool]], seconds: float, cores: int
) -> str:
    """The page, in Markdown."""
    total: Counter[str] = Counter()
    for counts in plans.values():
        for (_, verdict), n in counts.items():
            total[verdict] += n
    said, harmful = total["refused"] + total["found"], total["refused"] + total["found"] + total["missed"]
    lines = [
        "# Mutants of launch plans and of PTX on the host device", "",
        f"Made by `python benchmarks/plan_mutants.py` in {seconds:.0f} s on {cores} cores; models and changes are "
        "those of `python_tests/support/mutants/plans.py` and of the program: one at a time, every place in turn, the "
        "checksum renewed.",
        "",
        f"{sum(total.values())} mutants of plans. {harmful} are refused at load or change a result in two runs "
        "(a changed grid, block, size of shared memory or name counts as harmful, since what runs the plans here knows "
        f"none): {said} of these ({100 * said / harmful:.2f} %) are refused or reported, {total['missed']} are missed. "
        f"{total['other']} are reported though the numbers stay what they were, {total['same']} say and do nothing.",
        "", _HEAD.format("what was changed"),
    ]  # fmt: skip
    for what in KINDS:
        lines.append(_row(what, [{v: n for (w, v), n in c.items() if w == what} for c in plans.values()]))
    lines += ["", _HEAD.format("model")]
    for name, counts in plans.items():
        lines.append(_row(name, [{v: sum(n for (_, w), n in counts.items() if w == v) for v in VERDICTS}]))
    lines += [
        "", "Reported with the same numbers: a step that reads memory before it is written in the first run only, or "
        "that runs once more than it has to, or a launch that writes over its own input. "
        "Without effect: steps that do not depend on each other exchanged, a step "
        "done twice, buffers moved to where nobody is in their way, a constant's step that runs every time.", "",
        "| change of the PTX | mutants | reported |", "|---|---:|---:|",
    ]  # fmt: skip
    for how in dict.fromkeys(how for how, _ in edits):
        lines.append(f"| {how} | {edits[how, True] + edits[how, False]} | {edits[how, True]} |")
    return "\n".join(lines) + "\n"


def _row(name: str, tables: list) -> str:
    found = {v: sum(t.get(v, 0) for t in tables) for v in VERDICTS}
    return f"| {name} | {sum(found.values())} | " + " | ".join(str(found[v]) for v in VERDICTS) + " |"


if __name__ == "__main__":
    sys.exit(main())
