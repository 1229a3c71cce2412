"""Blocks of a cluster use each other's shared memory while it is there: behind a barrier of the cluster, and before one
that its owner waits for."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device.direct import run_function
from mlirc.device.tensor_maps import TensorMap
from support.kernels.copies import BETWEEN, sent
from support.kernels.copies import across as across_text
from support.kernels.instructions import CLUSTER, MEET, MULTICAST, NEIGHBOUR, exchange, ints, module, places, store
from support.kernels.mbarriers import FENCE, ON

KIND = "missing cluster barrier"
RELAXED = MEET.replace("arrive", "arrive.relaxed")


def shared(body: str) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for seed in range(3):
        x, y = ints(64), np.zeros(64, np.int32)
        found |= places(body, x, y, blocks=2, smem=128, attributes=CLUSTER, seed=seed)
        assert found or (y.reshape(2, 32) == x.reshape(2, 32)[::-1]).all()
    return found


def test_a_block_stays_while_the_other_one_reads():
    assert not shared(exchange(MEET, MEET))
    assert shared(exchange(MEET, "")) == {(KIND, "llvm.load")}
    assert shared(exchange(MEET, "nvvm.cluster.arrive\n")) == {(KIND, "llvm.load")}  # leaves before it is waited for
    assert shared(exchange(MEET, RELAXED)) == {(KIND, "llvm.load")}


WRITES = NEIGHBOUR + "FIRST" + store("%t", "%far", "%t", "i32", "<7>") + "SECOND"


def written(first: str, second: str) -> set[tuple[str, str]]:
    body = WRITES.replace("FIRST", first).replace("SECOND", second)
    return places(body, np.zeros(1, np.int32), blocks=2, smem=128, attributes=CLUSTER)


def test_a_block_has_started_before_the_other_one_writes():
    assert not written(MEET, MEET)
    assert not written(RELAXED, MEET)  # all have started: nothing else is needed
    assert written("", MEET) == {(KIND, "llvm.store")}
    assert written("nvvm.cluster.arrive\n", "nvvm.cluster.wait\n" + MEET) == {(KIND, "llvm.store")}
    assert written(MEET, "") == {(KIND, "llvm.store")}
    atomics = "%old = llvm.atomicrmw add %far, %c1 monotonic : !llvm.ptr<7>, i32\n"
    for first, second, found in ((MEET, MEET, set()), ("", MEET, {(KIND, "llvm.atomicrmw")})):
        fill = store("%c0", "%smem", "%t", "i32", "<3>") + (first or "nvvm.barrier\n")
        kinds = places(NEIGHBOUR + fill + atomics + second, np.zeros(1, np.int32), blocks=2, smem=128,
                       attributes=CLUSTER)  # fmt: skip
        assert found <= kinds and bool(found) == bool(kinds)


ARRIVE = "nvvm.mbarrier.arrive %far {scope = #nvvm.mem_scope<cluster>} : !llvm.ptr<7>"
WAIT = f"nvvm.mbarrier.try_wait.parity %smem, %c0, %patience : {ON}, i32, i32\n"


def arrivals(first: str, last: str, who: str = "%first", wait: str = WAIT) -> set[tuple[str, str]]:
    """Thread 0 of each block arrives at the mbarrier of the other block of its cluster."""
    body = f"""{NEIGHBOUR} %first = arith.cmpi eq, %t, %c0 : i32
      %patience = arith.constant 1000 : i32
      scf.if %first {{ nvvm.mbarrier.init %smem, %c1 : {ON}, i32
        {FENCE} }}
      {first}
      scf.if {who} {{ {ARRIVE} }}
      {wait} {last}"""
    return places(body, ints(1), blocks=2, smem=16, attributes=CLUSTER)


def test_remote_arrivals_behind_a_relaxed_barrier():
    assert not arrivals(MEET, MEET)
    assert not arrivals(RELAXED, "")  # fence.mbarrier.init is what it needs; who waits for the arrival may end
    assert {k for k, _ in arrivals("nvvm.barrier\n", MEET)} == {KIND, "race", "missing mbarrier fence"}
    assert arrivals(MEET, "", wait="") == {(KIND, "nvvm.mbarrier.arrive")}


def test_waits_for_an_mbarrier_are_of_its_own_block():
    far = WAIT.replace("%smem", "%near").replace(ON, ON)
    cast = "%near = llvm.addrspacecast %far : !llvm.ptr<7> to !llvm.ptr<3>\n"
    assert ("bad mbarrier", WAIT.split()[0]) in arrivals(MEET, MEET, wait=cast + far)


@pytest.mark.parametrize("old, new", [("nvvm.cluster.arrive\nnvvm.cluster.wait\nscf", "nvvm.barrier\nscf")])
def test_bytes_go_to_a_block_that_has_started(old, new):
    assert not sent(across_text())[0]
    assert (KIND, BETWEEN) in sent(across_text().replace(old, new, 1))[0]


def test_the_source_of_a_copy_stays_until_it_is_there():
    text = across_text()
    assert text.endswith(MEET)
    assert sent(text.removesuffix(MEET))[0] == {("unfinished copy", BETWEEN)}


def test_arrivals_and_waits_at_the_barrier_of_the_cluster_take_turns():
    assert not written(MEET, MEET + MEET)
    assert written(MEET, MEET + "nvvm.cluster.wait\n") == {("divergent barrier", "nvvm.cluster.wait")}
    assert written("nvvm.cluster.wait\n" + MEET, MEET) >= {("divergent barrier", "nvvm.cluster.wait")}
    twice = "nvvm.cluster.arrive\n" + MEET
    assert ("divergent barrier", "nvvm.cluster.arrive") in written(twice, MEET)


@pytest.mark.parametrize("mask, kinds", [(3, set()), (7, {"out of bounds"}), (0, {"out of bounds", "deadlock"})])
def test_a_multicast_names_blocks_that_there_are(mask, kinds):
    text = MULTICAST.replace("constant 3 : i16", f"constant {mask} : i16")
    y = np.zeros((2, 8, 16), np.int32)
    report = run_function(
        module(text, 1, CLUSTER, maps=1), "k", [y, TensorMap(ints(8, 16), (8, 16))], (2, 1, 1), (128, 1, 1), 1040
    )
    assert report.kinds() == kinds
