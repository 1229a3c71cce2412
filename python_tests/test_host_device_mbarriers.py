"""mbarriers on the host device: who may use one when, and every form of arrival and wait."""

from __future__ import annotations

import numpy as np
import pytest
from test_host_device_instructions import CLUSTER, MEET, MULTICAST, WAIT, ints, load, module, run, store

from mlirc.host.device.direct import run_function
from mlirc.host.device.tensor_maps import TensorMap

FENCE = "nvvm.fence.mbarrier.init\n"
PROXY = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}\n"
MISSING = {"missing mbarrier fence"}
COPY = """nvvm.barrier
  scf.if %first { %to = llvm.addrspacecast %smem : !llvm.ptr<3> to !llvm.ptr<7>
  nvvm.cp.async.bulk.shared.cluster.global %to, %p0, %bar, %n : !llvm.ptr<7>, !llvm.ptr<1> }"""
BULK = WAIT.replace("START", COPY) + load("v", "%smem", "%t", "i32", "<3>") + store("%v", "%p1", "%t")


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
