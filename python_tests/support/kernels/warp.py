"""Kernels, written by hand, whose lanes work together in parts of a warp, and whose warps do in parts of a block."""

from __future__ import annotations

import numpy as np

SHARED = "#gpu.address_space<workgroup>"
THREADS, BLOCKS = 128, 2


def half_warps() -> str:
    """y [3, 256] of x [256]: sums of 16 lanes (shuffles) plus the maximum of 16 (redux) and how many of 16 are positive
    (votes); what the neighbour wrote, within 16 lanes and within 64 threads (shared memory, barriers of parts); the
    block's maximum (atomics), or where a flag is set its negative."""
    shuffles = "".join(
        f"    %o{n} = arith.constant {n} : i32\n    %s{n} = nvvm.shfl.sync bfly %mine, %a{2 * n}, %o{n}, %c31 : i32 -> i32\n"
        f"    %a{n} = arith.addi %a{2 * n}, %s{n} : i32\n"
        for n in (8, 4, 2, 1)
    )
    types = f"%x: memref<{THREADS * BLOCKS}xi32>, %y: memref<3x{THREADS * BLOCKS}xi32>"
    part = f"memref<{THREADS}xi32, {SHARED}>"
    return f"""module attributes {{gpu.container_module}} {{
gpu.module @k_gpu {{
  gpu.func @k({types}) workgroup(%s : {part}, %n : memref<2xi32, {SHARED}>) kernel {{
    %t = gpu.thread_id x
    %b = gpu.block_id x
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c5 = arith.constant 5 : index
    %c37 = arith.constant 37 : index
    %c64 = arith.constant 64 : index
    %threads = arith.constant {THREADS} : index
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    %c31 = arith.constant 31 : i32
    %c16 = arith.constant 16 : i32
    %half = arith.constant 64 : i32
    %low_mask = arith.constant 65535 : i32
    %high_mask = arith.constant -65536 : i32
    %least = arith.constant -2147483648 : i32
    %ti = arith.index_cast %t : index to i32
    %lane = arith.andi %ti, %c31 : i32
    %low = arith.cmpi ult, %lane, %c16 : i32
    %mine = arith.select %low, %low_mask, %high_mask : i32
    %first = arith.muli %b, %threads : index
    %g = arith.addi %first, %t : index
    %begins = arith.cmpi eq, %t, %c0 : index
    scf.if %begins {{
      memref.store %least, %n[%c0] : memref<2xi32, {SHARED}>
      memref.store %zero, %n[%c1] : memref<2xi32, {SHARED}>
    }}
    %a16 = memref.load %x[%g] : memref<{THREADS * BLOCKS}xi32>
{shuffles}
    %top = nvvm.redux.sync max %a16, %mine : i32 -> i32
    %positive = arith.cmpi sgt, %a16, %zero : i32
    %votes = nvvm.vote.sync ballot %mine, %positive -> i32
    %many = math.ctpop %votes : i32
    %r0 = arith.addi %a1, %top : i32
    %r1 = arith.addi %r0, %many : i32
    memref.store %r1, %y[%c0, %g] : memref<3x{THREADS * BLOCKS}xi32>
    memref.store %a16, %s[%t] : {part}
    nvvm.bar.warp.sync %mine : i32
    %n5 = arith.xori %t, %c5 : index
    %near = memref.load %s[%n5] : {part}
    %early = arith.cmpi ult, %t, %c64 : index
    scf.if %early {{
      nvvm.barrier id = %one number_of_threads = %half
    }} else {{
      nvvm.barrier id = %two number_of_threads = %half
    }}
    %n37 = arith.xori %t, %c37 : index
    %far = memref.load %s[%n37] : {part}
    %r2 = arith.subi %near, %far : i32
    memref.store %r2, %y[%c1, %g] : memref<3x{THREADS * BLOCKS}xi32>
    gpu.barrier
    %old = memref.atomic_rmw maxs %a16, %n[%c0] : (i32, memref<2xi32, {SHARED}>) -> i32
    %is5 = arith.cmpi eq, %t, %c5 : index
    %sets = arith.andi %is5, %positive : i1
    scf.if %sets {{
      memref.store %one, %n[%c1] : memref<2xi32, {SHARED}>
    }}
    gpu.barrier
    %max = memref.load %n[%c0] : memref<2xi32, {SHARED}>
    %flag = memref.load %n[%c1] : memref<2xi32, {SHARED}>
    %set = arith.cmpi eq, %flag, %one : i32
    scf.if %set {{
      %minus = arith.subi %zero, %max : i32
      memref.store %minus, %y[%c2, %g] : memref<3x{THREADS * BLOCKS}xi32>
    }} else {{
      memref.store %max, %y[%c2, %g] : memref<3x{THREADS * BLOCKS}xi32>
    }}
    gpu.return
  }}
}}
func.func @k({types}) {{
  %one = arith.constant 1 : index
  %blocks = arith.constant {BLOCKS} : index
  %threads = arith.constant {THREADS} : index
  %smem = arith.constant 0 : i32
  gpu.launch_func @k_gpu::@k blocks in (%blocks, %one, %one) threads in (%threads, %one, %one)
      dynamic_shared_memory_size %smem args(%x : memref<{THREADS * BLOCKS}xi32>, %y : memref<3x{THREADS * BLOCKS}xi32>)
  return
}}
}}"""


def half_warps_right(x: np.ndarray) -> list[np.ndarray]:
    """x [256] int32 to [3, 256]."""
    parts = x.reshape(-1, 16)
    one = parts.sum(axis=1) + parts.max(axis=1) + (parts > 0).sum(axis=1)
    t, blocks = np.arange(THREADS), x.reshape(BLOCKS, THREADS)
    two = blocks[:, t ^ 5] - blocks[:, t ^ 37]
    three = blocks.max(axis=1) * np.where(blocks[:, 5] > 0, -1, 1)
    rows = [np.repeat(one, 16), two.ravel(), np.repeat(three, THREADS)]
    return [np.stack(rows).astype(np.int32)]
