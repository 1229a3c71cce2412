"""The sanitizer finds what it claims: shipped kernels with one barrier, fence, wait, commit, arrive, predicate, bound or
offset spoiled at a time. `benchmarks/mutants.py` tries them all; here every change of synchronization, and some of the
others."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel
from mlirc.host import run_module
from support.kernels.check import assert_close
from support.kernels.hopper import HANDS
from support.kernels.mutant_cases import HOPPER, KERNELS, case, lowered
from support.kernels.payloads import inputs_of
from support.mutants import warp as mutants_warp
from support.mutants.kernels import mutants

SYNCHRONIZATION = ("barrier", "fence", "wait", "commit", "arrive", "atomic", "mbarrier", "cluster")
EVERY = 61  # of the changes of predicates, bounds and offsets
EVERY_OF_WARPS = 127  # of those of masks, shuffles and initial values
EVERY_BY_HAND = 4  # of all changes of Hopper's kernels
NEEDED = {  # what has to be reported of each kernel, at the least
    "matmul, ring": {"arrive", "mbarrier", "wait"},
    "matmul, ring of a cluster": {"arrive", "mbarrier", "cluster"},
    "matmul, ring, few rows": {"arrive", "mbarrier", "wait"},
    "matmul, ring, TF32": {"arrive", "mbarrier", "wait", "fence"},
    "matmul, ring, split K": {"arrive", "mbarrier", "cluster"},
    "matmul": {"barrier", "wait", "commit"},
    "matmul, ring, swapped": {"mbarrier"},
    "attention": {"barrier", "wait", "commit"},
    "recurrence": {"barrier"},
    "attention, ring, ahead": {"arrive", "mbarrier", "wait"},
    "norm": {"barrier"},
    "stencil": {"barrier"},
    "split-K, fences": {"barrier", "fence"},
    "split-K, acq_rel": {"barrier", "atomic"},
    "grid barrier": {"barrier", "wait", "atomic"},
    "flags": {"barrier", "wait", "atomic"},
    "lock": {"barrier", "wait", "atomic"},
    "product": {"arrive", "mbarrier"},
    "bulk ring": {"arrive", "mbarrier", "wait"},
    "cluster": {"mbarrier", "cluster"},
    "ring of cp.async": {"arrive", "mbarrier"},
    "tensor stores": {"fence"},
}
SMALL = ("norm, 1 warp", "matmul, mma, odd")  # without barriers, and without asynchronous copies


@pytest.mark.parametrize("name", KERNELS)
def test_mutants(name):
    kernel = case(name, inputs=1)
    verdicts: dict[str, Counter[str]] = {"sync": Counter(), "data": Counter()}
    reported, silent = set(), []
    data = 0
    for mutant in mutants(kernel.text):
        many = name in (*HANDS, HOPPER) or (", ring" in name and mutant.what != "fence")
        if many and zlib.crc32(str(mutant).encode()) % EVERY_BY_HAND:
            continue
        kind = "sync" if mutant.what in SYNCHRONIZATION else "data"
        data += kind == "data"
        every = EVERY_OF_WARPS if mutant.what in mutants_warp.SUBJECTS else EVERY
        if kind == "data" and data % every and mutant.how not in ("removed", "of a buffer dropped"):
            continue
        verdict = kernel.judge(mutant)
        verdicts[kind][verdict] += 1
        if verdict == "rule":
            reported.add(mutant.what)
        again = kind == "sync" and verdict == "rule" and name not in HANDS and mutant.line % 4 == 1
        if again and kernel.judge(mutant, seed=1 + mutant.line) != "rule":
            silent.append(f"{mutant}, seed {1 + mutant.line}")
        if kind == "sync" and verdict in ("wrong", "close"):  # the numbers tell, but not why
            silent.append(str(mutant))
    assert not silent, "\n".join(silent)
    assert name in SMALL or NEEDED.get(name, NEEDED.get(name.split(",")[0], set())) <= reported
    data_found = verdicts["data"]["rule"] + verdicts["data"]["wrong"]
    assert (data_found or name in HANDS) and data_found >= 0.9 * (data_found + verdicts["data"]["close"])


@pytest.mark.parametrize("name", [n for n in KERNELS if KERNELS[n] != ("", "")])
def test_shipped_kernels_are_right_and_have_no_findings_over_many_seeds(name):
    text, first, specs = lowered(*KERNELS[name])
    module = mlir.parse(KERNELS[name][0])
    kernel = DeviceKernel(mlir.parse(text))
    right: list[np.ndarray] = []
    for seed in range(20):
        results = [np.zeros(s.shape, s.dtype) for s in specs]
        report = kernel.run([*first, *results], seed=seed)
        assert report.ok, "\n".join(map(str, report.findings))
        right = right or results
        assert [r.tobytes() for r in results] == [r.tobytes() for r in right], f"seed {seed}"
    name_of = mlir.ir.StringAttr(module.body.operations[0].attributes["sym_name"]).value
    assert_close(right, run_module(module, first, name_of), 1e-5 if "f32" in str(specs[0]) else 2e-2)
    with mlir.context():
        others = inputs_of(module, 1)
    report = kernel.run([*others, *(np.zeros(s.shape, s.dtype) for s in specs)], seed=20)
    assert report.ok, "\n".join(map(str, report.findings))
