"""Parts of kernels with tensor copies and bulk copies out of shared memory."""

from __future__ import annotations

import numpy as np

from mlirc.device.tensor_maps import TensorMap
from support.kernels.instructions import WAIT, ints, load, places, store

FENCE = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}\n"
COMMIT = "nvvm.cp.async.bulk.commit.group\n"
READ = "nvvm.cp.async.bulk.wait_group 0 {read}\n"
STORE, REDUCE = "nvvm.cp.async.bulk.tensor.global.shared.cta", "nvvm.cp.async.bulk.tensor.reduce"


def out(kind: str = "", at: str = "%c0, %c4", t: str = "i32", coordinates: str = "") -> str:
    """Every thread writes its element of p0 to shared memory, a box of [8, 16]; thread 0 copies it to the array."""
    copy = f"{REDUCE} %map0, %smem, box[{at}] {{redKind = #nvvm.tma_redux_kind<{kind}>}}" if kind else (
        f"{STORE} %map0, %smem, box[{at}]")  # fmt: skip
    return (
        f"{coordinates}%first = arith.cmpi eq, %t, %c0 : i32\n"
        + load("x", "%p0", "%t", t) + store("%x", "%smem", "%t", t, "<3>")
        + f"{FENCE}nvvm.barrier\nscf.if %first {{ {copy} : !llvm.ptr, !llvm.ptr<3>\n{COMMIT}{READ} }}\nnvvm.barrier\n"
        + store("%c0", "%smem", "%t", "i32", "<3>")
    )  # fmt: skip


def send(body: str, x: np.ndarray, y: np.ndarray, blocks: int = 1) -> set[tuple[str, str]]:
    return places(body, x, TensorMap(y, (8, 16)), threads=128, blocks=blocks, smem=1024)


BETWEEN = "nvvm.cp.async.bulk.shared.cluster.shared.cta"
MEET = "nvvm.cluster.arrive\nnvvm.cluster.wait\n"


def across(fence: str = FENCE, wait: str = "", late: str = "") -> str:
    """Every block sends its 512 bytes to the other block of its cluster, by thread 0."""
    wait = wait or "nvvm.mbarrier.try_wait.parity %bar, %c0, %patience : !llvm.ptr<3>, i32, i32\n"
    expects = WAIT.split("START")[0]
    return (
        expects + load("x", "%p0", "%g").replace("%x_at", "%gx_at") + store("%x", "%smem", "%t", "i32", "<3>") + fence
        + MEET + f"""scf.if %first {{
      {BETWEEN} %there, %smem, %far_bar, %n : !llvm.ptr<7>, !llvm.ptr<3> }}
      {late} {wait}""" + load("v", "%here", "%t", "i32", "<3>") + store("%v", "%p1", "%g") + MEET
    ).replace("%bar = ", """%rank = nvvm.read.ptx.sreg.cluster.ctarank : i32
      %other = arith.xori %rank, %c1 : i32
      %mul = arith.muli %b, %c128 : i32
      %g = arith.addi %mul, %t : i32
      %here = llvm.getelementptr %smem[512] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
      %there = nvvm.mapa %here, %other : !llvm.ptr<3> -> !llvm.ptr<7>
      %bar = """, 1).replace("%first =", """%far = nvvm.mapa %bar, %other : !llvm.ptr<3> -> !llvm.ptr<7>
      %far_bar = llvm.addrspacecast %far : !llvm.ptr<7> to !llvm.ptr<3>
      %first =""", 1)  # fmt: skip


def sent(body: str) -> tuple[set[tuple[str, str]], np.ndarray, np.ndarray]:
    x, y = ints(256), np.zeros(256, np.int32)
    found = places(body, x, y, threads=128, blocks=2, smem=1040, attributes=", nvvm.cluster_dim = array<i32: 2, 1, 1>")
    return found, x.reshape(2, 128), y.reshape(2, 128)
