"""`check_job`: every level of a compilation beside PyTorch, on inputs of several kinds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mlirc.check.cases import Case, cases, size_cases
from mlirc.check.chosen import DEFAULT_LEVELS, LEVELS, parse_levels
from mlirc.check.compare import Difference, Reference, compare
from mlirc.check.level_model import LevelModel
from mlirc.check.levels import Run, level_runner
from mlirc.check.reference import TorchModel
from mlirc.check.result import Result
from mlirc.check.stated import stated_of
from mlirc.errors import MlircError
from mlirc.frontend.diagnose import first_line
from mlirc.ir.levels import functions, random_state
from mlirc.ir.sizes import read_sizes
from mlirc.mlir import context
from mlirc.precision import DEFAULT_FP32
from mlirc.runtime.sizes import Sizes


@dataclass
class _Wanted:
    """What is right on one case; `plain` are the outputs for the unchanged tokens, where the case is about those."""

    case: Case
    references: list[Reference]
    plain: list[torch.Tensor] | None = None


def check_job(
    job: Any, levels: Sequence[str] = (), *, seed: int = 0, kinds: Iterable[str] | None = None
) -> Result:  # fmt: skip
    """Runs a compilation at each of `levels` (default: linalg, kernels, tiles, gpu, from its own level on), on every
    kind of inputs or those of `kinds`, and compares with PyTorch, or with the level that the compilation started from.

    Raises MlircError for a level that there is not or that cannot be run, and a model that PyTorch cannot run.
    """
    levels = levels_to_check(job, levels)
    with job.timer.step("check"):
        draws = bool(random_state(job.modules["torch"])) if "torch" in job.modules else False
        model = TorchModel(job.imported.source, draws) if job.imported else LevelModel(job)
        start = "torch" if "torch" in job.modules else "the reference" if job.imported else job.given
        result = Result(job.name, levels, start=start, entry=job.given)
        wanted = _wanted(model, seed, kinds, result, _sizes(job))
        result.reference = model.described
        given = job.imported.source.given if job.imported else None
        tolerance = (given.tolerance or 0.0) if given else 0.0
        if given and tolerance:
            result.stated.append(f"relative errors of up to {tolerance:g} are right, as {given.stated_by} states")
    for number, level in enumerate(levels):
        job.lower(level)
        with job.timer.step("check"):
            tensors = model.tensors(job)
            run = level_runner(job, level, tensors)
            by = stated_of(job, level)
            result.stated += [line for line in by.lines if line not in result.stated]
            restated = by.references([w.case.inputs for w in wanted], tensors)
            row = result.differences[level] = {}
            fp32 = job.fp32 if level in ("gpu", "ptx") else DEFAULT_FP32  # above, products are FP32's
            plain: Any = None
            for i, original in enumerate(wanted):
                w = replace(original, references=restated[i]) if restated else original
                outputs = _run(run, w.case, level)
                plain = outputs if i == 0 else plain
                row[w.case.kind] = (
                    outputs
                    if isinstance(outputs, Difference)
                    else _judge(None if restated else model, w, outputs, plain, fp32, max(tolerance, by.tolerance))
                )
                job.timer.advance(number * len(wanted) + i + 1, len(levels) * len(wanted))
    return result


def _sizes(job: Any) -> Sizes | None:
    module = next(job.modules[level] for level in ("torch", "linalg", "kernels") if level in job.modules)
    with context():
        return read_sizes(functions(module)["main"])


def levels_to_check(job: Any, levels: Sequence[str]) -> list[str]:
    """`levels` in the ladder's order, or the default ones; raises MlircError for one that cannot be checked."""
    levels = parse_levels(levels)
    above = "torch" if job.imported else job.given
    if job.imported and job.given in ("kernels", "tiles"):  # a kernel with a reference
        above = {"kernels": "linalg", "tiles": "kernels"}[job.given]
    if above in ("async", "gpu"):
        raise MlircError(f"--check: the file is at level {above}: there is no level above to compare it with")
    ladder = ("torch", *LEVELS)
    possible = ladder[ladder.index(above) + 1 :]
    if not job.imported:
        possible = tuple(x for x in possible if x != "linalg")  # what a file of the torch level is run as
    for level in levels:
        if level not in possible:
            raise MlircError(f"--check {level}: the compilation starts from level {above}: check {', '.join(possible)}")
    if "ptx" in levels and not torch.cuda.is_available():
        raise MlircError("--check ptx: needs an NVIDIA GPU, and there is none here: check linalg kernels tiles gpu")
    return [x for x in possible if x in (levels or DEFAULT_LEVELS)]


