"""mbarriers on the host device: who may use one when, and every form of arrival and wait."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device.direct import run_function
from mlirc.device.tensor_maps import TensorMap
from support.kernels.instructions import CLUSTER, MEET, MULTICAST, at, ints, load, module, places, run, store
from support.kernels.mbarriers import BULK, FENCE, HEAD, ON, PARITY

PROXY = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}\n"
MISSING = {"missing mbarrier fence"}


def bulk(body: str) -> set[str]:
    x, y = ints(128), np.zeros(128, np.int32)
    kinds = run(body, x, y, threads=128, smem=1040)
    assert kinds or (x == y).all()
    return kinds


@pytest.mark.parametrize(
    "fence, kinds",
    [
        (FENCE, set()),
        ("", MISSING),
        (PROXY, set()),  # covers what its thread has done, mbarriers included
    ],
)
def test_copies_tell_mbarriers_whose_initialization_was_fenced(fence, kinds):
    assert bulk(BULK.replace(FENCE, fence)) == kinds


def test_a_fence_in_front_of_the_initialization_is_none():
    init = "nvvm.mbarrier.init %bar, %c1 : !llvm.ptr<3>, i32"
    assert bulk(BULK.replace(FENCE, "").replace(init, FENCE + init)) == MISSING


@pytest.mark.parametrize("fence, kinds", [(FENCE, MISSING), (PROXY, set())])
def test_fences_by_another_thread(fence, kinds):
    """fence.mbarrier.init is of the thread that initialized; a proxy fence covers what its thread has seen."""
    other = (
        "%other = arith.cmpi eq, %t, %c32 : i32\nscf.if %other { " + fence + "}\nnvvm.barrier\n  scf.if %first { %to"
    )
    assert bulk(BULK.replace(FENCE, "").replace("scf.if %first { %to", other)) == kinds


def test_multicast_and_remote_arrivals_need_the_fence():
    y = np.zeros((4, 8, 16), np.int32)
    arguments = [y, TensorMap(ints(8, 16), (8, 16))]
    bad = MULTICAST.replace(FENCE, "")
    report = run_function(module(bad, 1, CLUSTER, maps=1), "k", arguments, (4, 1, 1), (128, 1, 1), 1040)
    assert report.kinds() == MISSING
    assert {f.op for f in report.findings} == {"nvvm.cp.async.bulk.tensor.shared.cluster.global"}
    assert remote(FENCE) == set() and remote("") == MISSING


def remote(fence: str) -> set[str]:
    """Thread 0 of each block arrives at the mbarrier of the other block of its cluster."""
    body = f"""%first = arith.cmpi eq, %t, %c0 : i32
      %patience = arith.constant 1000 : i32
      scf.if %first {{ nvvm.mbarrier.init %smem, %c1 : !llvm.ptr<3>, i32
        {fence} }}
      {MEET} %rank = nvvm.read.ptx.sreg.cluster.ctarank : i32
      %other = arith.xori %rank, %c1 : i32
      scf.if %first {{ %far = nvvm.mapa %smem, %other : !llvm.ptr<3> -> !llvm.ptr<7>
        nvvm.mbarrier.arrive %far {{scope = #nvvm.mem_scope<cluster>}} : !llvm.ptr<7> }}
      nvvm.mbarrier.try_wait.parity %smem, %c0, %patience : !llvm.ptr<3>, i32, i32
      {MEET}"""
    return run(body, ints(1), blocks=2, smem=16, attributes=CLUSTER)


# -- arrivals and waits of every form

OUT = store("%c7", "%p0", "%t")
WAITED = f"nvvm.mbarrier.try_wait.parity %smem, {PARITY}, %patience : {ON}, i32, i32\n"


def form(body: str, count: str = "%c32", threads: int = 32) -> set[tuple[str, str]]:
    y = np.zeros(threads, np.int32)
    found = places(HEAD.replace("COUNT", count) + body + OUT, y, threads=threads, smem=64)
    assert found or (y == 7).all()
    return found


def until(asks: str) -> str:
    """Asks (for %d) until the answer is yes."""
    return f"""scf.while : () -> () {{
        {asks}
        %again = arith.xori %d, %true : i1
        scf.condition(%again)
      }} do {{ scf.yield }}\n"""


def test_tokens_are_waited_for():
    for wait in ("test.wait", "try_wait"):
        asks = f"%d = nvvm.mbarrier.{wait} %smem, %k : {ON}, i64 -> i1\n"
        body = f"%true = arith.constant true\n%k = nvvm.mbarrier.arrive %smem : {ON} -> i64\n"
        assert not form(body + until(asks))
        assert form(body + until(asks), "%c64") == {("deadlock", f"nvvm.mbarrier.{wait}")}


def test_a_thread_that_drops_out_is_not_waited_for_again():
    last = "%c31 = arith.constant 31 : i32\n%drops = arith.cmpi eq, %t, %c31 : i32\n"
    drop = f"%k = nvvm.mbarrier.arrive_drop %smem : {ON} -> i64"
    stay = f"%k = nvvm.mbarrier.arrive %smem : {ON} -> i64"
    again = WAITED.replace(PARITY + ",", "%c1,")
    rest = f"""scf.if %drops {{ {drop} }} else {{ {stay} }}
      {WAITED} scf.if %drops {{ }} else {{ %l = nvvm.mbarrier.arrive %smem : {ON} -> i64 }}
      {again}"""
    assert not form(last + rest)
    assert form(last + rest.replace(drop, stay)) == {("deadlock", "nvvm.mbarrier.try_wait.parity")}


def test_arrivals_that_must_not_complete():
    two = f"%k = nvvm.mbarrier.arrive.nocomplete %smem, %c2 : {ON}, i32 -> i64\n"
    one = f"%l = nvvm.mbarrier.arrive %smem : {ON} -> i64\n"
    assert not form("scf.if %first { " + two + one + "}\n" + WAITED, "%c3")
    assert form("scf.if %first { " + two + "}\n" + WAITED, "%c2") == {
        ("bad mbarrier", "nvvm.mbarrier.arrive.nocomplete")
    }


def test_bytes_are_expected_and_completed_without_arrivals():
    more, done = (f"nvvm.mbarrier.{x}_tx %smem, %c16 : {ON}, i32\n" for x in ("expect", "complete"))
    arrive = f"%k = nvvm.mbarrier.arrive %smem : {ON} -> i64\n"
    assert not form("scf.if %first { " + more + done + "}\n" + arrive + WAITED)
    assert form("scf.if %first { " + more + "}\n" + arrive + WAITED) == {("deadlock", "nvvm.mbarrier.try_wait.parity")}
    drops = f"%k = nvvm.mbarrier.arrive_drop.expect_tx %smem, %c16 : {ON}, i32 -> i64\n"
    assert not form("scf.if %first { " + drops + done + "}\n" + WAITED, "%c1")
    assert form("scf.if %first { " + drops + "}\n" + WAITED, "%c1") == {("deadlock", "nvvm.mbarrier.try_wait.parity")}


def handed(arrive: str, wait: str, seed: int = 0) -> set[tuple[str, str]]:
    """Warp 0 writes, warp 1 reads behind the mbarrier."""
    body = f"""%true = arith.constant true
      %writes = arith.cmpi ult, %t, %c32 : i32
      %back = arith.remui %t, %c32 : i32
      %data = llvm.getelementptr %smem[64] : ({ON}) -> {ON}, i8
      scf.if %writes {{ {store("%t", "%data", "%t", "i32", "<3>")} {arrive} }} else {{ {wait}
        {load("v", "%data", "%back", "i32", "<3>")} {store("%v", "%p0", "%back")} }}\n"""
    y = np.zeros(64, np.int32)
    return places(HEAD.replace("COUNT", "%c32") + body, y, threads=64, smem=256, seed=seed)


def test_relaxed_arrivals_and_waits_order_nothing():
    arrive = f"%k = nvvm.mbarrier.arrive %smem : {ON} -> i64"
    wait = until(f"%zero = arith.constant 0 : i32\n%d = nvvm.mbarrier.try_wait %smem, %zero : {ON}, i32 -> i1")
    assert not handed(arrive, wait)
    race = {("race", "llvm.load")}
    assert handed(arrive.replace("%smem :", "%smem {relaxed = true} :"), wait) == race
    assert handed(arrive, wait.replace("%zero :", "%zero {relaxed = true} :")) == race


@pytest.mark.parametrize("op", ["try_wait", "test.wait"])
def test_an_answer_that_nobody_heeds_is_no_wait(op):
    """Asked once, or twice: the phase may have ended, or not."""
    arrive = f"%k = nvvm.mbarrier.arrive %smem : {ON} -> i64"
    asks = f"%zero = arith.constant 0 : i32\n%d = nvvm.mbarrier.{op} %smem, %zero : {ON}, i32 -> i1\n"
    used = "%e = arith.extui %d : i1 to i32\n" + store("%e", "%p0", "%t")
    late = f"scf.if %d {{ }} else {{ {WAITED} }}\n"
    for seed in range(3):
        assert not handed(arrive, until(asks), seed)
        assert not handed(arrive, asks + late, seed)
        for ignored in (asks, asks + used):
            assert "race" in {k for k, _ in handed(arrive, ignored, seed)}
        branch = "scf.if %d { " + store("%c1", "%p0", "%t") + "}\n"
        assert "race" in {k for k, _ in handed(arrive, asks + branch, seed)}


@pytest.mark.parametrize("noinc, count", [("", "%c32"), (" {noinc = true}", "%c64")])
def test_arrivals_that_follow_copies(noinc, count):
    """Each of 32 threads copies 16 bytes. Without noinc the arrival counts itself, so that 32 plain ones are needed."""
    x, y = ints(128), np.zeros(128, np.int32)
    body = f"""%words = arith.muli %t, %c4 : i32
      {at("from", "%p0", "%words")} {at("to", "%data", "%words", "i32", "<3>")}
      nvvm.cp.async.shared.global %to, %from, 16, cache = cg : {ON}, !llvm.ptr<1>
      nvvm.cp.async.mbarrier.arrive %smem{noinc} : {ON}
      %k = nvvm.mbarrier.arrive %smem : {ON} -> i64
      {WAITED} %back = arith.subi %last, %words : i32
      {load("v", "%data", "%back", "i32", "<3>")} {store("%v", "%p1", "%words")}"""
    head = HEAD.replace("COUNT", count) + f"""%last = arith.constant 124 : i32
      %data = llvm.getelementptr %smem[64] : ({ON}) -> {ON}, i8\n"""  # fmt: skip
    assert not places(head + body, x, y, threads=32, smem=1024)
    np.testing.assert_array_equal(y[::4], x[::4][::-1])
    found = places(head + body.replace(WAITED, ""), x, y, threads=32, smem=1024)
    assert ("race", "llvm.load") in found or ("uninitialized read", "llvm.load") in found
    other = "%c64" if count == "%c32" else "%c32"
    wrong = {k for k, _ in places(head.replace(count + " :", other + " :") + body, x, y, threads=32, smem=1024)}
    assert wrong & {"deadlock", "unfinished copy"}
