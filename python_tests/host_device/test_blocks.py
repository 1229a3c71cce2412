"""Blocks that order each other through global memory: kernels that do it right give no finding, whatever the order they
run in, and without one half of the order there is a finding that names it."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel
from mlirc.device.limits import resident_blocks
from mlirc.device.report import Finding, Report
from support.kernels import order as kernels


def ints(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-9, 9, shape).astype(np.int32)


A, RING, TILES, ROWS = ints(11, 37).astype(np.float32), ints(150), ints(2, 5, 37), ints(5, 37)
KERNELS = {
    "split-K, fences": (kernels.split_k(), A, kernels.split_k_right),
    "split-K, acq_rel": (kernels.split_k(fenced=False), A, kernels.split_k_right),
    "grid barrier": (kernels.grid_barrier(), RING, kernels.grid_barrier_right),
    "producer and consumer": (kernels.producer_consumer(), TILES, kernels.producer_consumer_right),
    **{f"lock, {x}": (kernels.locked_sum(x), ROWS, kernels.locked_sum_right) for x in kernels.LOCKS},
}


def run(text: str, x: np.ndarray, right: list[np.ndarray], seed: int = 0) -> tuple[list[np.ndarray], Report]:
    results = [np.zeros_like(r) for r in right]
    return results, DeviceKernel(mlir.parse(text)).run([x, *results], seed=seed)


def check(text: str, x: np.ndarray, right: list[np.ndarray], seeds) -> None:
    for seed in seeds:
        results, report = run(text, x, right, seed)
        assert report.ok, "\n".join(map(str, report.findings))
        for a, b in zip(results, right, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_has_no_finding_in_any_order(name):
    text, x, right = KERNELS[name]
    check(text, x, right(x), range(8))


@pytest.mark.parametrize(
    "text, x, right",
    [
        (kernels.split_k(rows=1, depth=1, splits=1), ints(1, 1).astype(np.float32), kernels.split_k_right),
        (kernels.split_k(200, 7, 5, threads=96), ints(7, 200).astype(np.float32), kernels.split_k_right),
        (kernels.grid_barrier(5), ints(5), kernels.grid_barrier_right),
        (kernels.grid_barrier(391, threads=96), ints(391), kernels.grid_barrier_right),
        (kernels.producer_consumer(3, 4, 1, 33, threads=160), ints(3, 4, 33), kernels.producer_consumer_right),
        (kernels.producer_consumer(1, 9, 3, 1, threads=32), ints(1, 9, 1), kernels.producer_consumer_right),
        (kernels.locked_sum("ticket", 9, 130, threads=160), ints(9, 130), kernels.locked_sum_right),
        (kernels.locked_sum("test and set", 2, 7, threads=16), ints(2, 7), kernels.locked_sum_right),
    ],
)
def test_odd_shapes(text, x, right):
    check(text, x, right(x), range(3))


def spoil(text: str, old: str, new: str, nth: int = 0) -> tuple[str, int]:
    """The text with the nth occurrence replaced, and the line it is on."""
    at = -1
    for _ in range(nth + 1):
        at = text.index(old, at + 1)
    return text[:at] + new + text[at + len(old) :], text[:at].count("\n") + 1


ACQ_REL = 'syncscope("device") acq_rel'
RELEASED, ACQUIRED = 'syncscope("device") release', 'syncscope("device") acquire'
NO_RELEASE, NO_ACQUIRE = "no release behind that", "does not acquire"
NARROW_RELEASE, NARROW_ACQUIRE = "scope of the release is too narrow", "scope of the acquire is too narrow"
BEFORE, BEHIND = "no release covers that", "and no barrier follows"
RACE = "race between blocks"
SPOILED = [  # kernel, what is replaced, by what, which of its occurrences, finding, its message
    ("split-K, fences", "nvvm.memory.barrier <gpu>", "", 0, RACE, NO_RELEASE),
    ("split-K, fences", "nvvm.memory.barrier <gpu>", "", 1, RACE, NO_ACQUIRE),
    ("split-K, fences", "nvvm.memory.barrier <gpu>", "nvvm.memory.barrier <cta>", 0, RACE, NARROW_RELEASE),
    ("split-K, fences", "nvvm.memory.barrier <gpu>", "nvvm.memory.barrier <cta>", 1, RACE, NARROW_ACQUIRE),
    ("split-K, fences", "gpu.barrier", "", 0, RACE, BEFORE),
    ("split-K, fences", "gpu.barrier", "", 1, RACE, BEHIND),
    ("split-K, acq_rel", ACQ_REL, 'syncscope("device") monotonic', 0, RACE, ""),
    ("split-K, acq_rel", ACQ_REL, 'syncscope("device") acquire', 0, RACE, NO_RELEASE),
    ("split-K, acq_rel", ACQ_REL, RELEASED, 0, RACE, NO_ACQUIRE),
    ("split-K, acq_rel", ACQ_REL, 'syncscope("block") acq_rel', 0, RACE, NARROW_RELEASE),
    ("split-K, acq_rel", "gpu.barrier", "nvvm.bar.warp.sync %wide_mask : i32", 0, RACE, BEFORE),
    ("split-K, fences", "memref.store %i0, %flags[%tile] : memref<1xi32>", "", 0, "unwritten result", ""),
    ("grid barrier", ACQ_REL, 'syncscope("device") acquire', 0, RACE, NO_RELEASE),
    ("grid barrier", RELEASED, 'syncscope("device") monotonic', 0, RACE, ""),
    ("grid barrier", ACQUIRED, 'syncscope("device") monotonic', 0, RACE, NO_ACQUIRE),
    ("grid barrier", ACQUIRED, 'syncscope("block") acquire', 0, RACE, NARROW_ACQUIRE),
    ("grid barrier", "gpu.barrier", "", 0, RACE, BEFORE),
    ("grid barrier", "gpu.barrier", "", 1, RACE, ""),
    ("grid barrier", "llvm.store %i0, %count", "llvm.store %i7, %count", 0, "deadlock", "sees 1"),
    ("producer and consumer", RELEASED, 'syncscope("device") monotonic', 0, RACE, NO_RELEASE),
    ("producer and consumer", RELEASED, 'syncscope("device") monotonic', 1, RACE, NO_RELEASE),
    ("producer and consumer", RELEASED, 'syncscope("block") release', 0, RACE, NARROW_RELEASE),
    ("producer and consumer", ACQUIRED, 'syncscope("device") monotonic', 0, RACE, NO_ACQUIRE),
    ("producer and consumer", ACQUIRED, 'syncscope("block") acquire', 1, RACE, NARROW_ACQUIRE),
    ("lock, ticket", ACQUIRED, 'syncscope("device") monotonic', 0, RACE, NO_ACQUIRE),
    ("lock, ticket", RELEASED, 'syncscope("device") monotonic', 0, RACE, NO_RELEASE),
    ("lock, test and set", ACQUIRED, 'syncscope("device") monotonic', 0, RACE, NO_ACQUIRE),
    ("lock, test and set", RELEASED, 'syncscope("device") monotonic', 0, RACE, NO_RELEASE),
    ("lock, exchange and fences", 'llvm.fence syncscope("device") release', "", 0, RACE, NO_RELEASE),
    ("lock, exchange and fences", 'llvm.fence syncscope("device") acquire', "", 0, RACE, NO_ACQUIRE),
    ("lock, exchange and fences", 'llvm.fence syncscope("device")', 'llvm.fence syncscope("block")', 0, RACE, "narrow"),
    ("lock, exchange and fences", "gpu.barrier", "", 1, RACE, BEFORE),
]  # fmt: skip


def finding(report: Report, kind: str, message: str) -> Finding:
    return next(f for f in report.findings if f.kind == kind and message in f.message)


@pytest.mark.parametrize("name, old, new, nth, kind, message", SPOILED)
def test_without_one_half_of_the_order_there_is_a_finding(name, old, new, nth, kind, message):
    text, x, right = KERNELS[name]
    text, _ = spoil(text, old, new, nth)
    text = text.replace("%wide_mask", "%i7")
    for seed in range(4):
        _, report = run(text, x, right(x), seed)
        found = [f for f in report.findings if f.kind == kind]
        assert found, f"seed {seed}: {[str(f) for f in report.findings]}"
        assert any(message in f.message for f in found), "\n".join(map(str, report.findings))


def test_the_finding_names_both_places():
    text, x, right = KERNELS["split-K, fences"]
    spoiled, _ = spoil(text, "nvvm.memory.barrier <gpu>", "")
    lines = spoiled.split("\n")
    written = next(i for i, line in enumerate(lines, 1) if "memref.store %sum, %p[" in line)
    read = next(i for i, line in enumerate(lines, 1) if "memref.load %p[" in line)
    found = finding(run(spoiled, x, right(x))[1], RACE, NO_RELEASE)
    assert f":{read}:" in found.location and f"line:{written}:" in found.message


def test_more_blocks_than_a_gpu_holds_cannot_meet():
    smem = 200 << 10
    assert resident_blocks(32, smem) == 132
    x = ints(5)
    right = kernels.grid_barrier_right(x, 1)
    check(kernels.grid_barrier(5, 1, threads=32, blocks=132, smem=smem), x, right, [0])
    _, report = run(kernels.grid_barrier(5, 1, threads=32, blocks=133, smem=smem), x, right)
    assert "deadlock" in report.kinds()
    first = report.findings[0]
    assert (
        "likewise in 131 more blocks; 1 of the blocks have not started: a GPU holds 132 of 32 threads" in first.message
    )
    assert "workspace 0 to change" in first.message and "sees 0" in first.message and first.op == "scf.while"


@pytest.mark.parametrize(
    "threads, shared, per_sm",
    [(1024, 0, 2), (128, 0, 16), (32, 0, 32), (96, 48 << 10, 4), (256, 227 << 10, 1), (384, 113 << 10, 2), (33, 0, 32)],
)
def test_residency(threads, shared, per_sm):
    assert resident_blocks(threads, shared) == 132 * per_sm
