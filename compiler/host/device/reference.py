"""What a kernel must compute: the same kernel at a level above, through MLIR's JIT.

Memory that is accessed in bounds, in order and after it was written can still be the wrong memory: an offset that is
one too far, a bound that ends a loop early. Only the right numbers tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirc import levels
from mlirc.errors import MlircError
from mlirc.host.bounds import Stray
from mlirc.host.device.limits import SECONDS
from mlirc.host.device.report import Report
from mlirc.host.jit import HostFunction
from mlirc.host.within import OutOfTime, within
from mlirc.mlir import ir

Function = Callable[..., Sequence[np.ndarray]]

# The largest difference that rounding explains, relative to the largest element: sums in another order, tensor cores
# and, for 16 bits, intermediate results that are rounded in one place and not in the other.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}


def wrong(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Which elements of a result differ by more than rounding explains: bool, of the result's shape. Integers and
    booleans must be equal; NaN and infinities must be where they are expected, and nowhere else."""
    if expected.dtype.kind in "iub":
        return found != expected
    f, e = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(e)
    scale = np.abs(e[finite]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(f - e) <= _TOLERANCE[expected.dtype.name] * scale)
    return np.where(finite, far, (f != e) & ~(np.isnan(f) & np.isnan(e)))


def _number(x: Any) -> str:
    return f"{float(x):.6g}" if x.dtype.kind not in "iub" else str(int(x))


class Reference:
    """One kernel at the levels above `gpu`. `steps`: (name of the level, function from the kernel's inputs to its
    results) from the top; the first one is right by definition. `inputs`: how many inputs it takes. `strays`: gives the
    indices outside of their tensors that the first one met in its last run."""

    def __init__(
        self, steps: Sequence[tuple[str, Function]], inputs: int, strays: Callable[[], Sequence[Stray]] = tuple
    ):
        self.steps, self.inputs, self.strays = list(steps), inputs, strays

    def run(self, step: int, case: Case) -> Sequence[np.ndarray]:
        """The results at a level; raises OutOfTime where they take longer than a launch may."""
        name, function = self.steps[step]
        return within(case.seconds, f"level {name}, which says what is right,", function, *case.inputs)

    def blame(self, case: Case, number: int, at: tuple[int, ...], right: np.ndarray) -> str:
        """Which step made the element `at` of result `number` wrong, in words."""
        last = self.steps[0][0]
        for step, (name, _) in enumerate(self.steps[1:], 1):
            try:
                found = self.run(step, case)[number]
            except OutOfTime:
                return f"level {name} takes too long to ask"
            if wrong(np.asarray(found), right)[at]:
                return f"level {name} has it wrong already: look at the schedule"
            last = name
        return f"level {last} has it right, too: look at what comes after it" if len(self.steps) > 1 else ""


@dataclass
class Case:
    """One run of a kernel: its inputs and results, which elements of each result it computed (None: all), and who wrote
    an element: (in words, operation). `seconds`: how long a level above may take."""

    inputs: Sequence[np.ndarray]
    results: Sequence[np.ndarray]
    known: Sequence[np.ndarray | None]
    writer: Callable[[int, int], tuple[str, Any]]
    seconds: float = SECONDS


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
    for stray in reference.strays():
        message = f"{stray}: PyTorch raises an error, a GPU reads the nearest element or leaves the store out"
        report.add_at("bad index", message, stray.location, kernel, stray.count)
    for number, right in enumerate(expected):
        found, known = case.results[number], case.known[number]
        bad = wrong(found, right)
        if known is not None:
            bad &= known
        if not bad.any():
            continue
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        who, op = case.writer(number, int(np.ravel_multi_index(at, found.shape)))
        where = f"element {list(at)} of result {number}" if len(case.results) > 1 else f"element {list(at)}"
        why = reference.blame(case, number, at, right)
        message = f"{who} writes {_number(found[at])} as {where}, which level {top} says is {_number(right[at])}"
        report.add("wrong result", f"{message} ({why})" if why else message, op, kernel, int(bad.sum()))
    return True


class References:
    """The kernels of a model at the levels above `gpu`, compiled for the CPU when they are first asked for."""

    def __init__(self, modules: Mapping[str, ir.Module], sources: Mapping[str, str] | None = None):
        """`sources`: the names of the texts that the modules were parsed from."""
        self.modules, self.sources = dict(modules), dict(sources or {})
        self._functions: dict[tuple[str, str], HostFunction] = {}

    def of(self, kernel: str) -> Reference:
        """The kernel's reference; raises MlircError if the uppermost level does not hold it."""
        function = levels.functions(next(iter(self.modules.values()))).get(kernel)
        if function is None:
            raise MlircError(f"kernel {kernel} is not in the levels above gpu: compile the model again")
        steps = [(name, self._function(name, kernel)) for name in self.modules]
        top = next(iter(self.modules)), kernel
        return Reference(steps, len(function.type.inputs), lambda: self._functions[top].strays.take())

    def _function(self, level: str, kernel: str) -> Function:
        def call(*inputs: np.ndarray) -> list[np.ndarray]:
            key = level, kernel
            if key not in self._functions:
                self._functions[key] = HostFunction(
                    levels.isolate(self.modules[level], kernel), kernel, source=self.sources.get(level, "")
                )
            return self._functions[key].run(*inputs)

        return call
