"""cp.async: groups are each thread's own, so that producer warps copy for others and warps commit as often as they like;
what is read too early is reported for every order of the warps."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device import run_kernel
from support.kernels.instructions import at, load, run, store
from support.kernels.memrefs import SHARED, launch

SEEDS = range(8)
SLOTS, ROUNDS, N = 3, 5, 64  # buffers, rounds, elements of a round


def _copy(i: int) -> str:
    return f"""
  %from{i} = arith.addi %lane, %n{i} : index
  %k{i} = nvgpu.device_async_copy %x[%from{i}], %s[%s{i % SLOTS}, %lane], 1
    : memref<320xf32> to memref<{SLOTS}x{N}xf32, {SHARED}>
  nvvm.cp.async.commit.group"""


def pipeline() -> str:
    """Two warps copy round i into slot i mod 3 and keep two rounds in flight; two others read it. Barriers 1 to 3 say
    that a slot is full, 4 to 6 that it is empty."""
    full = [f"id = %full{i} number_of_threads = %all128" for i in range(SLOTS)]
    empty = [f"id = %empty{i} number_of_threads = %all128" for i in range(SLOTS)]
    numbers = "".join(
        f"%full{i} = arith.constant {1 + i} : i32\n%empty{i} = arith.constant {1 + SLOTS + i} : i32\n"
        f"%s{i} = arith.constant {i} : index\n"
        for i in range(SLOTS)
    )
    starts = "".join(f"%n{i} = arith.constant {N * i} : index\n" for i in range(ROUNDS))
    produce, consume = "", ""
    for i in range(ROUNDS):
        if i >= SLOTS:
            produce += f"\n  nvvm.barrier {empty[i % SLOTS]} // round {i}"
        produce += _copy(i)
        if i:
            produce += f"\n  nvvm.cp.async.wait.group 1 // round {i}"
            produce += f"\n  nvvm.barrier.arrive {full[(i - 1) % SLOTS]} // round {i - 1}"
        consume += f"""
  nvvm.barrier {full[i % SLOTS]} // round {i}
  %v{i} = memref.load %s[%s{i % SLOTS}, %back] : memref<{SLOTS}x{N}xf32, {SHARED}>
  %to{i} = arith.addi %lane, %n{i} : index
  memref.store %v{i}, %y[%to{i}] : memref<320xf32>"""
        if i + SLOTS < ROUNDS:
            consume += f"\n  nvvm.barrier.arrive {empty[i % SLOTS]} // round {i}"
    produce += (
        f"\n  nvvm.cp.async.wait.group 0\n  nvvm.barrier.arrive {full[(ROUNDS - 1) % SLOTS]} // round {ROUNDS - 1}"
    )
    return f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<{SLOTS}x{N}xf32, {SHARED}>
  %all128 = arith.constant 128 : i32
  {numbers} {starts}
  %lane = arith.remui %t, %c64 : index
  %back = arith.subi %c63, %lane : index
  %role = arith.cmpi ult, %t, %c64 : index
  scf.if %role {{ {produce}
  }} else {{ {consume}
  }}"""


PIPELINE = pipeline()


def outcome(body: str, seed: int) -> tuple[np.ndarray, np.ndarray, set[str], str]:
    x, y = np.arange(N * ROUNDS, dtype=np.float32), np.zeros(N * ROUNDS, np.float32)
    module = launch(body, "%x: memref<320xf32>, %y: memref<320xf32>", threads=128, smem=4 * N * SLOTS)
    report = run_kernel(module, [x, y], seed=seed)
    return x.reshape(ROUNDS, N)[:, ::-1].ravel(), y, report.kinds(), "\n".join(map(str, report.findings))


def test_producer_warps_copy_for_others():
    for seed in SEEDS:
        want, found, _, findings = outcome(PIPELINE, seed)
        assert not findings
        np.testing.assert_array_equal(found, want)


def _nth(text: str, what: str, n: int, new: str) -> str:
    parts = text.split(what)
    assert len(parts) > n + 1
    return what.join(parts[: n + 1]) + new + what.join(parts[n + 1 :])


