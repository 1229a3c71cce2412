"""Lanes of one warp are ordered by barriers of the warp or the block, and by mbarriers: not by convergence, shuffles or a
wait for something else. So are copies, which read and write for the lane that begins them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mlirc.device.order.lane_order import Syncs, unordered
from mlirc.device.order.races import Access
from mlirc.device.tensor_maps import TensorMap
from support.kernels.copies import COMMIT, FENCE, READ, STORE
from support.kernels.instructions import load, places, store

SYNC = "nvvm.bar.warp.sync %all : i32\n"
ALONE = "%lead = arith.cmpi eq, %t, %c0 : i32\n%c31 = arith.constant 31 : i32\n%back = arith.subi %c31, %t : i32\n"
WRITE = store("%t", "%smem", "%t", "i32", "<3>")
OVERWRITE = store("%c4", "%smem", "%t", "i32", "<3>")
SWAP = load("v", "%smem", "%back", "i32", "<3>") + store("%v", "%p0", "%t")
COPY = f"{STORE} %map0, %smem, box[%c0, %c0] : !llvm.ptr, !llvm.ptr<3>\n" + COMMIT


def led(text: str) -> str:
    return f"scf.if %lead {{ {text} }}\n"


def found(body: str, seeds: int = 3) -> set[tuple[str, str]]:
    """What is found in a kernel of one warp, with an mbarrier of 32 arrivals and a tensor map of 32 words."""
    head = ALONE + "%patience = arith.constant 1000 : i32\n"
    kinds: set[tuple[str, str]] = set()
    for seed in range(seeds):
        x, y = np.zeros(32, np.int32), np.zeros((2, 16), np.int32)
        kinds |= places(head + body, x, TensorMap(y, (2, 16)), smem=520, seed=seed)
    return kinds


@pytest.mark.parametrize(
    "between, ordered",
    [(SYNC, True), ("nvvm.barrier\n", True), ("", False), ("%s = nvvm.shfl.sync bfly %all, %t, %c1, %c31 : i32 -> i32\n", False),
     ("%s = nvvm.vote.sync ballot %all, %lead -> i32\n", False), (led("nvvm.fence.mbarrier.init\n"), False)],
)  # fmt: skip
def test_what_orders_the_lanes_of_a_warp(between, ordered):
    assert found(WRITE + between + SWAP) == (set() if ordered else {("race", "llvm.load")})


def test_lanes_in_the_arms_of_a_branch():
    arms = f"scf.if %lead {{ {WRITE} }} else {{ {WRITE} }}\n"
    read = led(load("v", "%smem", "%c31", "i32", "<3>") + store("%v", "%p0", "%t"))
    assert not found(arms + SYNC + read)
    assert found(arms + read) == {("race", "llvm.load")}


@pytest.mark.parametrize("spoiled", ["", "before", "after", "in the other arm"])
def test_a_store_by_a_copy_comes_after_the_writes_of_all_lanes(spoiled):
    """The store reads for lane 0, up to its wait; then all lanes write again."""
    write, first, second = WRITE + FENCE, SYNC, SYNC
    if spoiled == "before":
        first = ""
    elif spoiled == "after":
        second = ""
    elif spoiled == "in the other arm":
        write, first = f"scf.if %lead {{ {WRITE}{FENCE} }} else {{ {WRITE}{FENCE} }}\n", ""
    kinds = {("race", STORE)} if spoiled else set()
    assert found(write + first + led(COPY + READ) + second + OVERWRITE) == kinds


MBARRIER = "%full = llvm.getelementptr %smem[512] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8\n" + led(
    "nvvm.mbarrier.init %full, %c32 : !llvm.ptr<3>, i32\n"
)
ARRIVE = "%k = nvvm.mbarrier.arrive %full : !llvm.ptr<3> -> i64\n"
WAIT = "nvvm.mbarrier.try_wait.parity %full, %c0, %patience : !llvm.ptr<3>, i32, i32\n"


def test_an_mbarrier_orders_lanes_that_arrive_before_those_that_wait():
    head = MBARRIER + SYNC
    assert not found(head + WRITE + ARRIVE + WAIT + SWAP)
    assert not found(head + WRITE + FENCE + ARRIVE + led(WAIT + COPY + READ))
    race = {("race", "llvm.load")}
    assert found(head + ARRIVE + WAIT + WRITE + SWAP) == race  # a wait for something else
    assert found(head + ARRIVE + WRITE + WAIT + SWAP) == race
    assert found(head + WRITE + ARRIVE + led(WAIT) + SWAP) == race


def test_an_mbarrier_is_made_before_other_lanes_of_the_warp_use_it():
    assert not found(MBARRIER + SYNC + ARRIVE + WAIT)
    assert found(MBARRIER + ARRIVE + WAIT) == {("race", "nvvm.mbarrier.arrive")}


LOAD = "nvvm.cp.async.bulk.tensor.shared.cluster.global"
LOADED = f"""%to = llvm.addrspacecast %smem : !llvm.ptr<3> to !llvm.ptr<7>
  %n = arith.constant 128 : i32
  %token = nvvm.mbarrier.arrive.expect_tx %full, %n : !llvm.ptr<3>, i32 -> i64
  {LOAD} %to, %map0, %full, box[%c0, %c0] : !llvm.ptr<7>, !llvm.ptr\n"""


@pytest.mark.parametrize("use", [SWAP, OVERWRITE + FENCE])
def test_a_copy_overwrites_what_other_lanes_have_used(use):
    """Lanes use shared memory that lane 0 then has filled; those of the next phase wait for it."""
    head = MBARRIER.replace("%c32", "%c1") + led("nvvm.fence.mbarrier.init\n") + WRITE + FENCE + SYNC
    rest = WAIT + load("w", "%smem", "%t", "i32", "<3>") + store("%w", "%p0", "%t")
    assert not found(head + use + SYNC + led(LOADED) + rest)
    assert found(head + use + led(LOADED) + rest) == {("race", LOAD)}


# -- the rule alone


def access(time: int, threads: list[int], cells: list[int], write: bool, span: int = 1) -> Access:
    return Access(None, np.array(cells), span, np.array(threads, np.int32), write, None, time=time)  # type: ignore[arg-type]


def racing(accesses: list[Access], syncs: Syncs, nt: int = 64) -> set[tuple[int, int, int]]:
    pairs = [p for _, _, p in unordered(syncs, nt, accesses, np.arange(64))]
    return {tuple(map(int, row)) for p in pairs for row in p}  # type: ignore[misc]


def lanes(*numbers: int) -> np.ndarray:
    return np.isin(np.arange(32), numbers)


def test_pairs_of_lanes():
    clock = SimpleNamespace(time=0)
    write, read = access(1, [3, 40], [10, 20], True), access(2, [5, 41, 70], [9, 20, 10], False, span=2)
    assert racing([write, read], Syncs(clock)) == {(10, 3, 5), (20, 40, 41)}  # not of block 1, whose thread is 70
    assert racing([read, access(3, [6], [9], False)], Syncs(clock)) == set()
    assert racing([access(1, [1, 2], [7, 7], True)], Syncs(clock)) == {(7, 1, 2), (7, 2, 1)}  # at once


def test_releases_and_acquires_of_lanes():
    clock = SimpleNamespace(time=0)
    syncs = Syncs(clock)
    write, read = access(1, [3, 4], [10, 11], True), access(2, [5, 5], [10, 11], False)
    clock.time = 1
    syncs.release(0, 0, lanes(3), 7)
    assert len(racing([write, read], syncs)) == 2
    syncs.acquire(0, 0, lanes(5), 6)  # of something older
    assert len(racing([write, read], syncs)) == 2
    syncs.acquire(0, 0, lanes(5), 7)
    assert racing([write, read], syncs) == {(11, 4, 5)}
    syncs.release(0, 0, None, 8)
    syncs.acquire(0, 0, None, 9)
    assert racing([write, read], syncs) == set()
    assert syncs.known(0, 0, 32) == [1] * 32
    assert racing([access(3, [3], [10], True), access(4, [5], [10], False)], syncs) == {(10, 3, 5)}
    syncs.forget(0, 0, 1)
    assert not syncs.releases[0, 0] and syncs.learned(0, 0, 5, 2) == 9
