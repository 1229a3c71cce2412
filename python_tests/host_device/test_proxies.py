"""Proxy fences: of which kind, where, and by whom, between what threads write and what copies and wgmma do with it."""

from __future__ import annotations

import numpy as np
import pytest

from support.kernels.copies import FENCE, STORE, out, send
from support.kernels.instructions import CLUSTER, MEET, NEIGHBOUR, WAIT, ints, load, places, store
from support.kernels.mbarriers import COPY

KIND = "missing proxy fence"
BULK_LOAD, BULK_STORE = "nvvm.cp.async.bulk.shared.cluster.global", "nvvm.cp.async.bulk.global.shared.cta"


def fence(kind: str) -> str:
    name, _, space = kind.partition("::")
    return (
        f"nvvm.fence.proxy {{kind = #nvvm.proxy_kind<{name}>"
        + (f", space = #nvvm.shared_space<{space}>" if space else "")
        + "}\n"
    )


SHARED = ("async", "async.shared::cta", "async.shared::cluster")
OTHERS = ("alias", "async.global")


@pytest.mark.parametrize("kind", [*SHARED, *OTHERS])
def test_a_fence_of_shared_memory(kind):
    x, y = ints(8, 16), ints(8, 16)
    found = send(out("", "%c0, %c0").replace(FENCE, fence(kind)), x, y)
    assert found == (set() if kind in SHARED else {(KIND, STORE)})


def test_a_fence_counts_where_it_comes_before_the_copy_and_behind_the_write():
    x, y = ints(8, 16), ints(8, 16)
    right = out("", "%c0, %c0")
    assert FENCE + "nvvm.barrier\n" in right
    other = "%last = arith.cmpi eq, %t, %c64 : i32\nscf.if %last { " + FENCE + "}\n"
    assert send(right.replace(FENCE + "nvvm.barrier\n", "nvvm.barrier\n" + other), x, y) == {(KIND, STORE)}
    assert not send(right.replace(FENCE + "nvvm.barrier\n", "nvvm.barrier\n" + other + "nvvm.barrier\n"), x, y)
    assert send(FENCE + right.replace(FENCE, ""), x, y) == {(KIND, STORE)}
    assert not send(right.replace(FENCE + "nvvm.barrier\n", "nvvm.barrier\n" + FENCE), x, y)


@pytest.mark.parametrize("kind", [*SHARED, *OTHERS])
@pytest.mark.parametrize("by", ["writer", "reader"])
def test_what_another_block_wrote(kind, by):
    """Each block writes its neighbour's shared memory, which that one stores in bulk."""
    body = (
        NEIGHBOUR + MEET + load("x", "%p0", "%g") + store("%x", "%far", "%t", "i32", "<7>")
        + (fence(kind) if by == "writer" else "") + MEET + (fence(kind) if by == "reader" else "")
        + f"""%first = arith.cmpi eq, %t, %c0 : i32
      %n = arith.constant 128 : i32
      %to = llvm.getelementptr %p1[%mul] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
      scf.if %first {{ {BULK_STORE} %to, %smem, %n : !llvm.ptr<1>, !llvm.ptr<3>
        nvvm.cp.async.bulk.commit.group
        nvvm.cp.async.bulk.wait_group 0 {{read}} }}\n"""
    )  # fmt: skip
    x, y = ints(64), np.zeros(64, np.int32)
    found = places(body, x, y, blocks=2, smem=128, attributes=CLUSTER)
    fits = kind in SHARED and not (by == "writer" and kind.endswith("cta"))
    assert found == (set() if fits else {(KIND, BULK_STORE)})
    assert (y.reshape(2, 32) == x.reshape(2, 32)[::-1]).all()


def test_a_copy_over_what_threads_wrote():
    fill = store("%t", "%smem", "%t", "i32", "<3>")
    rest = load("v", "%smem", "%t", "i32", "<3>") + store("%v", "%p1", "%t")
    for middle, found in ((FENCE, set()), ("", {(KIND, BULK_LOAD)})):
        x, y = ints(128), np.zeros(128, np.int32)
        kinds = places(fill + middle + WAIT.replace("START", COPY) + rest, x, y, threads=128, smem=1040)
        assert kinds == found and (x == y).all()


@pytest.mark.parametrize("kind", ["async", "async.global", *OTHERS, *SHARED[1:], ""])
@pytest.mark.parametrize("by", ["writer", "reader"])
def test_what_threads_wrote_to_global_memory(kind, by):
    """The block copies in bulk what its threads have just written."""
    here = fence(kind) if kind else ""
    copy = COPY.replace("scf.if %first {", "scf.if %first { " + (here if by == "reader" else ""))
    write = store("%t", "%p0", "%t") + (here if by == "writer" else "")
    body = write + WAIT.replace("START", copy) + load("v", "%smem", "%t", "i32", "<3>") + store("%v", "%p1", "%t")
    x, y = ints(128), np.zeros(128, np.int32)
    found = places(body, x, y, threads=128, smem=1040)
    assert found == (set() if kind in ("async", "async.global") else {(KIND, BULK_LOAD)})
    np.testing.assert_array_equal(y, np.arange(128))