COMMIT, WAIT1, WAIT0 = (f"nvvm.cp.async.{x}" for x in ("commit.group", "wait.group 1", "wait.group 0"))
LATE = {"unfinished copy", "race", "uninitialized read"}
SPOILED = {
    **{f"commit of round {i} removed": (_nth(PIPELINE, COMMIT, i, ""), LATE) for i in range(ROUNDS)},
    **{f"wait {i} one too weak": (_nth(PIPELINE, WAIT1, i, "nvvm.cp.async.wait.group 2"), LATE) for i in range(4)},
    "last wait one too weak": (PIPELINE.replace(WAIT0, WAIT1), LATE),
    "last wait removed": (PIPELINE.replace(WAIT0, ""), LATE),
    "full: arrive missing": (_nth(PIPELINE, "nvvm.barrier.arrive id = %full", 2, "// id = %full"), {"deadlock"}),
    "empty: arrive missing": (_nth(PIPELINE, "nvvm.barrier.arrive id = %empty", 1, "// id = %empty"), {"deadlock"}),
    "full: consumer does not wait": (_nth(PIPELINE, "nvvm.barrier id = %full", 3, "// id = %full"), LATE),
    "empty: producer does not wait": (_nth(PIPELINE, "nvvm.barrier id = %empty", 0, "// id = %empty"), {"race"}),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_pipeline_is_reported(name):
    body, wanted = SPOILED[name]
    for seed in SEEDS:
        assert outcome(body, seed)[2] & wanted, f"seed {seed}"


# -- how often each warp commits

UNEVEN = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<2x64xf32, {SHARED}>
  %first = arith.cmpi ult, %t, %c32 : index
  %far = arith.addi %t, %c64 : index
  %a = nvgpu.device_async_copy %x[%t], %s[%c0, %t], 1 : memref<320xf32> to memref<2x64xf32, {SHARED}>
  scf.if %first {{ nvvm.cp.async.commit.group }}
  %b2 = nvgpu.device_async_copy %x[%far], %s[%c1, %t], 1 : memref<320xf32> to memref<2x64xf32, {SHARED}>
  nvvm.cp.async.commit.group
  nvvm.cp.async.wait.group 1
  gpu.barrier
  %other = arith.xori %t, %c1 : index
  %who = arith.cmpi ult, %t, %bound : index
  scf.if %who {{
    %v = memref.load %s[%row, %other] : memref<2x64xf32, {SHARED}>
    memref.store %v, %y[%t] : memref<320xf32>
  }}
  nvvm.cp.async.wait.group 0
  gpu.barrier
  %w = memref.load %s[%c1, %other] : memref<2x64xf32, {SHARED}>
  memref.store %w, %y[%far] : memref<320xf32>"""


@pytest.mark.parametrize(
    "bound, row, late",
    [
        (32, 0, False),  # the first warp's first group is there
        (64, 0, True),  # the second warp has put both copies into one group
        (32, 1, True),  # the first warp's second group is still on its way
    ],
)
def test_warps_may_commit_different_numbers_of_groups(bound, row, late):
    body = f"%bound = arith.constant {bound} : index\n%row = arith.constant {row} : index\n{UNEVEN}"
    x, y = np.arange(320, dtype=np.float32), np.zeros(320, np.float32)
    for seed in SEEDS:
        module = launch(body, "%x: memref<320xf32>, %y: memref<320xf32>", threads=64, smem=512)
        report = run_kernel(module, [x, y], seed=seed)
        kinds = report.kinds() - {"unwritten result"}
        assert (kinds and kinds <= {"unfinished copy", "uninitialized read", "race"}) if late else not kinds
        if late:
            assert any("memref.load" in str(f) for f in report.findings)
        else:
            np.testing.assert_array_equal(y[:32], x[:32].reshape(16, 2)[:, ::-1].ravel())
            np.testing.assert_array_equal(y[64:128], x[64:128].reshape(32, 2)[:, ::-1].ravel())


def test_lanes_of_one_warp_may_commit_apart():
    """Odd lanes commit before even ones; each waits for its own group."""
    body = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<64xf32, {SHARED}>
  %bit = arith.andi %t, %c1 : index
  %odd = arith.cmpi eq, %bit, %c1 : index
  %k = nvgpu.device_async_copy %x[%t], %s[%t], 1 : memref<320xf32> to memref<64xf32, {SHARED}>
  scf.if %odd {{ nvvm.cp.async.commit.group }} else {{ EVEN }}
  nvvm.cp.async.wait.group 0
  gpu.barrier
  %other = arith.subi %c63, %t : index
  %w = memref.load %s[%other] : memref<64xf32, {SHARED}>
  memref.store %w, %y[%t] : memref<320xf32>"""
    x, y = np.arange(320, dtype=np.float32), np.zeros(320, np.float32)
    for even, kinds in (("nvvm.cp.async.commit.group", set()), ("", {"unfinished copy"})):
        for seed in SEEDS:
            module = launch(body.replace("EVEN", even), "%x: memref<320xf32>, %y: memref<320xf32>", smem=256)
            assert run_kernel(module, [x, y], seed=seed).kinds() - {"unwritten result"} == kinds


def test_a_store_where_a_copy_is_under_way():
    body = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<64xf32, {SHARED}>
  %z = arith.constant 0.0 : f32
  %other = arith.subi %c63, %t : index
  %k = nvgpu.device_async_copy %x[%t], %s[%t], 1 : memref<320xf32> to memref<64xf32, {SHARED}>
  nvvm.cp.async.commit.group
  EARLY
  gpu.barrier
  memref.store %z, %s[%other] : memref<64xf32, {SHARED}>
  gpu.barrier
  nvvm.cp.async.wait.group 0
  gpu.barrier
  %w = memref.load %s[%t] : memref<64xf32, {SHARED}>
  memref.store %w, %y[%t] : memref<320xf32>"""
    x, y = np.arange(320, dtype=np.float32), np.zeros(320, np.float32)
    for early, kinds in (("nvvm.cp.async.wait.group 0", set()), ("", {"unfinished copy"})):
        for seed in SEEDS:
            module = launch(body.replace("EARLY", early), "%x: memref<320xf32>, %y: memref<320xf32>", smem=256)
            assert run_kernel(module, [x, y], seed=seed).kinds() - {"unwritten result"} == kinds


# -- how much is read


@pytest.mark.parametrize("last, kinds", [(316, set()), (317, set()), (318, {"out of bounds"})])
def test_only_what_a_copy_reads_has_to_be_in_bounds(last, kinds):
    """Three of four elements are read from `last` of 320 on; the fourth is a zero."""
    body = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<4xf32, {SHARED}>
  %from = arith.constant {last} : index
  %three = arith.constant 3 : index
  %first = arith.cmpi eq, %t, %c0 : index
  scf.if %first {{
    %k = nvgpu.device_async_copy %x[%from], %s[%c0], 4, %three : memref<320xf32> to memref<4xf32, {SHARED}>
    nvvm.cp.async.commit.group
    nvvm.cp.async.wait.group 0
  }}
  gpu.barrier
  %four = arith.remui %t, %c4 : index
  %w = memref.load %s[%four] : memref<4xf32, {SHARED}>
  memref.store %w, %y[%t] : memref<320xf32>"""
    x, y = np.arange(320, dtype=np.float32), np.zeros(320, np.float32)
    module = launch("%c4 = arith.constant 4 : index\n" + body, "%x: memref<320xf32>, %y: memref<320xf32>", smem=16)
    assert run_kernel(module, [x, y]).kinds() - {"unwritten result", "misaligned"} == kinds
    if not kinds:
        np.testing.assert_array_equal(y[:4], [*x[last : last + 3], 0])


def by_pointers(wait: str, to: str = "%t16") -> str:
    """Every thread copies 16 bytes (of the last one only 4 are read), and reads its neighbour's."""
    return f"""%c12 = arith.constant 12 : i32
  %c31 = arith.constant 31 : i32
  %t16 = arith.muli %t, %c16 : i32
  %end = arith.cmpi eq, %t, %c31 : i32
  %c4b = arith.subi %c16, %c12 : i32
  %many = arith.select %end, %c4b, %c16 : i32
  {at("from", "%p0", "%t16", "i8")} {at("to", "%smem", to, "i8", "<3>")}
  nvvm.cp.async.shared.global %to, %from, 16, cache = cg, %many : !llvm.ptr<3>, !llvm.ptr<1>, i32
  nvvm.cp.async.commit.group
  {wait}
  nvvm.barrier
  %o = arith.subi %c31, %t : i32
  %o4 = arith.muli %o, %c4 : i32
  {load("v", "%smem", "%o4", "i32", "<3>")} {store("%v", "%p1", "%t")}"""


@pytest.mark.parametrize(
    "wait, to, kinds",
    [
        ("nvvm.cp.async.wait.group 0", "%t16", set()),
        ("", "%t16", {"unfinished copy"}),
        ("nvvm.cp.async.wait.group 1", "%t16", {"unfinished copy"}),
        ("nvvm.cp.async.wait.group 0", "%o16", {"misaligned"}),
    ],
)
def test_copies_by_pointers(wait, to, kinds):
    x, y = np.arange(125, dtype=np.int32), np.zeros(32, np.int32)
    body = by_pointers(wait, to).replace("%many =", "%o16 = arith.addi %t16, %c4 : i32\n  %many =")
    found = run(body, x, y, threads=32, smem=516)
    assert found >= kinds if kinds else not found
    if not kinds:
        np.testing.assert_array_equal(y, x[::4][::-1])
