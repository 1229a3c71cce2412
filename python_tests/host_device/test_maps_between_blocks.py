"""Tensor copies of a launch's buffers by blocks that wait for each other: order comes from flags, as for threads."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.launch import DeviceKernel
from support.kernels.order import pointer, store, wait
from support.kernels.tensor_maps import MAP, WORKGROUP, S

T = "memref<8x16xf32>"
FLAGS = "memref<1xi32>"
MADE = "{box = array<i64: 8, 16>, swizzle = 0 : i64}"
COPY_IN = "nvvm.cp.async.bulk.tensor.shared.cluster.global %there, {}, %bar, box[%i0, %i0] : !llvm.ptr<7>, !llvm.ptr"
COPY_OUT = f"nvvm.cp.async.bulk.tensor.global.shared.cta {{}}, %s, box[%i0, %i0] : !llvm.ptr, {S}"
EXPECT = f"%token{{}} = nvvm.mbarrier.arrive.expect_tx %bar, %bytes : {S}, i32 -> i64"
WAIT = f"nvvm.mbarrier.try_wait.parity %bar, %i0, %patience : {S}, i32, i32"
DONE = "nvvm.cp.async.bulk.commit.group\nnvvm.cp.async.bulk.wait_group 0"


def text(done: str = DONE, order: str = "release", waits: bool = True) -> str:
    """Block 0 copies x to w and sets a flag, for which block 1 waits before it copies w to y."""
    return f"""
module attributes {{gpu.container_module}} {{
  func.func @k(%x: {T}, %y: {T}) {{
    %w = memref.alloc() : {T}
    %flags = memref.alloc() : {FLAGS}
    %one = arith.constant 1 : index
    %two = arith.constant 2 : index
    %smem = arith.constant 528 : i32
    %mx = "mlirc.tensor_map"(%x) {MADE} : ({T}) -> !llvm.ptr
    %mw = "mlirc.tensor_map"(%w) {MADE} : ({T}) -> !llvm.ptr
    %my = "mlirc.tensor_map"(%y) {MADE} : ({T}) -> !llvm.ptr
    gpu.launch_func @k_gpu::@zero blocks in (%one, %one, %one) threads in (%one, %one, %one) args(%flags : {FLAGS})
    gpu.launch_func @k_gpu::@k_0 blocks in (%two, %one, %one) threads in (%one, %one, %one)
      dynamic_shared_memory_size %smem args(%mx : !llvm.ptr, %mw : !llvm.ptr, %my : !llvm.ptr, %flags : {FLAGS})
    return
  }}
  gpu.module @k_gpu {{
    gpu.func @zero(%flags: {FLAGS}) kernel {{
      %c0 = arith.constant 0 : index
      %i0 = arith.constant 0 : i32
      memref.store %i0, %flags[%c0] : {FLAGS}
      gpu.return
    }}
    gpu.func @k_0(%x: {MAP}, %w: {MAP}, %y: {MAP}, %flags: {FLAGS}) kernel {{
      %c0 = arith.constant 0 : index
      %i0 = arith.constant 0 : i32
      %i1 = arith.constant 1 : i32
      %bytes = arith.constant 512 : i32
      %patience = arith.constant 10000000 : i32
      %shared = gpu.dynamic_shared_memory : memref<?xi8, {WORKGROUP}>
      %address = memref.extract_aligned_pointer_as_index %shared : memref<?xi8, {WORKGROUP}> -> index
      %word = arith.index_castui %address : index to i64
      %s = llvm.inttoptr %word : i64 to {S}
      %bar = llvm.getelementptr %s[512] : ({S}) -> {S}, i8
      %there = llvm.addrspacecast %s : {S} to !llvm.ptr<7>
      nvvm.mbarrier.init %bar, %i1 : {S}, i32
      nvvm.fence.mbarrier.init
      {pointer("flag", "%flags", FLAGS)}
      %b = gpu.block_id x
      %makes = arith.cmpi eq, %b, %c0 : index
      scf.if %makes {{
        {EXPECT.format(0)}
        {COPY_IN.format("%x")}
        {WAIT}
        {COPY_OUT.format("%w")}
        {done}
        {store("%i1", "flag", order)}
      }} else {{
        {wait("seen", "flag", "eq", "%i0") if waits else ""}
        {EXPECT.format(1)}
        {COPY_IN.format("%w")}
        {WAIT}
        {COPY_OUT.format("%y")}
        {DONE}
      }}
      gpu.return
    }}
  }}
}}"""


@pytest.mark.parametrize(("how", "kinds"), [
    ({}, set()), ({"order": "monotonic"}, {"race between blocks"}), ({"waits": False}, {"undefined value"}),
    ({"done": "nvvm.cp.async.bulk.commit.group\nnvvm.cp.async.bulk.wait_group 0 {read}"}, {"race between blocks"}),
])  # fmt: skip
@pytest.mark.parametrize("seed", [0, 3])
def test_a_flag_behind_the_wait_for_a_copy_orders_it(how, kinds, seed):
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    y = np.zeros_like(x)
    report = DeviceKernel(mlir.parse(text(**how)), inputs=1).run([x, y], seed=seed)
    if kinds:
        assert kinds <= report.kinds(), report
    else:
        assert not report.findings, report
        np.testing.assert_array_equal(x, y)
