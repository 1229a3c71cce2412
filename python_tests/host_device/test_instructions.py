"""Instructions of the nvvm and llvm dialects on the host device, one at a time, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.device.direct import run_function
from mlirc.device.tensor_maps import TensorMap
from support.kernels.instructions import (
    BF16,
    CLUSTER,
    E4M3,
    E5M2,
    MEET,
    MULTICAST,
    WAIT,
    at,
    exchange,
    fragments,
    ints,
    load,
    module,
    run,
    store,
)
from support.randomness import generator

# -- warps


@pytest.mark.parametrize("kind, f", [("add", np.add), ("min", np.minimum), ("umax", None), ("xor", np.bitwise_xor)])
def test_redux(kind, f):
    x, y = ints(64), ints(64)
    assert not run(load("x", "%p0", "%t") + f"%r = nvvm.redux.sync {kind} %x, %all : i32 -> i32\n"
                   + store("%r", "%p1", "%t"), x, y, threads=64)  # fmt: skip
    halves = x.reshape(2, 32)
    want = f.reduce(halves, axis=1) if f else halves.view(np.uint32).max(axis=1).view(np.int32)
    np.testing.assert_array_equal(y.reshape(2, 32), np.repeat(want[:, None], 32, axis=1))


def test_redux_with_a_mask_that_leaves_out_lanes():
    body = load("x", "%p0", "%t") + """
      %low = arith.cmpi ult, %t, %c8 : i32
      scf.if %low { %m = arith.constant MASK : i32
        %r = nvvm.redux.sync add %x, %m : i32 -> i32
        """ + store("%r", "%p1", "%t") + "}"  # fmt: skip
    x, y = ints(32), np.zeros(32, np.int32)
    assert not run(body.replace("MASK", "255"), x, y)
    assert (y[:8] == x[:8].sum()).all() and not y[8:].any()
    assert run(body.replace("MASK", "1023"), x, y) == {"divergent warp"}
    assert run(body.replace("MASK", "15"), x, y) == {"divergent warp"}


def test_match():
    x, y, z, p = ints(32, low=0, high=4), *(np.zeros(32, np.int32) for _ in range(3))
    body = load("x", "%p0", "%t") + """
      %any = nvvm.match.sync any %all, %x : i32 -> i32
      %pair = nvvm.match.sync all %all, %x : i32 -> !llvm.struct<(i32, i1)>
      %m = llvm.extractvalue %pair[0] : !llvm.struct<(i32, i1)>
      %f = llvm.extractvalue %pair[1] : !llvm.struct<(i32, i1)>
      %fi = arith.extui %f : i1 to i32\n"""  # fmt: skip
    body += store("%any", "%p1", "%t") + store("%m", "%p2", "%t") + store("%fi", "%p3", "%t")
    assert not run(body, x, y, z, p, ptx=True)
    want = [sum(1 << j for j in range(32) if x[j] == x[i]) for i in range(32)]
    np.testing.assert_array_equal(y.view(np.uint32), want)
    assert not z.any() and not p.any()
    x[:] = 7
    run(body, x, y, z, p, ptx=True)
    assert (z == -1).all() and (p == 1).all()


def test_elect_and_lane_masks():
    y, z = np.zeros(64, np.int32), np.zeros(64, np.int32)
    body = (
        """%e = nvvm.elect.sync -> i1
      %ei = arith.extui %e : i1 to i32
      %lt = nvvm.read.ptx.sreg.lanemask.lt : i32\n"""
        + store("%ei", "%p0", "%t")
        + store("%lt", "%p1", "%t")
    )
    assert not run(body, y, z, threads=64, ptx=True)
    np.testing.assert_array_equal(np.flatnonzero(y), [0, 32])
    np.testing.assert_array_equal(z[:32].view(np.uint32), [(1 << i) - 1 for i in range(32)])
    assert run("%low = arith.cmpi ult, %t, %c8 : i32\nscf.if %low { %e = nvvm.elect.sync -> i1 }", y) == {
        "divergent warp"
    }


def test_shuffle_with_predicate():
    x, y, z = ints(32), np.zeros(32, np.int32), np.zeros(32, np.int32)
    body = (
        load("x", "%p0", "%t")
        + """%c31 = arith.constant 31 : i32
      %s = nvvm.shfl.sync down %all, %x, %c4, %c31 {return_value_and_is_valid} : i32 -> !llvm.struct<(i32, i1)>
      %v = llvm.extractvalue %s[0] : !llvm.struct<(i32, i1)>
      %ok = llvm.extractvalue %s[1] : !llvm.struct<(i32, i1)>
      %oki = arith.extui %ok : i1 to i32\n"""
        + store("%v", "%p1", "%t")
        + store("%oki", "%p2", "%t")
    )
    assert not run(body, x, y, z)
    np.testing.assert_array_equal(y, np.concatenate([x[4:], x[28:]]))
    np.testing.assert_array_equal(z, [1] * 28 + [0] * 4)


# -- atomics


@pytest.mark.parametrize("space", ["", "<3>"])
def test_atomic_add_returns_a_ticket_each(space):
    tickets, count = np.zeros(96, np.int32), np.zeros(1, np.int32)
    body = 'gpu.barrier\n%r = llvm.atomicrmw add %p1, %c1 syncscope("device") monotonic : !llvm.ptr<1>, i32\n'
    if space:
        body = f"""%first = arith.cmpi eq, %t, %c0 : i32
          scf.if %first {{ llvm.store %c0, %smem : i32, !llvm.ptr<3> }}
          gpu.barrier
          %r = llvm.atomicrmw add %smem, %c1 monotonic : !llvm.ptr<3>, i32
          gpu.barrier
          scf.if %first {{ %n = llvm.load %smem : !llvm.ptr<3> -> i32
          {store("%n", "%p1", "%c0")} }}\n"""
    assert not run(body + store("%r", "%p0", "%t"), tickets, count, threads=96, smem=16)
    np.testing.assert_array_equal(np.sort(tickets), np.arange(96))
    assert count[0] == 96


@pytest.mark.parametrize(
    "kind, want",
    [("max", lambda x: x.max()), ("umin", lambda x: x.view(np.uint32).min().view(np.int32)), ("xchg", lambda x: x[-1]),
     ("_and", np.bitwise_and.reduce), ("_xor", np.bitwise_xor.reduce)],
)  # fmt: skip
def test_atomics_of_other_kinds(kind, want):
    x = ints(32)
    y = np.array([x[0]], np.int32) if kind != "_xor" else np.zeros(1, np.int32)
    body = load("x", "%p0", "%t") + f"%r = llvm.atomicrmw {kind} %p1, %x monotonic : !llvm.ptr<1>, i32"
    assert not run(body, x, y)
    assert y[0] == want(x)


def test_compare_and_swap_lets_one_thread_win():
    flag, who = np.zeros(1, np.int32), np.zeros(64, np.int32)
    body = """%mine = arith.addi %t, %c1 : i32
      %r = llvm.cmpxchg %p0, %c0, %mine acq_rel monotonic : !llvm.ptr<1>, i32
      %ok = llvm.extractvalue %r[1] : !llvm.struct<(i32, i1)>
      %oki = arith.extui %ok : i1 to i32\n""" + store("%oki", "%p1", "%t")
    assert not run(body, flag, who, threads=64)
    assert who.sum() == 1 and flag[0] == np.flatnonzero(who)[0] + 1


# -- matrices


@pytest.mark.parametrize(
    "name, dtype, k",
    [("tf32", np.float32, 4), ("tf32", np.float32, 8), ("e4m3", E4M3, 32), ("e5m2", E5M2, 32), ("bf16", BF16, 8),
     ("bf16", BF16, 16), ("s8", np.int8, 16), ("s8", np.int8, 32), ("u8", np.uint8, 32)],
)  # fmt: skip
def test_mma(name, dtype, k):
    whole = np.dtype(dtype).kind in "iu"
    rng = generator()
    values = [rng.integers(0, 100, s) if whole else rng.standard_normal(s) for s in ((16, k), (k, 8))]
    a, b = (v.astype(np.float32).astype(dtype) for v in values)
    per = 4 // a.itemsize
    fa, fb = fragments(a, per), fragments(b, per, True)
    d = np.zeros((32, 4), np.int32 if whole else np.float32)
    out, na, nb = "i32" if whole else "f32", fa.shape[1], fb.shape[1]
    body = f"%zero = arith.constant {'0' if whole else '0.0'} : {out}\n"
    for which, n in (("a", na), ("b", nb)):
        for i in range(n):
            body += f"%{which}n{i} = arith.constant {n} : i32\n%{which}o{i} = arith.constant {i} : i32\n"
            body += f"%{which}m{i} = arith.muli %t, %{which}n{i} : i32\n"
            body += f"%{which}i{i} = arith.addi %{which}m{i}, %{which}o{i} : i32\n"
            body += load(f"{which}{i}", f"%p{'ab'.index(which)}", f"%{which}i{i}")
    listed = [", ".join(f"%{x}{i}" for i in range(n)) for x, n in (("a", na), ("b", nb))]
    overflow = "intOverflowBehavior = #nvvm.mma_int_overflow<wrapped>, " if whole else ""
    struct = f"!llvm.struct<({', '.join([out] * 4)})>"
    body += (
        f"%d = nvvm.mma.sync A[{listed[0]}] B[{listed[1]}] C[%zero, %zero, %zero, %zero] {{{overflow}"
        f"layoutA = #nvvm.mma_layout<row>, layoutB = #nvvm.mma_layout<col>, multiplicandAPtxType = #nvvm.mma_type<{name}>, "
        f"multiplicandBPtxType = #nvvm.mma_type<{name}>, shape = #nvvm.shape<m = 16, n = 8, k = {k}>}} : "
        f"(i32, i32, {out}) -> {struct}\n"
    )
    for i in range(4):
        body += f"%d{i} = llvm.extractvalue %d[{i}] : {struct}\n%do{i} = arith.constant {i} : i32\n"
        body += f"%dm{i} = arith.muli %t, %c4 : i32\n%di{i} = arith.addi %dm{i}, %do{i} : i32\n"
        body += store(f"%d{i}", "%p2", f"%di{i}", out)
    assert not run(body, fa, fb, d, ptx=True)
    found = d.reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)  # g, t, row half, j
    if name == "tf32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found, want, rtol=0, atol=0 if whole else 1e-5 * max(np.abs(want).max(), 1))


@pytest.mark.parametrize("layout", ["row", "col"])
def test_stmatrix_and_ldmatrix_are_inverse(layout):
    x, y, z = ints(32, 4), np.zeros((32, 4), np.int32), np.zeros((4, 8, 4), np.int32)
    matrix = "shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>, eltType = #nvvm.ld_st_matrix_elt_type<b16>"
    body = at("row", "%smem", "%byte", "i8", "<3>").replace("%row =", "%byte = arith.muli %t, %c16 : i32\n%row =")
    body += "".join(
        f"%k{i} = arith.constant {i} : i32\n%m{i} = arith.muli %t, %c4 : i32\n%i{i} = arith.addi %m{i}, %k{i} : i32\n"
        + load(f"x{i}", "%p0", f"%i{i}")
        for i in range(4)
    )
    body += f"""nvvm.stmatrix %row, %x0, %x1, %x2, %x3 {{layout = #nvvm.mma_layout<{layout}>, {matrix}}} :
        !llvm.ptr<3>, i32, i32, i32, i32
      nvvm.bar.warp.sync %all : i32
      %r = nvvm.ldmatrix %row {{num = 4 : i32, layout = #nvvm.mma_layout<{layout}>, {matrix}}} : (!llvm.ptr<3>)
        -> !llvm.struct<(i32, i32, i32, i32)>\n"""
    for i in range(4):
        body += f"%r{i} = llvm.extractvalue %r[{i}] : !llvm.struct<(i32, i32, i32, i32)>\n"
        body += store(f"%r{i}", "%p1", f"%i{i}") + load(f"s{i}", "%smem", f"%i{i}", "i32", "<3>")
        body += store(f"%s{i}", "%p2", f"%i{i}")
    assert not run(body, x, y, z, smem=512, ptx=True)
    np.testing.assert_array_equal(x, y)
    halves = x.T.reshape(4, 8, 4).copy().view(np.int16)  # matrix, g, column
    stored = z.view(np.int16)
    np.testing.assert_array_equal(stored, halves if layout == "row" else halves.swapaxes(1, 2))


# -- clusters


def test_distributed_shared_memory():
    x, y = ints(128), np.zeros(128, np.int32)
    assert not run(exchange(MEET, MEET), x, y, blocks=4, smem=128, attributes=CLUSTER)
    np.testing.assert_array_equal(y.reshape(2, 2, 32), x.reshape(2, 2, 32)[:, ::-1])


def test_a_missing_cluster_barrier_is_a_race():
    x, y = ints(64), np.zeros(64, np.int32)
    assert "race" in run(exchange("", MEET), x, y, blocks=2, smem=128, attributes=CLUSTER)
    relaxed = MEET.replace("arrive", "arrive.relaxed")
    assert "race" in run(exchange(relaxed, MEET), x, y, blocks=2, smem=128, attributes=CLUSTER)


def test_a_cluster_barrier_that_some_never_reach_is_a_deadlock():
    body = "%low = arith.cmpi eq, %b, %c0 : i32\nscf.if %low { nvvm.cluster.arrive\n nvvm.cluster.wait }"
    assert run(body, ints(4), blocks=2, attributes=CLUSTER) == {"deadlock"}


def test_a_block_that_the_cluster_does_not_have():
    body = "%far = nvvm.mapa %smem, %c4 : !llvm.ptr<3> -> !llvm.ptr<7>"
    assert run(body, ints(4), blocks=2, smem=16, attributes=CLUSTER) == {"out of bounds"}


def test_grids_that_clusters_do_not_divide():
    assert run("", ints(4), blocks=3, attributes=CLUSTER) == {"bad launch"}


def test_bulk_copy():
    x, y = ints(128), np.zeros(128, np.int32)
    copy = """nvvm.barrier
      scf.if %first { %to = llvm.addrspacecast %smem : !llvm.ptr<3> to !llvm.ptr<7>
      nvvm.cp.async.bulk.shared.cluster.global %to, %p0, %bar, %n : !llvm.ptr<7>, !llvm.ptr<1> }"""
    rest = load("v", "%smem", "%t", "i32", "<3>") + store("%v", "%p1", "%t")
    assert not run(WAIT.replace("START", copy) + rest, x, y, threads=128, smem=1040)
    np.testing.assert_array_equal(x, y)
    short = WAIT.replace("START", copy).replace("constant 512", "constant 528", 1)
    short = short.replace("%p0, %bar, %n", "%p0, %bar, %n2").replace("START", "").replace(
        "%patience =", "%n2 = arith.constant 512 : i32\n%patience =")  # fmt: skip
    assert run(short + rest, x, y, threads=128, smem=1040) == {"deadlock"}


def test_bulk_store_is_read_until_its_group_is_waited_for():
    x, y = ints(32), np.zeros(32, np.int32)
    body = load("x", "%p0", "%t") + store("%x", "%smem", "%t", "i32", "<3>") + """
      nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}
      nvvm.barrier
      %first = arith.cmpi eq, %t, %c0 : i32
      %n = arith.constant 128 : i32
      scf.if %first { nvvm.cp.async.bulk.global.shared.cta %p1, %smem, %n : !llvm.ptr<1>, !llvm.ptr<3>
        nvvm.cp.async.bulk.commit.group
        nvvm.cp.async.bulk.wait_group 0 {read} }
      nvvm.barrier\n""" + store("%c0", "%smem", "%t", "i32", "<3>")  # fmt: skip
    assert not run(body, x, y, smem=128)
    np.testing.assert_array_equal(x, y)
    assert "race" in run(body.replace("nvvm.cp.async.bulk.wait_group 0 {read}", ""), x, y, smem=128)
    fence = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}"
    assert run(body.replace(fence, ""), x, y, smem=128) == {"missing proxy fence"}


def test_multicast():
    """Block 0 of each cluster copies a box to both."""
    x, y = ints(8, 16), np.zeros((4, 8, 16), np.int32)
    report = run_function(
        module(MULTICAST, 1, CLUSTER, maps=1), "k", [y, TensorMap(x, (8, 16))], (4, 1, 1), (128, 1, 1), 1040
    )
    assert report.ok, [str(f) for f in report.findings]
    np.testing.assert_array_equal(y, np.broadcast_to(x, (4, 8, 16)))
    alone = module(MULTICAST.replace("constant 3 : i16", "constant 1 : i16"), 1, CLUSTER, maps=1)
    report = run_function(alone, "k", [y, TensorMap(x, (8, 16))], (4, 1, 1), (128, 1, 1), 1040)
    assert report.kinds() == {"deadlock"}  # the second block's bytes never come
