"""Which lanes shuffles, votes, reductions and barriers of a warp are of, and which threads a barrier of the block is of:
each rule's kernels, right and wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from support.kernels.instructions import CLUSTER, ints, load, places, run, store

LOW, HIGH = "%half = arith.constant 65535 : i32\n", "%upper = arith.constant -65536 : i32\n"
LANE = (
    "%lane = arith.andi %t, %c31 : i32\n%low = arith.cmpi ult, %lane, %c16 : i32\n%c31x = arith.constant 4127 : i32\n"
)
HEAD = "%c31 = arith.constant 31 : i32\n" + load("x", "%p0", "%t") + LOW + HIGH + LANE
MINE = "%mine = arith.select %low, %half, %upper : i32\n"
# What takes a mask, and what NumPy makes of the lanes [groups, 16] that work together.
OPS = {
    "shuffle": ("%r = nvvm.shfl.sync bfly MASK, %x, %c8, %c31 : i32 -> i32", lambda x: x[:, np.arange(16) ^ 8]),
    "redux": ("%r = nvvm.redux.sync add %x, MASK : i32 -> i32", lambda x: np.repeat(x.sum(1)[:, None], 16, 1)),
    "vote": ("%b1 = arith.cmpi sgt, %x, %c0 : i32\n%v = nvvm.vote.sync any MASK, %b1 -> i1\n"
             "%r = arith.extui %v : i1 to i32", lambda x: np.repeat((x > 0).any(1)[:, None], 16, 1)),
    "match": ("%m = nvvm.match.sync any MASK, %x : i32 -> i32\n%r = math.ctpop %m : i32",
              lambda x: (x[:, :, None] == x[:, None, :]).sum(2)),
    "elect": ("%e = nvvm.elect.sync MASK -> i1\n%r = arith.extui %e : i1 to i32", lambda x: np.eye(1, 16) + 0 * x),
    "barrier": ("nvvm.bar.warp.sync MASK : i32\n%r = arith.addi %x, %c0 : i32", lambda x: x),
}  # fmt: skip


def judged(name: str, mask: str, where: str = "", threads: int = 64) -> set[str]:
    """The kinds of what is found where an operation runs with a mask, in some lanes; right results where there is
    nothing."""
    op, right = OPS[name]
    body = op.replace("MASK", mask) + "\n" + store("%r", "%p1", "%t")
    x, y = ints(threads, low=-2, high=3), np.full(threads, 99, np.int32)
    found = run(HEAD + MINE + (f"scf.if {where} {{ {body} }}" if where else body), x, y, threads=threads)
    want = right(x.reshape(-1, 16)).ravel()
    done = np.arange(threads) % 32 < (16 if where else 32)
    assert found or (y[done] == want[done]).all() and (y[~done] == 99).all()
    return found


KIND = {"shuffle": "divergent shuffle", "barrier": "divergent barrier"}


@pytest.mark.parametrize("name", OPS)
def test_masks(name):
    kind = {KIND.get(name, "divergent warp")}
    assert not judged(name, "%mine")  # each half of the warp for itself, in one call
    assert not judged(name, "%half", "%low")
    assert not judged(name, "%mine", threads=48)  # the last warp has 16 lanes
    assert judged(name, "%half") == kind  # the other lanes are not in it
    assert judged(name, "%all", "%low") == kind  # it names lanes that are elsewhere
    assert judged(name, "%upper", "%low") == kind


@pytest.mark.parametrize("name", OPS)
def test_a_lane_removed_or_added(name):
    """A mask that is not the same for all lanes that it names."""
    op, _ = OPS[name]
    body = HEAD + "%odd = arith.constant ODD : i32\n%is = arith.cmpi eq, %lane, %c3 : i32\n"
    body += "%mixed = arith.select %is, %odd, %all : i32\n" + op.replace("MASK", "%mixed") + "\n"
    for odd in (-2, 8, 0x7FFFFFFF):  # lane 3's own
        x, y = ints(32), np.zeros(32, np.int32)
        assert run(body.replace("ODD", str(odd)) + store("%r", "%p1", "%t"), x, y) == {KIND.get(name, "divergent warp")}


@pytest.mark.parametrize("name", OPS)
def test_both_arms_of_a_branch_do_not_meet(name):
    op, _ = OPS[name]
    arm = op.replace("MASK", "%all") + "\n" + store("%r", "%p1", "%t")
    found = places(HEAD + f"scf.if %low {{ {arm} }} else {{ {arm} }}", ints(32), np.zeros(32, np.int32))
    assert {kind for kind, _ in found} == {KIND.get(name, "divergent warp")}
    fine = [op.replace("MASK", m) + "\n" + store("%r", "%p1", "%t") for m in ("%half", "%upper")]
    assert not run(HEAD + f"scf.if %low {{ {fine[0]} }} else {{ {fine[1]} }}", ints(32), np.zeros(32, np.int32))


def test_a_shuffle_that_reads_a_lane_outside_of_its_mask():
    body = HEAD + MINE + "%r = nvvm.shfl.sync bfly %mine, %x, %c16, %c31 : i32 -> i32\n" + store("%r", "%p1", "%t")
    assert run(body, ints(32), np.zeros(32, np.int32)) == {"divergent shuffle"}
    segments = body.replace("%c16, %c31", "%c8, %c31x")  # two segments of 16 lanes
    x, y = ints(32), np.zeros(32, np.int32)
    assert not run(segments, x, y)
    np.testing.assert_array_equal(y, x[np.arange(32) ^ 8])


@pytest.mark.parametrize("width, where, found", [(16, "%low", False), (16, "%yes", True), (8, "%low", True),
                                                 (32, "%low", True), (0, "%yes", True), (33, "%yes", True)])  # fmt: skip
def test_widths(width, where, found):
    """A gpu.shuffle is lowered with a mask of the first `width` lanes: no other one may execute it."""
    body = HEAD + f"%w = arith.constant {width} : i32\n%yes = arith.constant true\nscf.if {where} {{\n"
    body += "%r, %ok = gpu.shuffle xor %x, %c2, %w : i32\n" + store("%r", "%p1", "%t") + "}\n"
    x, y = ints(64), np.zeros(64, np.int32)
    assert run(body, x, y, threads=64) == ({"divergent shuffle"} if found else set())
    if not found:
        np.testing.assert_array_equal(y.reshape(2, 32)[:, :16], x.reshape(2, 32)[:, np.arange(16) ^ 2])


@pytest.mark.parametrize("text, kinds", [
    ("nvvm.barrier id = %c16 number_of_threads = %c128", {"bad barrier"}),
    ("nvvm.barrier id = %c15 number_of_threads = %c128", set()),
    ("nvvm.barrier id = %c1 number_of_threads = %c100", {"bad barrier"}),
    ("nvvm.barrier id = %c1 number_of_threads = %count0", {"bad barrier"}),
    ("scf.if %first { nvvm.barrier id = %c1 number_of_threads = %c128 } else "
     "{ nvvm.barrier id = %c1 number_of_threads = %c128 }", set()),
    ("scf.if %first { nvvm.barrier id = %c1 number_of_threads = %c64 } else "
     "{ nvvm.barrier id = %c1 number_of_threads = %c64 }", set()),
    ("scf.if %first { nvvm.barrier id = %c1 number_of_threads = %c128 } else "
     "{ nvvm.barrier id = %c1 number_of_threads = %c64 }", {"bad barrier"}),
    ("scf.if %first { nvvm.barrier.arrive id = %c1 number_of_threads = %c128 } else "
     "{ nvvm.barrier id = %c1 number_of_threads = %c128 }", set()),
    ("scf.if %some { nvvm.barrier } else { nvvm.barrier }", {"divergent barrier"}),
    ("scf.if %some { gpu.barrier }\n gpu.barrier", {"divergent barrier"}),
    ("scf.if %some { nvvm.barrier id = %c1 number_of_threads = %c64 }", {"divergent barrier"}),
])  # fmt: skip
def test_barriers_of_the_block(text, kinds):
    """128 threads; %first is of the first two warps, %some of half of every warp."""
    body = HEAD + """%first = arith.cmpi ult, %t, %c64 : i32
      %some = arith.cmpi ult, %lane, %c16 : i32
      %c15 = arith.constant 15 : i32
      %c100 = arith.constant 100 : i32
      %count0 = arith.constant 0 : i32\n"""  # fmt: skip
    for seed in range(2):
        found = run(body + text, ints(128), threads=128, seed=seed)
        assert found >= kinds and bool(found) == bool(kinds), found


SHARED = store("%x", "%smem", "%t", "i32", "<3>")
BACK = store("%v", "%p1", "%t")


def neighbour(distance: int) -> str:
    """%v: what the thread at a distance has written to shared memory."""
    other = f"%d = arith.constant {distance} : i32\n%o = arith.xori %t, %d : i32\n"
    return other + load("v", "%smem", "%o", "i32", "<3>")


@pytest.mark.parametrize("threads, clocks", [(32, False), (64, False), (64, True)])
@pytest.mark.parametrize("sync, distance, kinds", [
    (["%all"], 17, set()), (["%mine"], 5, set()), (["%mine"], 17, {"race"}), ([], 5, {"race"}),
    (["%mine", "%all"], 17, set()), (["%mine", "%mine"], 16, {"race"}),
    (["%mine", "%cross"], 16, set()),  # by lanes that meet both: 0 hears of 16 from 24
    (["%cross", "%cross"], 16, {"race"}), (["%cross"], 16, {"race"}),
])  # fmt: skip
def test_a_barrier_of_some_lanes_orders_those(sync, distance, kinds, threads, clocks):
    """%mine: each half of the warp; %cross: the middle 16 lanes, and the other 16."""
    cross = """%c24 = arith.constant 24 : i32
      %above = arith.cmpi uge, %lane, %c8 : i32
      %below = arith.cmpi ult, %lane, %c24 : i32
      %in = arith.andi %above, %below : i1
      %middle = arith.constant 16776960 : i32
      %outer = arith.constant -16776961 : i32
      %cross = arith.select %in, %middle, %outer : i32\n"""
    body = HEAD + MINE + cross + SHARED + "".join(f"nvvm.bar.warp.sync {m} : i32\n" for m in sync)
    named = "nvvm.barrier id = %c1 number_of_threads = %number\n" if clocks else ""
    body = f"%number = arith.constant {threads} : i32\n{named}" + body + neighbour(distance) + BACK
    x, y = ints(threads), np.zeros(threads, np.int32)
    assert run(body, x, y, threads=threads, smem=4 * threads) == kinds
    assert kinds or (y == x[np.arange(threads) ^ distance]).all()


def test_parts_that_meet_often():
    """Each half of the warp hands values around, many times, and at last the whole warp does."""
    turn = f"scf.for %i = %start to %end step %one {{ nvvm.bar.warp.sync %mine : i32\n{neighbour(3)}\n"
    turn += "nvvm.bar.warp.sync %mine : i32\n" + store("%v", "%smem", "%t", "i32", "<3>") + "}\n"
    body = (
        HEAD
        + MINE
        + "".join(f"%{n} = arith.constant {k} : index\n" for n, k in (("start", 0), ("end", 30), ("one", 1)))
    )
    last = neighbour(17).replace("%d", "%d2").replace("%o", "%o2").replace("%v", "%w") + store("%w", "%p1", "%t")
    for sync, kinds in (("nvvm.bar.warp.sync %all : i32\n", set()), ("nvvm.bar.warp.sync %mine : i32\n", {"race"})):
        x, y = ints(64), np.zeros(64, np.int32)
        assert run(body + SHARED + turn + sync + last, x, y, threads=64, smem=256) == kinds
        assert kinds or (y == x[np.arange(64) ^ 17]).all()


@pytest.mark.parametrize("aligned, where, kinds", [
    ("", "%low", set()), (" {aligned}", "%low", {"divergent barrier"}), (" {aligned}", "%first", set()),
])  # fmt: skip
def test_barriers_of_the_cluster(aligned, where, kinds):
    """On both sides of a branch: by half of each warp, or by whole warps."""
    barrier = f"nvvm.cluster.arrive{aligned}\nnvvm.cluster.wait{aligned}\n"
    body = HEAD + "%first = arith.cmpi ult, %t, %c32 : i32\n" + f"scf.if {where} {{ {barrier} }} else {{ {barrier} }}"
    assert run(body, ints(64), threads=64, blocks=2, attributes=CLUSTER) == kinds
