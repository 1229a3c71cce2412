"""What a kernel must compute: the same kernel at a level above, through MLIR's JIT.

Memory that is accessed in bounds, in order and after it was written can still be the wrong memory: an offset that is
one too far, a bound that ends a loop early. Only the right numbers tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirc.device.judge import allowed, judged, lean, wrong
from mlirc.device.limits import SECONDS
from mlirc.device.report import Report
from mlirc.errors import MlircError
from mlirc.host.bounds import Stray
from mlirc.host.jit import HostFunction
from mlirc.host.rounding import Unbounded
from mlirc.host.within import OutOfTime, within
from mlirc.ir import levels
from mlirc.mlir import ir

Function = Callable[..., Sequence[np.ndarray]]


def _number(x: Any) -> str:
    return f"{float(x):.6g}" if x.dtype.kind not in "iub" else str(int(x))


class Reference:
    """One kernel at the levels above `gpu`. `steps`: (name of the level, function from the kernel's inputs to its
    results) from the top; the first one is right by definition, and may give after its results their error bounds.
    `inputs`: how many inputs it takes. `strays`: gives the indices outside of their tensors that the first one met in
    its last run. `function`: the kernel at the uppermost level, where it is known."""

    def __init__(
        self, steps: Sequence[tuple[str, Function]], inputs: int, strays: Callable[[], Sequence[Stray]] = tuple,
        function: ir.OpView | None = None, tolerance: float = 0.0,
    ):  # fmt: skip
        self.steps, self.inputs, self.strays, self.function = list(steps), inputs, strays, function
        self.tolerance = tolerance  # a relative error that is stated to be right

    def run(self, step: int, case: Case) -> Sequence[np.ndarray]:
        """The results at a level; raises OutOfTime where they take longer than a launch may."""
        name, function = self.steps[step]
        return within(case.seconds, f"level {name}, which says what is right,", function, *case.inputs)

    def blame(self, case: Case, number: int, at: tuple[int, ...], right: np.ndarray, bound: np.ndarray | None) -> str:
        """Which step made the element `at` of result `number` wrong, in words."""
        last = self.steps[0][0]
        for step, (name, _) in enumerate(self.steps[1:], 1):
            try:
                found = self.run(step, case)[number]
            except OutOfTime:
                return f"level {name} takes too long to ask"
            if wrong(np.asarray(found), right, bound, self.tolerance)[at]:
                return f"level {name} has it wrong already: look at the schedule"
            last = name
        return f"level {last} has it right, too: look at what comes after it" if len(self.steps) > 1 else ""


@dataclass
class Case:
    """One run of a kernel: its inputs and results, which elements of each result it computed (None: all), and who wrote
    an element: (in words, operation). `seconds`: how long a level above may take. `random`: the inputs are independent
    random numbers, so that errors of rounding to nearest have no mean."""

    inputs: Sequence[np.ndarray]
    results: Sequence[np.ndarray]
    known: Sequence[np.ndarray | None]
    writer: Callable[[int, int], tuple[str, Any]]
    seconds: float = SECONDS
    random: bool = False


def compare(reference: Reference, case: Case, report: Report, kernel: str) -> bool:
    """Reports results that are not the reference's: for each the first wrong element, and how many there are. And, once
    for each place, indices that are outside of their tensors at the level above, which no schedule is to blame for.
    False where the level above does not come to its end in time."""
    top = reference.steps[0][0]
    try:
        expected = reference.run(0, case)
    except OutOfTime as e:
        report.add("stopped", str(e), None, kernel)
        report.ended = False
        return False
    bounds: list[np.ndarray | None] = [*expected[len(case.results) :]] or [None] * len(case.results)
    for stray in reference.strays():
        message = f"{stray}: PyTorch raises an error, a GPU reads the nearest element or leaves the store out"
        report.add_at("bad index", message, stray.location, kernel, stray.count)
    for number, (found, known) in enumerate(zip(case.results, case.known, strict=True)):
        right, bound = expected[number], bounds[number]
        bad = wrong(found, right, bound, reference.tolerance)
        if known is not None:
            bad &= known
        report.judge(kernel, judged(right, bound), known)
        if not bad.any():
            deviations = lean(found, right, bound, known) if case.random and right.dtype.itemsize == 2 else 0.0
            if deviations:
                side = "small" if deviations > 0 else "large"
                report.add("wrong result", f"elements of result {number} are too {side} on average, by "
                           f"{abs(deviations):.1f} deviations of rounding to nearest: is something cut off that was to "
                           "be rounded?", None, kernel)  # fmt: skip
            continue
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        who, op = case.writer(number, int(np.ravel_multi_index(at, found.shape)))
        where = f"element {list(at)} of result {number}" if len(case.results) > 1 else f"element {list(at)}"
        why = reference.blame(case, number, at, right, bound)
        message = f"{who} writes {_number(found[at])} as {where}, which level {top} says is {_number(right[at])}"
        if right.dtype.kind not in "iub" and np.isfinite(float(right[at])):
            message += f", give or take {allowed(right, bound, reference.tolerance)[at]:.2g}"
        report.add("wrong result", f"{message} ({why})" if why else message, op, kernel, int(bad.sum()))
    return True


class References:
    """The kernels of a model at the levels above `gpu`, compiled for the CPU when they are first asked for."""

    def __init__(self, modules: Mapping[str, ir.Module], sources: Mapping[str, str] | None = None):
        """`sources`: the names of the texts that the modules were parsed from."""
        self.modules, self.sources = dict(modules), dict(sources or {})
        self._functions: dict[tuple[str, str], HostFunction] = {}
        self.unbounded: dict[str, str] = {}  # kernels judged by their largest element, and why
        self.stated = levels.stated(self.modules["tiles"]) if "tiles" in self.modules else {}

    def of(self, kernel: str) -> Reference:
        """The kernel's reference; raises MlircError if the uppermost level does not hold it."""
        function = levels.functions(next(iter(self.modules.values()))).get(kernel)
        if function is None:
            raise MlircError(f"kernel {kernel} is not in the levels above gpu: compile the model again")
        steps = [(name, self._function(name, kernel)) for name in self.modules]
        top = next(iter(self.modules)), kernel
        stated = self.stated.get(kernel, levels.Stated())
        if stated.reference is not None:
            steps[0] = (f"{steps[0][0]}, as {stated.by} states it,", steps[0][1])
        count = len(function.type.inputs)
        return Reference(steps, count, lambda: self._functions[top].strays.take(), function, stated.tolerance)

    def _function(self, level: str, kernel: str) -> Function:
        def call(*inputs: np.ndarray) -> list[np.ndarray]:
            key = level, kernel
            if key not in self._functions:
                self._functions[key] = self._compile(level, kernel)
            return self._functions[key].run(*inputs)

        return call

    def _compile(self, level: str, kernel: str) -> HostFunction:
        """With error bounds at the uppermost level, but for a kernel that has operations without (`unbounded`)."""
        module, source = levels.isolate(self.modules[level], kernel), self.sources.get(level, "")
        if level == next(iter(self.modules)):
            module = levels.as_stated(module, kernel, self.stated.get(kernel))
            try:
                return HostFunction(module, kernel, source=source, bounds=True)
            except Unbounded as e:
                self.unbounded[kernel] = str(e)
        return HostFunction(module, kernel, source=source)
