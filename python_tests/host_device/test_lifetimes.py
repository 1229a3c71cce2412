"""What lives in shared memory, and for how long: mbarriers, and copies that must end before their block does."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device.tensor_maps import TensorMap
from support.kernels.copies import COMMIT, FENCE, READ, STORE, out, send
from support.kernels.instructions import WAIT, at, ints, load, places, store
from support.kernels.mbarriers import BULK, COPY, HEAD, ON

LATE = "nvvm.cp.async.bulk.wait_group 0\n"
INIT, INVAL = "nvvm.mbarrier.init", "nvvm.mbarrier.inval"
BAD, RACE, UNFINISHED = "bad mbarrier", "race", "unfinished copy"
BULK_LOAD, BULK_STORE = "nvvm.cp.async.bulk.shared.cluster.global", "nvvm.cp.async.bulk.global.shared.cta"
WAITS = f"nvvm.mbarrier.try_wait.parity %smem, %c0, %patience : {ON}, i32, i32\n"
ARRIVES = f"%k = nvvm.mbarrier.arrive %smem : {ON} -> i64\n"
ENDS = f"nvvm.barrier\nscf.if %first {{ {INVAL} %smem : {ON} }}\nnvvm.barrier\n"
REUSED = store("%t", "%smem", "%t", "i32", "<3>") + load("r", "%smem", "%t", "i32", "<3>") + store("%r", "%p0", "%t")
AGAIN = f"scf.if %first {{ {INIT} %smem, %c32 : {ON}, i32 }}\nnvvm.barrier\n"


def lives(body: str, threads: int = 32) -> set[tuple[str, str]]:
    """Findings of a kernel with an mbarrier at byte 0, of 32 arrivals."""
    found: set[tuple[str, str]] = set()
    for seed in range(2):
        y = np.zeros(64, np.int32)
        found |= places(HEAD.replace("COUNT", "%c32") + body, y, threads=threads, smem=512, seed=seed)
    return found


USED = ARRIVES + WAITS


def test_an_mbarrier_ends_and_its_memory_is_used_again():
    assert not lives(USED + ENDS + REUSED)
    assert not lives(USED + ENDS + AGAIN + USED.replace("%k", "%l"))


@pytest.mark.parametrize(
    "body, found",
    [
        (USED + "nvvm.barrier\n" + REUSED, {(BAD, "llvm.store"), (BAD, "llvm.load")}),  # data over it
        (USED + load("r", "%smem", "%c1", "i32", "<3>"), {(BAD, "llvm.load")}),
        ("%p = llvm.atomicrmw add %smem, %c1 monotonic : !llvm.ptr<3>, i32\n" + USED, {(BAD, "llvm.atomicrmw")}),
        (USED + "nvvm.barrier\n" + AGAIN, {(BAD, INIT)}),
        (f"{INIT} %smem, %c32 : {ON}, i32\nnvvm.barrier\n" + USED, {(BAD, INIT)}),  # by every thread
        (USED + ENDS + ENDS, {(BAD, INVAL)}),
        (USED + ENDS + USED.replace("%k", "%l"), {(BAD, "nvvm.mbarrier.arrive"), ("deadlock", WAITS.split()[0])}),
        (USED + ENDS.replace("nvvm.barrier\nscf", "scf", 1), {(RACE, INVAL)}),
        (USED + ENDS.replace("}\nnvvm.barrier", "}") + REUSED, {(RACE, INVAL)}),
        (USED + ENDS + load("r", "%smem", "%t", "i32", "<3>") + store("%r", "%p0", "%t"),
         {("uninitialized read", "llvm.load")}),
    ],
)  # fmt: skip
def test_an_mbarrier_is_nothing_else_between_its_init_and_its_inval(body, found):
    threads = 64 if RACE in {k for k, _ in found} else 32
    if threads == 64:
        body = body.replace("%c32", "%c64")
        kinds = places(HEAD.replace("COUNT", "%c64") + body, np.zeros(64, np.int32), threads=64, smem=512)
    else:
        kinds = lives(body)
    assert found <= kinds, kinds
    assert {k for k, _ in kinds} <= {k for k, _ in found} | {"race", "uninitialized read", "undefined value"}


def test_data_that_becomes_an_mbarrier_is_done_with():
    body = load("r", "%smem", "%t", "i32", "<3>").replace("%r =", "%before =") + "MEET" + HEAD.replace("COUNT", "%c64")
    fill = store("%t", "%smem", "%t", "i32", "<3>")
    found = places(fill + body.replace("MEET", "nvvm.barrier\n"), np.zeros(64, np.int32), threads=64, smem=512)
    assert not found
    found = places(fill + body.replace("MEET", ""), np.zeros(64, np.int32), threads=64, smem=512)
    assert {k for k, _ in found} == {RACE}


def test_counts_that_an_mbarrier_can_have():
    assert (BAD, INIT) in places(HEAD.replace("COUNT", "%c0"), np.zeros(32, np.int32), smem=64)
    many = "%many = arith.constant 2097152 : i32\n"
    assert (BAD, INIT) in places(many + HEAD.replace("COUNT", "%many"), np.zeros(32, np.int32), smem=64)


def handed(count: str, arrive: str = ARRIVES) -> set[str]:
    """64 threads read a slot and give it back; thread 64 waits for that, and writes it."""
    body = f"""%reads = arith.cmpi ult, %t, %c64 : i32
      %writes = arith.cmpi eq, %t, %c64 : i32
      %odd = arith.constant COUNT : i32
      {at("data", "%smem", "%c16", "i32", "<3>")} {store("%t", "%data", "%t", "i32", "<3>")}
      nvvm.barrier
      scf.if %reads {{ {load("r", "%data", "%t", "i32", "<3>")} {store("%r", "%p0", "%t")} {arrive} }}
      scf.if %writes {{ {WAITS}
        scf.for %i = %c0 to %c64 step %c1 : i32 {{ {store("%t", "%data", "%i", "i32", "<3>")} }} }}"""
    kinds: set[str] = set()
    for seed in range(2):
        text = HEAD.replace("COUNT", "%odd").replace("%first = ", f"%odd = arith.constant {count} : i32\n%first = ")
        found = places(text + body.replace("%odd = arith.constant COUNT : i32", ""), np.zeros(65, np.int32), threads=65,
                       smem=1024, seed=seed)  # fmt: skip
        kinds |= {k for k, _ in found}
    return kinds


@pytest.mark.parametrize("count, kinds", [(64, set()), (63, {RACE}), (33, {RACE}), (65, {"deadlock"})])
def test_a_phase_that_ends_within_a_warp_says_nothing_of_its_other_lanes(count, kinds):
    assert handed(str(count)) == kinds


# -- bulk copies

TEST_BULK = BULK.replace("scf.if %first { %to", "PREPARE scf.if %first { %to")


def bulk(body: str, smem: int = 1040) -> set[tuple[str, str]]:
    x, y = ints(128), np.zeros(128, np.int32)
    found = places(body.replace("PREPARE", ""), x, y, threads=128, smem=smem)
    assert found or (x == y).all()
    return found


def test_a_copy_over_an_mbarrier():
    assert not bulk(TEST_BULK)
    assert (BAD, BULK_LOAD) in bulk(TEST_BULK.replace("%smem[1024]", "%smem[256]"))


def test_a_copy_whose_mbarrier_nobody_waits_for():
    wait = "nvvm.mbarrier.try_wait.parity %bar, %c0, %patience : !llvm.ptr<3>, i32, i32\n"
    alone = WAIT.replace("START", COPY).replace(wait, "")
    assert places(alone, ints(128), threads=128, smem=1040) == {(UNFINISHED, BULK_LOAD)}
    some = alone + "%w = arith.cmpi eq, %t, %c64 : i32\nscf.if %w { " + wait + "}\n"  # one thread is enough
    assert not places(some, ints(128), threads=128, smem=1040)


def test_the_source_of_a_bulk_copy_is_not_written_before_its_end():
    wait = "nvvm.mbarrier.try_wait.parity %bar, %c0, %patience : !llvm.ptr<3>, i32, i32\n"
    change = store("%c7", "%p0", "%t").replace("%c7", "%c8")
    after = WAIT.replace("START", COPY) + change
    assert not places(after, ints(128), threads=128, smem=1040)
    early = WAIT.replace("START", COPY).replace(wait, change + wait)
    assert (RACE, "llvm.store") in places(early, ints(128), threads=128, smem=1040)
    found = places(after.replace("%c8, %to", "%b, %to"), ints(128), threads=128, blocks=2, smem=1040)
    assert ("race between blocks", "llvm.store") in found or ("race between blocks", BULK_LOAD) in found


def stored(wait: str, rest: str) -> set[tuple[str, str]]:
    """Thread 0 stores 512 bytes to p1 in bulk."""
    body = f"""%first = arith.cmpi eq, %t, %c0 : i32
      %n = arith.constant 512 : i32
      {load("x", "%p0", "%t")} {store("%x", "%smem", "%t", "i32", "<3>")} {FENCE} nvvm.barrier
      scf.if %first {{ {BULK_STORE} %p1, %smem, %n : !llvm.ptr<1>, !llvm.ptr<3>
        {wait} }}
      {rest}"""
    x, y, z = ints(128), np.zeros(128, np.int32), np.zeros(128, np.int32)
    found = places(body, x, y, z, threads=128, smem=512)
    assert found or (x == y).all()
    return found


BACK = load("v", "%p1", "%t") + store("%v", "%p2", "%t")


def test_what_a_bulk_store_has_written_is_read_behind_the_whole_wait():
    assert not stored(COMMIT + READ, "")
    assert not stored(COMMIT + LATE, "nvvm.barrier\n" + BACK)
    assert (UNFINISHED, "llvm.load") in stored(COMMIT + READ, "nvvm.barrier\n" + BACK)
    assert stored(COMMIT + LATE, BACK) == {(RACE, "llvm.load")}
    assert stored(COMMIT, "") == {(UNFINISHED, BULK_STORE)}
    assert stored(LATE, "") == {(UNFINISHED, BULK_STORE)}  # never committed
    assert (UNFINISHED, "llvm.store") in stored(COMMIT + READ, "nvvm.barrier\n" + store("%c1", "%p1", "%t"))


def test_a_tensor_store_is_read_before_its_block_ends():
    x, y = ints(8, 16), ints(8, 16)
    tail = "nvvm.barrier\n" + store("%c0", "%smem", "%t", "i32", "<3>")
    body = out("", "%c0, %c0").removesuffix(tail)
    assert not send(body, x, y)
    assert send(body.replace(READ, ""), x, y) == {(UNFINISHED, STORE)}
    assert send(body.replace(COMMIT, ""), x, y) == {(UNFINISHED, STORE)}


def test_blocks_that_store_to_the_same_bytes_in_bulk():
    body = f"""%first = arith.cmpi eq, %t, %c0 : i32
      %n = arith.constant 512 : i32
      {store("%t", "%smem", "%t", "i32", "<3>")} {FENCE} nvvm.barrier
      %at = arith.muli %b, STEP : i32
      {at("to", "%p0", "%at")}
      scf.if %first {{ {BULK_STORE} %to, %smem, %n : !llvm.ptr<1>, !llvm.ptr<3>
        {COMMIT} {READ} }}"""
    y = np.zeros(256, np.int32)
    assert not places(body.replace("STEP", "%c128"), y, threads=128, blocks=2, smem=512)
    np.testing.assert_array_equal(y, np.tile(np.arange(128), 2))
    found = places(body.replace("STEP", "%c64"), y, threads=128, blocks=2, smem=512)
    assert found == {("race between blocks", BULK_STORE), ("overlapping copies", BULK_STORE)}


def test_what_is_fetched_in_bulk_lies_inside():
    body = "%n = arith.constant SIZE : i32\nnvvm.cp.async.bulk.prefetch %p0, %n : !llvm.ptr<1>\n"
    assert not places(body.replace("SIZE", "128"), ints(32))
    op = "nvvm.cp.async.bulk.prefetch"
    assert places(body.replace("SIZE", "144"), ints(32)) == {("out of bounds", op)}
    assert places(body.replace("SIZE", "120"), ints(32)) == {("misaligned", op)}


def test_cp_async_ends_before_its_block():
    body = f"""%words = arith.muli %t, %c4 : i32
      {at("from", "%p0", "%words")} {at("to", "%smem", "%words", "i32", "<3>")}
      nvvm.cp.async.shared.global %to, %from, 16, cache = cg : {ON}, !llvm.ptr<1>
      nvvm.cp.async.commit.group\n"""
    assert not places(body + "nvvm.cp.async.wait.group 0\n", ints(128), smem=512)
    late = {(UNFINISHED, "nvvm.cp.async.shared.global")}
    assert places(body, ints(128), smem=512) == late
    assert places(body + "nvvm.cp.async.wait.group 1\n", ints(128), smem=512) == late


# -- tensor copies among each other


def through(middle: str, wait: str = LATE) -> set[tuple[str, str]]:
    """A box of p0 is stored to the tensor by thread 0, and loaded from there again by thread 32."""
    stores = f"""%first = arith.cmpi eq, %t, %c0 : i32
      %n = arith.constant 512 : i32
      %patience = arith.constant 1000 : i32
      %bar = llvm.getelementptr %smem[1024] : ({ON}) -> {ON}, i8
      %back = llvm.getelementptr %smem[512] : ({ON}) -> {ON}, i8
      %to = llvm.addrspacecast %back : {ON} to !llvm.ptr<7>
      scf.if %first {{ {INIT} %bar, %c1 : {ON}, i32
        nvvm.fence.mbarrier.init }}
      {load("x", "%p0", "%t")} {store("%x", "%smem", "%t", "i32", "<3>")} {FENCE} nvvm.barrier
      scf.if %first {{ {STORE} %map0, %smem, box[%c0, %c0] : !llvm.ptr, {ON}
        {COMMIT} {wait} }}
      {middle}
      %loads = arith.cmpi eq, %t, %c32 : i32
      scf.if %loads {{ %token = nvvm.mbarrier.arrive.expect_tx %bar, %n : {ON}, i32 -> i64
        nvvm.cp.async.bulk.tensor.shared.cluster.global %to, %map0, %bar, box[%c0, %c0] : !llvm.ptr<7>, !llvm.ptr }}
      nvvm.mbarrier.try_wait.parity %bar, %c0, %patience : {ON}, i32, i32
      {load("v", "%back", "%t", "i32", "<3>")} {store("%v", "%p1", "%t")}"""
    x, y, z = ints(8, 16), np.zeros((8, 16), np.int32), np.zeros((8, 16), np.int32)
    found = places(stores, x, z, TensorMap(y, (8, 16)), threads=128, smem=1040)
    assert found or ((x == y).all() and (x == z).all())
    return found


def test_a_tensor_copy_reads_what_another_one_has_written():
    op = "nvvm.cp.async.bulk.tensor.shared.cluster.global"
    assert not through("nvvm.barrier\n")
    assert (UNFINISHED, op) in through("nvvm.barrier\n", READ)  # which only ends the reads
    assert {k for k, _ in through("")} == {RACE}
    again = f"scf.if %WHO {{ {STORE} %map0, %smem, box[%c0, %c0] : !llvm.ptr, {ON}\n{COMMIT}{LATE} }}\nnvvm.barrier\n"
    same, other = again.replace("WHO", "first"), again.replace("WHO", "w")
    late = "%w = arith.cmpi eq, %t, %c64 : i32\n"
    assert not through(same) and not through(late + "nvvm.barrier\n" + other)
    assert ("overlapping copies", STORE) in through(same, READ)
    assert (RACE, STORE) in through(late + other)
