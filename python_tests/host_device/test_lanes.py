"""Lanes that arrive, wait or fence without the rest of their warp: they speak for themselves, and for what a barrier of
the warp has brought to them."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device.tensor_maps import TensorMap
from support.kernels.copies import FENCE, STORE
from support.kernels.instructions import load, places, store

SYNC = "nvvm.bar.warp.sync %all : i32\n"
ARRIVE = "%k = nvvm.mbarrier.arrive %full : !llvm.ptr<3> -> i64\n"
WAIT = "nvvm.mbarrier.try_wait.parity %full, %c0, %patience : !llvm.ptr<3>, i32, i32\n"
LEADER = "%lead = arith.cmpi eq, %lane, %c0 : i32\n"
RACE = ("race", "llvm.load")


def handed(first: str, second: str, count: str = "%c1") -> set[tuple[str, str]]:
    """Warp 0 does `first`, warp 1 `second`; %data is shared memory of 32 words, %back counts the lanes down."""
    body = f"""%first = arith.cmpi eq, %t, %c0 : i32
      %patience = arith.constant 1000 : i32
      %c31 = arith.constant 31 : i32
      %full = llvm.getelementptr %smem[512] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
      scf.if %first {{ nvvm.mbarrier.init %full, {count} : !llvm.ptr<3>, i32 }}
      nvvm.barrier
      %lane = arith.remui %t, %c32 : i32
      %back = arith.subi %c31, %lane : i32
      {LEADER} %writes = arith.cmpi ult, %t, %c32 : i32
      scf.if %writes {{ {first} }} else {{ {second} }}\n"""
    found: set[tuple[str, str]] = set()
    for seed in range(3):
        y = np.zeros(32, np.int32)
        found |= places(body, y, threads=64, smem=520, seed=seed)
        assert found or sorted(y) == list(range(32))
    return found


WRITE = store("%lane", "%smem", "%lane", "i32", "<3>")
READ = load("v", "%smem", "%back", "i32", "<3>") + store("%v", "%p0", "%lane")


def by_leader(text: str) -> str:
    return f"scf.if %lead {{ {text} }}\n"


def test_one_lane_arrives_for_those_that_it_has_met():
    assert not handed(WRITE + SYNC + by_leader(ARRIVE), WAIT + READ)
    assert handed(WRITE + by_leader(ARRIVE), WAIT + READ) == {RACE}
    assert handed(SYNC + WRITE + by_leader(ARRIVE), WAIT + READ) == {RACE}
    assert not handed(WRITE + ARRIVE, WAIT + READ, "%c32")  # every lane for itself


def test_one_lane_waits_for_those_that_it_meets():
    assert not handed(WRITE + ARRIVE, by_leader(WAIT) + SYNC + READ, "%c32")
    assert handed(WRITE + ARRIVE, by_leader(WAIT) + READ, "%c32") == {RACE}
    assert handed(WRITE + ARRIVE, SYNC + by_leader(WAIT) + READ, "%c32") == {RACE}


def test_what_one_lane_has_learned_it_may_use_itself():
    alone = load("v", "%smem", "%c31", "i32", "<3>") + store("%v", "%p0", "%c0")
    rest = "%c1x = arith.constant 1 : i32\n" + WAIT.replace("%full", "%full") + by_leader("")
    rest += load("u", "%smem", "%back", "i32", "<3>") + store("%u", "%p0", "%lane")
    assert not handed(WRITE + ARRIVE, by_leader(WAIT + alone) + rest, "%c32")


def test_reads_end_with_the_arrival_of_their_own_lanes():
    """Warp 0 reads what warp 1 then overwrites."""
    fill = store("%lane", "%p0", "%lane")
    read = load("v", "%smem", "%back", "i32", "<3>")
    begin = by_leader("")
    head = store("%lane", "%smem", "%lane", "i32", "<3>") + SYNC + fill + begin
    write = WAIT + store("%c0", "%smem", "%lane", "i32", "<3>")
    assert not handed(head + read + SYNC + by_leader(ARRIVE), write)
    assert handed(head + read + by_leader(ARRIVE), write) == {("race", "llvm.store")}


@pytest.mark.parametrize(
    "between, kinds",
    [(SYNC + "%f = FENCE", set()), ("%f = FENCE", {("missing proxy fence", STORE), ("race", STORE)}),
     ("ALL" + SYNC, set()), ("ALL", {("race", STORE)})],
)  # fmt: skip
def test_one_lane_fences_what_it_has_met(between, kinds):
    """All lanes write a box that lane 0 copies out."""
    copy = f"{STORE} %map0, %smem, box[%c0, %c0] : !llvm.ptr, !llvm.ptr<3>\nnvvm.cp.async.bulk.commit.group\n"
    copy += "nvvm.cp.async.bulk.wait_group 0\n"
    inside = FENCE if "%f" in between else ""
    front = between.replace("%f = FENCE", "").replace("ALL", FENCE)
    body = LEADER.replace("%lane", "%t") + load("x", "%p0", "%t") + store("%x", "%smem", "%t", "i32", "<3>")
    x, y = np.arange(32, dtype=np.int32).reshape(2, 16), np.zeros((2, 16), np.int32)
    assert places(body + front + by_leader(inside + copy), x, TensorMap(y, (2, 16)), smem=128) == kinds
    assert kinds or (x == y).all()
