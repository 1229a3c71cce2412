"""What orders warps: mbarriers and named barriers of part of a block. A producer and a consumer warpgroup that do it right
give no finding, whatever the order they run in; without one arrival, wait or fence there is one."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device.direct import run_function
from support.kernels.instructions import load, module, run, store
from support.kernels.mbarriers import BARS, INIT, ROUNDS, SLOTS


def slot(name: str, base: int) -> str:
    return (
        f"%{name}0 = llvm.getelementptr %smem[{base}] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8\n"
        f"%{name} = llvm.getelementptr %{name}0[%s] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, i64\n"
    )


ROUND = f"""%s = arith.remui %i, %c2 : i32
  %round = arith.divui %i, %c2 : i32
  %odd = arith.andi %round, %c1 : i32
  %free = arith.xori %odd, %c1 : i32
  %row = arith.muli %s, %c128 : i32
  %global = arith.muli %i, %c128 : i32
  %back = arith.subi %c127, %lane : i32
  %mine = arith.addi %row, %lane : i32
  %theirs = arith.addi %row, %back : i32
  %out = arith.addi %global, %lane : i32
  {slot("full", BARS)} {slot("empty", BARS + 8 * SLOTS)}"""
PRODUCE = f"""scf.for %i = %c0 to %c5 step %c1 : i32 {{
  {ROUND}
  nvvm.mbarrier.try_wait.parity %empty, %free, %patience : !llvm.ptr<3>, i32, i32
  {load("x", "%p0", "%out")} {store("%x", "%smem", "%mine", "i32", "<3>")}
  %f = nvvm.mbarrier.arrive %full : !llvm.ptr<3> -> i64
}}"""
CONSUME = f"""scf.for %i = %c0 to %c5 step %c1 : i32 {{
  {ROUND}
  nvvm.mbarrier.try_wait.parity %full, %odd, %patience : !llvm.ptr<3>, i32, i32
  {load("y", "%smem", "%theirs", "i32", "<3>")} {store("%y", "%p1", "%out")}
  %e = nvvm.mbarrier.arrive %empty : !llvm.ptr<3> -> i64
}}"""
PIPELINE = f"""%c5 = arith.constant {ROUNDS} : i32
  %c127 = arith.constant 127 : i32
  %patience = arith.constant 1000 : i32
  %first = arith.cmpi eq, %t, %c0 : i32
  scf.if %first {{ {INIT} }}
  nvvm.barrier
  %lane = arith.remui %t, %c128 : i32
  %role = arith.cmpi ult, %t, %c128 : i32
  scf.if %role {{ {PRODUCE} }} else {{ {CONSUME} }}"""


def pipeline(body: str, seed: int) -> tuple[np.ndarray, np.ndarray, set[str]]:
    x = np.arange(128 * ROUNDS, dtype=np.int32)
    y = np.zeros_like(x)
    kinds = run(body, x, y, threads=256, smem=BARS + 16 * SLOTS, seed=seed)
    return x.reshape(ROUNDS, 128)[:, ::-1].ravel(), y, kinds


def test_a_right_pipeline_has_no_finding_in_any_order():
    for seed in range(20):
        want, found, kinds = pipeline(PIPELINE, seed)
        assert not kinds
        np.testing.assert_array_equal(found, want)


SPOILED = {
    "producer does not wait": ("nvvm.mbarrier.try_wait.parity %empty, %free, %patience : !llvm.ptr<3>, i32, i32", ""),
    "consumer does not wait": ("nvvm.mbarrier.try_wait.parity %full, %odd, %patience : !llvm.ptr<3>, i32, i32", ""),
    "producer never arrives": ("%f = nvvm.mbarrier.arrive %full : !llvm.ptr<3> -> i64", ""),
    "consumer never arrives": ("%e = nvvm.mbarrier.arrive %empty : !llvm.ptr<3> -> i64", ""),
    "consumer waits for the wrong parity": ("parity %full, %odd", "parity %full, %free"),
    "producer waits for the wrong parity": ("parity %empty, %free", "parity %empty, %odd"),
    "consumer waits at the wrong mbarrier": ("parity %full, %odd", "parity %empty, %odd"),
    "half of the arrivals suffice": ("nvvm.mbarrier.init %b0, %c128", "nvvm.mbarrier.init %b0, %c64"),
    "one warp's arrival is missing": ("nvvm.mbarrier.init %b0, %c128", "nvvm.mbarrier.init %b0, %c96"),
    "no barrier behind the initialization": ("nvvm.barrier\n", "\n"),
    "consumer reads the next slot": ("%theirs = arith.addi %row, %back", "%theirs = arith.subi %c255, %mine"),
}


@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_spoiled_pipeline_is_reported(name, seed):
    old, new = SPOILED[name]
    assert old in PIPELINE
    body = "%c96 = arith.constant 96 : i32\n%c255 = arith.constant 255 : i32\n" + PIPELINE.replace(old, new)
    _, _, kinds = pipeline(body, seed)
    assert kinds


def test_an_arrival_before_the_write_is_a_race():
    parts = PIPELINE.split("%f = nvvm.mbarrier.arrive %full : !llvm.ptr<3> -> i64")
    early = parts[0].replace(
        "nvvm.mbarrier.try_wait.parity %empty, %free, %patience : !llvm.ptr<3>, i32, i32",
        "nvvm.mbarrier.try_wait.parity %empty, %free, %patience : !llvm.ptr<3>, i32, i32\n"
        "%f = nvvm.mbarrier.arrive %full : !llvm.ptr<3> -> i64\n",
    )
    kinds = set().union(*(pipeline(early + parts[1], seed)[2] for seed in range(3)))
    assert "race" in kinds


# -- named barriers

HANDOVER = f"""%lane = arith.remui %t, %c64 : i32
  %c63 = arith.constant 63 : i32
  %back = arith.subi %c63, %lane : i32
  %role = arith.cmpi ult, %t, %c64 : i32
  scf.if %role {{ {load("x", "%p0", "%lane")} {store("%x", "%smem", "%lane", "i32", "<3>")}
    nvvm.barrier.arrive id = %c1 number_of_threads = %c128
  }} else {{
    nvvm.barrier id = %c1 number_of_threads = %c128
    {load("y", "%smem", "%back", "i32", "<3>")} {store("%y", "%p1", "%lane")}
  }}"""


def handover(body: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, set[str]]:
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    kinds = run(body, x, y, threads=128, smem=256, seed=seed)
    return x[::-1], y, kinds


def test_a_named_barrier_hands_over():
    for seed in range(20):
        want, found, kinds = handover(HANDOVER, seed)
        assert not kinds
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(
    "old, new, kind",
    [
        ("nvvm.barrier id = %c1 number_of_threads = %c128", "", "race"),
        ("nvvm.barrier.arrive id = %c1 number_of_threads = %c128", "", "deadlock"),
        ("nvvm.barrier id = %c1", "nvvm.barrier id = %c2", "deadlock"),
        ("nvvm.barrier id = %c1 number_of_threads = %c128", "nvvm.barrier id = %c1 number_of_threads = %c64", "race"),
    ],
)
def test_a_spoiled_handover_is_reported(old, new, kind):
    assert old in HANDOVER
    found = set().union(*(handover(HANDOVER.replace(old, new), seed)[2] for seed in range(4)))
    assert kind in found


def test_a_barrier_of_some_warps_orders_only_those():
    """Warps 0 and 1 meet; warp 2, which does not, reads what warp 0 wrote."""
    body = f"""%half = arith.cmpi ult, %t, %c64 : i32
      scf.if %half {{ {store("%t", "%smem", "%t", "i32", "<3>")}
        nvvm.barrier id = %c1 number_of_threads = %c64 }}
      %other = arith.xori %t, WHO : i32
      READS"""
    reads = f"scf.if %half {{ {load('y', '%smem', '%other', 'i32', '<3>')} {store('%y', '%p0', '%t')} }}"
    y = np.zeros(128, np.int32)
    assert not run(body.replace("WHO", "%c32").replace("READS", reads), y, threads=128, smem=512)
    np.testing.assert_array_equal(y[:64], np.arange(64) ^ 32)
    reads = (
        f"%late = arith.cmpi uge, %t, %c64 : i32\n"
        f"scf.if %late {{ {load('y', '%smem', '%other', 'i32', '<3>')} {store('%y', '%p0', '%t')} }}"
    )
    kinds = run(body.replace("WHO", "%c64").replace("READS", reads), y, threads=128, smem=512)
    assert kinds & {"race", "uninitialized read"}


# -- proxies

FENCE = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}"
STORED = f"""%bar = llvm.getelementptr %smem[512] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
  %patience = arith.constant 1000 : i32
  %n = arith.constant 512 : i32
  %first = arith.cmpi eq, %t, %c0 : i32
  %leader = arith.cmpi eq, %t, %c128 : i32
  scf.if %first {{ nvvm.mbarrier.init %bar, %c128 : !llvm.ptr<3>, i32 }}
  nvvm.barrier
  %role = arith.cmpi ult, %t, %c128 : i32
  scf.if %role {{ {load("x", "%p0", "%t")} {store("%x", "%smem", "%t", "i32", "<3>")}
    WRITER
    %f = nvvm.mbarrier.arrive %bar : !llvm.ptr<3> -> i64
  }} else {{
    EARLY
    nvvm.mbarrier.try_wait.parity %bar, %c0, %patience : !llvm.ptr<3>, i32, i32
    READER
    scf.if %leader {{
      nvvm.cp.async.bulk.global.shared.cta %p1, %smem, %n : !llvm.ptr<1>, !llvm.ptr<3>
      nvvm.cp.async.bulk.commit.group
      nvvm.cp.async.bulk.wait_group 0 }}
  }}"""


@pytest.mark.parametrize(
    "place, kinds",
    [("WRITER", set()), ("READER", set()), ("EARLY", {"missing proxy fence"}), ("none", {"missing proxy fence"})],
)
def test_a_proxy_fence_covers_what_its_warp_has_seen(place, kinds):
    body = STORED.replace(place, FENCE)
    for other in ("WRITER", "READER", "EARLY"):
        body = body.replace(other, "")
    for seed in range(4):
        x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
        m = module(body, 2)
        report = run_function(m, "k", [x, y], (1, 1, 1), (256, 1, 1), 528, seed=seed)
        assert report.kinds() == kinds, [str(f) for f in report.findings]
        np.testing.assert_array_equal(x, y)