def _run(run: Run, case: Case, level: str) -> Any:
    """The level's outputs, or what it found wrong by itself, as the host device does."""
    try:
        return run(case.inputs)
    except MlircError as e:
        if level != "gpu":
            raise
        return Difference(math.inf, math.inf, True, str(e))


def _wanted(
    model: TorchModel | LevelModel, seed: int, kinds: Iterable[str] | None, result: Result, sizes: Sizes | None
) -> list[_Wanted]:
    found: list[_Wanted] = []
    inputs = model.inputs()
    every = cases(inputs, seed)
    for case in itertools.chain(every, size_cases(inputs, sizes, seed)) if sizes else every:
        if kinds is not None and case.kind not in kinds:
            continue
        try:
            references = model.references(case.inputs)
        except Exception as e:
            why = f"{type(e).__name__}: {first_line(str(e), 120)}"
            if case.kind == "plain":
                raise MlircError(f"--check: PyTorch itself cannot run the model on plain inputs: {why}") from e
            result.skipped[case.kind] = f"PyTorch raises {why}"
            continue
        blank = [
            i
            for i, r in enumerate(references)
            if r.wide.numel()
            and not any(bool(torch.isfinite(x.float()).any()) for x in (r.wide, r.unseen) if x is not None)
        ]
        if blank:
            result.blank[case.kind] = blank
        plain = [r.eager for r in found[0].references] if case.moved and found else None
        found.append(_Wanted(case, references, plain))
        if case.visible is not None and any(_rows(case, r.eager) is not None for r in references):
            result.notes[case.kind] = "rows of visible tokens"
    result.kinds = [w.case.kind for w in found]
    return found


def _judge(
    model: TorchModel | LevelModel | None, wanted: _Wanted, outputs: Sequence[torch.Tensor], plain: Any, fp32: str,
    tolerance: float,
) -> Difference:  # fmt: skip
    """`_compare`; what is wrong by it is judged again by how far rounding alone takes PyTorch's own results."""
    found = _compare(wanted, outputs, plain, fp32, tolerance)
    if not found.wrong or not isinstance(model, TorchModel):
        return found
    if not any(r.moved for r in wanted.references):
        moved = model.moved(wanted.case.inputs)
        wanted.references = [replace(r, moved=m) for r, m in zip(wanted.references, moved, strict=True)]
    return _compare(wanted, outputs, plain, fp32, tolerance)


def _compare(
    wanted: _Wanted, outputs: Sequence[torch.Tensor], plain: Any, fp32: str, tolerance: float
) -> Difference:  # fmt: skip
    """The worst output of one case."""
    if len(outputs) != len(wanted.references):
        reason = f"it has {len(outputs)} outputs, and PyTorch {len(wanted.references)}"
        return Difference(math.inf, math.inf, True, reason)
    found = []
    for i, (out, reference) in enumerate(zip(outputs, wanted.references, strict=True)):
        found.append(compare(out, reference, _rows(wanted.case, out), fp32, tolerance))
        if wanted.plain is not None and isinstance(plain, list):
            found.append(_moved(wanted.case, reference.eager, wanted.plain[i], out, plain[i]))
    return max(found, key=lambda d: (d.wrong, d.error), default=Difference())


def _rows(case: Case, out: torch.Tensor) -> torch.Tensor | None:
    """Outputs that have a row per token are compared at the tokens that the mask shows."""
    if case.visible is None or out.dim() < 2 or tuple(out.shape[:2]) != tuple(case.visible.shape):
        return None
    return case.visible


def _moved(
    case: Case, eager: torch.Tensor, before: torch.Tensor, out: torch.Tensor, out_before: torch.Tensor
) -> Difference:
    """Whether an earlier token's row depends on the last token here, and in PyTorch does not: to the last bit, since
    what a mask hides has the weight 0."""
    if case.moved is None or tuple(out.shape[:2]) != case.moved or out.shape != eager.shape:
        return Difference()
    still, same = _unchanged(eager, before), _unchanged(out, out_before)
    bad = still & ~same
    if not bool(bad.any()):
        return Difference()
    size = (out.double() - out_before.double())[:, :-1][bad].abs().max().item()
    sequence, token = (int(i) for i in torch.nonzero(bad)[0])
    reason = f"token {token} of sequence {sequence} sees the last token, and in PyTorch it does not"
    return Difference(size, size, True, reason)


def _unchanged(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Bool [batch, length - 1]: which tokens' rows, but for the last, are equal."""
    equal = (one == other) | (one != one) & (other != other)
    return equal.reshape(*equal.shape[:2], -1).all(-1)[:, :-1]
