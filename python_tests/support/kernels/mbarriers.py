"""Parts of kernels with mbarriers."""

from __future__ import annotations

from support.kernels.instructions import WAIT, load, store

FENCE = "nvvm.fence.mbarrier.init\n"
COPY = """nvvm.barrier
  scf.if %first { %to = llvm.addrspacecast %smem : !llvm.ptr<3> to !llvm.ptr<7>
  nvvm.cp.async.bulk.shared.cluster.global %to, %p0, %bar, %n : !llvm.ptr<7>, !llvm.ptr<1> }"""
BULK = WAIT.replace("START", COPY) + load("v", "%smem", "%t", "i32", "<3>") + store("%v", "%p1", "%t")
HEAD = """%first = arith.cmpi eq, %t, %c0 : i32
  %patience = arith.constant 1000 : i32
  %c7 = arith.constant 7 : i32
  scf.if %first { nvvm.mbarrier.init %smem, COUNT : !llvm.ptr<3>, i32 }
  nvvm.barrier\n"""
ON, PARITY = "!llvm.ptr<3>", "%c0"
SLOTS, ROUNDS = 2, 5
BARS = 512 * SLOTS
INIT = "".join(
    f"%b{i} = llvm.getelementptr %smem[{BARS + 8 * i}] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8\n"
    f"nvvm.mbarrier.init %b{i}, %c128 : !llvm.ptr<3>, i32\n"
    for i in range(2 * SLOTS)
)
