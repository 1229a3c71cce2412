"""Votes, broadcasts, and who is who in a cluster."""

from __future__ import annotations

import numpy as np
import pytest

from support.kernels.instructions import CLUSTER, ints, load, places, store

ODD = "%bit = arith.andi %x, %c1 : i32\n%p = arith.cmpi eq, %bit, %c1 : i32\n"


def bits(flags: np.ndarray) -> np.ndarray:
    """Each warp's flags as a mask, for each of its lanes."""
    rows = flags.reshape(-1, 32)
    masks = (rows * (1 << np.arange(32, dtype=np.int64))).sum(axis=1).astype(np.uint32).view(np.int32)
    return np.repeat(masks, 32)


@pytest.mark.parametrize("op", ["%r = gpu.ballot %p : i32", "%r = nvvm.vote.sync ballot %all, %p -> i32"])
def test_ballots(op):
    x, y = ints(64), np.zeros(64, np.int32)
    assert not places(load("x", "%p0", "%t") + ODD + op + "\n" + store("%r", "%p1", "%t"), x, y, threads=64)
    np.testing.assert_array_equal(y, bits(x & 1))


@pytest.mark.parametrize(
    "kind, f", [("any", np.any), ("all", np.all), ("uni", lambda p, axis: p.all(axis) | ~p.any(axis))]
)
def test_votes(kind, f):
    x, y = ints(96), np.zeros(96, np.int32)
    x[32:64], x[64:] = 1, 2
    vote = f"%v = nvvm.vote.sync {kind} %all, %p -> i1\n%r = arith.extui %v : i1 to i32\n"
    assert not places(load("x", "%p0", "%t") + ODD + vote + store("%r", "%p1", "%t"), x, y, threads=96)
    np.testing.assert_array_equal(y[::32], f((x & 1 != 0).reshape(3, 32), axis=1))


def test_broadcasts():
    x, y, z = ints(64), np.zeros(64, np.int32), np.zeros(64, np.int32)
    body = load("x", "%p0", "%t") + "%a = gpu.subgroup_broadcast %x, first_active_lane : i32\n"
    body += "%b5 = gpu.subgroup_broadcast %x, specific_lane %c8 : i32\n"
    assert not places(body + store("%a", "%p1", "%t") + store("%b5", "%p2", "%t"), x, y, z, threads=64)
    np.testing.assert_array_equal(y, np.repeat(x[::32], 32))
    np.testing.assert_array_equal(z, np.repeat(x[8::32], 32))


def test_cluster_ids():
    """A grid of 6 blocks in clusters of 2."""
    body, found = "", [np.zeros(6, np.int32) for _ in range(6)]
    names = ["gpu.cluster_block_id x", "gpu.cluster_dim_blocks x", "gpu.cluster_id x", "gpu.cluster_dim x"]
    for i, name in enumerate(names):
        body += f"%i{i} = {name}\n%n{i} = arith.index_cast %i{i} : index to i32\n" + store(f"%n{i}", f"%p{i}", "%b")
    for i, name in ((4, "cluster.ctarank"), (5, "clusterid.x")):
        body += f"%n{i} = nvvm.read.ptx.sreg.{name} : i32\n" + store(f"%n{i}", f"%p{i}", "%b")
    assert not places(body, *found, threads=1, blocks=6, attributes=CLUSTER)
    block = np.arange(6)
    for got, want in zip(found, (block % 2, [2] * 6, block // 2, [3] * 6, block % 2, block // 2), strict=True):
        np.testing.assert_array_equal(got, want)
