"""Kernels that are tried as the host device tries them, on every set of made-up inputs, and which set tells a mutant."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

import mlirc
from mlirc import mlir
from mlirc.device import DeviceKernel
from mlirc.device.input_sets import INPUT_SETS, QUICK, InputSets, try_sets
from mlirc.device.judge import SHORT
from mlirc.device.numbers import bits_of
from mlirc.device.reference import Case, Reference, References
from mlirc.errors import MlircError
from mlirc.host.jit import tensor_spec
from mlirc.host.rounding.values import LEAST, ROUNDOFF
from mlirc.ir import levels
from mlirc.mlir import ir
from support.kernels.mutant_cases import lowered
from support.kernels.number_cases import NUMBERS, UNDEFINED
from support.kernels.torch_kinds import KINDS, Calls
from support.mutants.kernels import Mutant


class _Remembered(Reference):
    """A reference that computes what is right for some inputs once, and keeps of every result that it compares the bits
    and how far it is from what is right."""

    def __init__(self, reference: Reference) -> None:
        super().__init__(reference.steps[:1], reference.inputs, function=reference.function)
        self.right: dict[int, Sequence[np.ndarray]] = {}
        self.bits: list[bytes] = []
        self.far: list[float] = []

    def run(self, step: int, case: Case) -> Sequence[np.ndarray]:
        self.bits.append(b"".join(map(bits_of, case.results)))
        key = zlib.crc32(b"".join(np.ascontiguousarray(a).view(np.uint8).tobytes() for a in case.inputs))
        if key not in self.right:
            self.right[key] = super().run(step, case)
        right = self.right[key]
        self.far.append(max(map(_distance, case.results, right[: len(case.results)], case.known)))
        return right


def _distance(found: np.ndarray, right: np.ndarray, known: np.ndarray | None) -> float:
    """The root mean square of an array's distance from what is right, relative to the size of that, but at least half a
    unit in the last place. Of integers and of what is no number nothing is said."""
    if found.dtype.kind in "iub":
        return 1.0
    f, r = found.astype(np.float64), right.astype(np.float64)
    both = np.isfinite(f) & np.isfinite(r) & (True if known is None else known)
    size = np.sqrt(np.square(r[both]).mean()) if both.any() else 0.0
    least = ROUNDOFF[SHORT[found.dtype.name]] * size + LEAST[SHORT[found.dtype.name]]
    return max(least, np.sqrt(np.square(f[both] - r[both]).mean())) if both.any() else least


@dataclass
class Verdict:
    """Which sets report a mutant, as a broken rule or not; `changed`: whether a bit of a result is another one;
    `farther`: how many times as far as the unchanged kernel's the results of some run are from the level above."""

    sets: list[str] = field(default_factory=list)
    rule: bool = False
    changed: bool = False
    farther: float = 1.0

    @property
    def word(self) -> str:
        """`default`, `all` (only on other sets than the default ones), `missed`, or `same`."""
        if self.sets:
            return "default" if set(self.sets) & set(QUICK) else "all"
        return "missed" if self.changed else "same"


@dataclass
class Tried:
    """A kernel at the `gpu` level, with what it must compute, and the time that each set has taken."""

    name: str
    text: str
    reference: Reference
    given: list[np.ndarray]
    results: list[np.ndarray]
    undefined: frozenset[str] = frozenset()
    seconds: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.reference = _Remembered(self.reference)
        sets = InputSets.of(self.reference.function, self.given)
        self.sets = [s for s in INPUT_SETS if sets.fits(s) and s not in self.undefined]
        self.right: dict[str, list[bytes]] = {}
        self.far: dict[str, list[float]] = {}
        right = self._run(mlir.parse(self.text), self.right, self.far)
        assert not right.sets, (self.name, right.sets)

    def _run(self, module: ir.Module, bits: dict[str, list[bytes]], far: dict[str, list[float]]) -> Verdict:
        assert isinstance(self.reference, _Remembered)
        kernel, verdict = DeviceKernel(module), Verdict()
        for name in self.sets:
            start, self.reference.bits, self.reference.far = time.perf_counter(), [], []
            kinds = try_sets(kernel, self.reference, [*self.given, *self.results], [name], seconds=20).kinds()
            self.seconds[name] += time.perf_counter() - start
            bits[name], far[name] = self.reference.bits, self.reference.far
            if kinds:
                verdict.sets.append(name)
                verdict.rule |= kinds != {"wrong result"}
        return verdict

    def judge(self, mutant: Mutant) -> Verdict | None:
        """What the sets say; None for what is no kernel any more."""
        bits: dict[str, list[bytes]] = {}
        far: dict[str, list[float]] = {}
        try:
            module = mlir.parse(mutant.text)
        except MlircError:
            return None
        try:
            verdict = self._run(module, bits, far)
        except MlircError:  # a report by the device itself, such as an extent that differs between threads
            return Verdict(list(QUICK), True, True)
        verdict.changed = bits != self.right
        if not verdict.sets:
            pairs = [(x, y) for name in self.sets for x, y in zip(far[name], self.far[name], strict=True)]
            verdict.farther = max((x / y for x, y in pairs), default=1.0)
        return verdict


def tried(name: str) -> Iterator[Tried]:
    """The kernels of a name of `NUMBERS` or `KINDS`."""
    if name in NUMBERS:
        text, knobs = NUMBERS[name]
        gpu, given, specs = lowered(text, knobs)
        module = mlir.parse(text)
        reference = References({"kernels": module}).of(_kernels(module)[0])
        results = [np.zeros(s.shape, s.dtype) for s in specs]
        yield Tried(name, gpu, reference, given, results, frozenset(s for n, s in UNDEFINED if n == name))
        return
    function, tensors = KINDS[name]
    model = mlirc.compile(Calls(function), tensors, device="host")
    module = mlir.parse(model._levels.text("kernels"))
    texts = {n: t for t in model._levels.text("gpu").split("// -----") for n in _kernels(module) if f"@{n}(" in t}
    for kernel, text in texts.items():
        reference = References({"kernels": module}).of(kernel)
        assert reference.function is not None
        with mlir.context():
            type_ = ir.FunctionType(ir.TypeAttr(reference.function.attributes["function_type"]).value)
            given, results = (
                [np.zeros(s.shape, s.dtype) for s in map(tensor_spec, t)] for t in (type_.inputs, type_.results)
            )
        yield Tried(f"{name}, {kernel}", text, reference, given, results)


def _kernels(module: ir.Module) -> list[str]:
    return list(levels.kernels(module))
