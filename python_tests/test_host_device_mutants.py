"""The sanitizer finds what it claims: kernels as they ship, with one barrier, wait, predicate, bound or buffer offset
spoiled at a time. What changes a result must be reported; what nobody reports must have changed nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_check import TARGET, function_name
from schedule_payloads import attention, inputs_of, matmul, norm

from mlirc import mlir
from mlirc.host.device import DeviceKernel
from mlirc.host.jit import tensor_spec
from mlirc.kernel_build import to_gpu
from mlirc.mlir import ir
from mlirc.schedule import Schedules
from mlirc.targets import get_target

KERNELS = {
    "pipelined_matmul": (
        matmul(65, 72, 96, "bf16"),
        "matmul:block_m=64,block_n=64,block_k=32,warps_m=2,warps_n=2,stages=3",
    ),
    "unpipelined_matmul": (matmul(33, 40, 50, "f16"), "matmul:block_m=32,block_n=32,block_k=16,stages=1"),
    "norm": (norm(7, 384), "reduction:warps=4"),
    "attention": (
        attention(lengths=(40, 70), dims=(16, 16), dtype="bf16", causal=True),
        "attention:block_q=32,block_kv=32,warps=2,stages=2",
    ),
}

# What to look for in a line, and what to put there instead.
MUTATIONS = {
    "no barrier": (r"^\s*(gpu\.barrier|nvvm\.bar\.warp\.sync.*)$", ""),
    "no wait": (r"^\s*nvvm\.cp\.async\.wait\.group.*$", ""),
    "no commit": (r"^\s*nvvm\.cp\.async\.commit\.group$", ""),
    "weaker wait": (r"wait\.group (\d)$", lambda m: f"wait.group {int(m[1]) + 1}"),
    "no predicate": (r"scf\.if %\S+ \{$", "%always = arith.constant true\n scf.if %always {"),
    "no clamp": (r"arith\.minsi (%\S+), %\S+ : index$", r"arith.addi \1, %c0 : index"),
    "no zero fill": (r"arith\.select %\S+, (%\S+), %\S+ : index$", r"arith.addi \1, %c0 : index"),
    "same buffer": (r"memref\.view (%\S+)\[%c[1-9]\d*\]", r"memref.view \1[%c0]"),
}


def lowered(text: str, knobs: str) -> tuple[str, list[np.ndarray], list]:
    """A scheduled kernel's `gpu` level as text, its inputs, and the specs of its results."""
    module = mlir.parse(text)
    tiles, _ = Schedules([knobs]).schedule_kernel(module, get_target(TARGET))
    with mlir.context(), ir.Location.unknown():
        arguments = inputs_of(module)
        types = ir.FunctionType(ir.TypeAttr(tiles.body.operations[0].attributes["function_type"]).value).results
        specs = [tensor_spec(t) for t in types]
        mlir.run_passes(tiles, "func.func(linalg-generalize-named-ops)")
        to_gpu(tiles, function_name(tiles), get_target(TARGET))
    return str(tiles), arguments, specs


def mutants(text: str) -> Iterator[tuple[str, int, str]]:
    """(kind, line, text) of every mutant."""
    lines = text.split("\n")
    for kind, (pattern, replacement) in MUTATIONS.items():
        for i, line in enumerate(lines):
            changed = re.sub(pattern, replacement, line)
            if changed != line:
                yield kind, i, "\n".join([*lines[:i], changed, *lines[i + 1 :]])


def run(text: str, arguments: list[np.ndarray], specs: list, seed: int = 0) -> tuple[list[bytes], set[str]]:
    results = [np.zeros(spec.shape, spec.dtype) for spec in specs]
    report = DeviceKernel(mlir.parse(text)).run([*arguments, *results], seed=seed)
    return [r.tobytes() for r in results], report.kinds()


@pytest.mark.parametrize("name", KERNELS)
def test_mutants(name):
    text, arguments, specs = lowered(*KERNELS[name])
    right, findings = run(text, arguments, specs)
    assert not findings
    reported: Counter[str] = Counter()
    silent = []
    for kind, line, mutant in mutants(text):
        results, kinds = run(mutant, arguments, specs)
        reported[kind] += bool(kinds)
        if not kinds and results != right:
            silent.append(f"{kind}: line {line}: {text.splitlines()[line].strip()}")
    assert not silent, "\n".join(silent)
    expected = {"no barrier", "no predicate"}
    if name != "norm":
        expected |= {"no wait", "no commit", "weaker wait", "same buffer"}
    assert expected <= {kind for kind, count in reported.items() if count}


@pytest.mark.parametrize("name", KERNELS)
def test_shipped_kernels_have_no_findings_over_many_seeds(name):
    text, _, specs = lowered(*KERNELS[name])
    module = mlir.parse(KERNELS[name][0])
    kernel = DeviceKernel(mlir.parse(text))
    for seed in range(20):
        with mlir.context():
            arguments = inputs_of(module, seed)
        report = kernel.run([*arguments, *(np.zeros(s.shape, s.dtype) for s in specs)], seed=seed)
        assert report.ok, "\n".join(map(str, report.findings))
