"""Writes results/right-kernels.md: what the host device says to kernels that are right, at several seeds and on every
set of made-up inputs: it must say nothing. Needs no GPU; takes minutes, a process for each core:

    python benchmarks/right_kernels.py [--jobs 16]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import side_by_side
import tests_path  # noqa: F401

from mlirc import mlir
from mlirc.check.cases import cases
from mlirc.check.reference import TorchModel
from mlirc.device import HostModel
from mlirc.device.input_sets import INPUT_SETS, InputSets, try_sets
from mlirc.device.launch import DeviceKernel
from mlirc.device.reference import References
from mlirc.device.report import Report
from mlirc.driver.compilation import HOST_LEVELS, Compilation
from mlirc.errors import MlircError
from mlirc.host.level_files import Levels
from mlirc.host.tensors import to_numpy
from mlirc.targets import get_target
from support.architectures.runner import write_config
from support.kernels.check import function_name
from support.kernels.mutant_cases import HANDS, HOPPER, KERNELS, ORDER, case, lowered
from support.kernels.number_cases import NUMBERS, UNDEFINED

ROOT = Path(__file__).resolve().parent.parent
SEEDS = range(5)
MODELS = (
    "BertModel", "GPT2LMHeadModel", "LlamaForCausalLM", "Gemma2ForCausalLM", "MixtralForCausalLM", "MambaForCausalLM",
    "T5ForConditionalGeneration", "WhisperForConditionalGeneration", "ViTForImageClassification",
    "SwinForImageClassification", "ConvNextForImageClassification", "ResNetForImageClassification",
)  # fmt: skip


@dataclass
class Tried:
    """A right kernel: the sets that fit it, its runs over all seeds, and what was found, which is a false alarm."""

    sets: int
    runs: int = 0
    alarms: list[str] = field(default_factory=list)

    def saw(self, report: Report, runs: int, seed: int) -> None:
        self.runs += runs
        self.alarms += [f"seed {seed}: {f}" for f in report.findings]


def texts(name: str) -> dict[str, Tried]:
    """One kernel of the tests' lists, on every set."""
    if name in (HOPPER, *HANDS, *ORDER):  # no function launches them: their own inputs
        hand, tried = case(name, len(SEEDS)), Tried(1)
        for seed in SEEDS:
            findings = hand.outcome(hand.text, seed)[1]
            tried.runs += len(hand.arguments)
            tried.alarms += [f"seed {seed}: {f}" for f in findings]
        return {name: tried}
    text, knobs = (NUMBERS | KERNELS)[name]
    gpu, arguments, specs = lowered(text, knobs)
    module = mlir.parse(text)
    reference = References({"kernels": module}).of(function_name(module))
    sets = InputSets.of(reference.function, arguments)
    names = [k for k in INPUT_SETS if sets.fits(k) and (name, k) not in UNDEFINED]
    kernel, tried = DeviceKernel(mlir.parse(gpu)), Tried(len(names))
    for seed in SEEDS:
        results = [np.zeros(spec.shape, spec.dtype) for spec in specs]
        report = try_sets(kernel, reference, [*arguments, *results], names, seed=seed)
        tried.saw(report, len(names), seed)
    return {name: tried}


def model(name: str) -> dict[str, Tried]:
    """Every kernel of a tiny model with random weights: what the model gives it, and every set."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = write_config(name, Path(folder))
        job = Compilation(name, get_target("sm_90a"), helpers=0)
        job.open(folder, inputs=inputs, random_weights=0)
        plain = next(iter(cases(TorchModel(job.imported.source).inputs())))
        job.lower("ptx")
        levels = Levels.of({level: job.text(level) for level in HOST_LEVELS}, job.plan)
        host = HostModel(Path(name), job.plan, job.tensors(), levels=levels)
    host.input_sets = INPUT_SETS
    found: dict[str, Tried] = {}
    for seed in SEEDS:
        host.seed = seed
        host.bind(*map(to_numpy, plain.inputs))
        try:
            host.launch()
        except MlircError:
            pass  # it is in the report
        for kernel, calls in host.report.calls.items():
            sets = host.report.sets.get(kernel, [])
            tried = found.setdefault(f"{name}, {kernel}", Tried(len(sets)))
            tried.runs += calls + len(sets)
            tried.alarms += [f"seed {seed}: {f}" for f in host.report.findings if f.kernel == kernel]
        stray = [f for f in host.report.findings if f.kernel not in host.report.calls]
        if stray:
            found.setdefault(name, Tried(0)).alarms += [f"seed {seed}: {f}" for f in stray]
    return found


def attempt(work: side_by_side.Part) -> dict[str, Tried]:
    """One of the names; each is done whole, since what is tried shares its compilation."""
    name, _, _ = work
    return model(name) if name in MODELS else texts(name)


def main() -> int:
    start = time.perf_counter()
    found: dict[str, Tried] = {}
    workers = side_by_side.jobs(__doc__)
    for name, tried in side_by_side.shared(attempt, (*MODELS, *KERNELS, *NUMBERS), workers, died := [], parts=1):
        found |= tried
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    alarms = [f"{name}: {alarm}" for name, tried in found.items() for alarm in tried.alarms]
    page = report(found, alarms, time.perf_counter() - start, workers)
    print("\n".join(alarms))
    return side_by_side.write("right-kernels.md", page, died) or bool(alarms)


def report(found: dict[str, Tried], alarms: list[str], seconds: float, cores: int) -> str:
    """The page, in Markdown."""
    runs = sum(tried.runs for tried in found.values())
    lines = [
        "# Kernels that are right, on the host device", "",
        f"Made by `python benchmarks/right_kernels.py` in {seconds:.0f} s on {cores} cores: kernels of the "
        f"tests' lists and those of tiny models, each with {len(SEEDS)} seeds (the order of blocks, warps and atomics) "
        f"on each of the {len(INPUT_SETS)} sets of made-up inputs that fits it, compared with the `kernels` level "
        "element by element; kernels of models on what the model gives them, too. Those that no host function launches "
        "run on inputs of their own.", "",
        f"{len(found)} kernels, {runs} runs, {len(alarms)} false alarms.", "",
        "| kernels of | kernels | sets | runs | false alarms |", "|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    groups = Counter(name.split(",")[0] if name.split(",")[0] in MODELS else name for name in found)
    for group, count in groups.items():
        mine = [t for n, t in found.items() if n == group or (group in MODELS and n.startswith(group + ","))]
        sets = sorted({t.sets for t in mine})
        span = str(sets[0]) if len(sets) == 1 else f"{sets[0]} to {sets[-1]}"
        lines.append(
            f"| {group} | {count} | {span} | {sum(t.runs for t in mine)} | {sum(len(t.alarms) for t in mine)} |"
        )
    lines += ["", *(f"- {alarm}" for alarm in alarms)] if alarms else []
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
