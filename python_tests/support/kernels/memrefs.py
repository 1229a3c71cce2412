"""Kernels at the `gpu` level around a body of memrefs."""

from __future__ import annotations

import numpy as np

from mlirc import mlir
from mlirc.device import run_kernel

SHARED = "#gpu.address_space<workgroup>"


def launch(body: str, arguments: str, *, threads: int = 64, blocks: int = 1, smem: int = 0,
           buffers: str = "") -> mlir.ir.Module:  # fmt: skip
    """A kernel @k around `body`, in which %t is the thread and %b the block; `arguments` as in a function, `buffers` of
    the kernel's own."""
    names = ", ".join(a.strip() for a in arguments.split(", "))
    return mlir.parse(f"""
module attributes {{gpu.container_module}} {{
  gpu.module @k_gpu {{
    gpu.func @k({names}) {buffers} kernel {{
      %t = gpu.thread_id x
      %b = gpu.block_id x
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c32 = arith.constant 32 : index
      %c63 = arith.constant 63 : index
      %c64 = arith.constant 64 : index
      %all = gpu.dynamic_shared_memory : memref<?xi8, {SHARED}>
      {body}
      gpu.return
    }}
  }}
  func.func @k({names}) {{
    %one = arith.constant 1 : index
    %blocks = arith.constant {blocks} : index
    %threads = arith.constant {threads} : index
    %smem = arith.constant {smem} : i32
    gpu.launch_func @k_gpu::@k blocks in (%blocks, %one, %one) threads in (%threads, %one, %one)
        dynamic_shared_memory_size %smem args({names})
    return
  }}
}}""")


X = "%x: memref<64xf32>, %y: memref<64xf32>"


def run(module: mlir.ir.Module, **options):
    """Runs a kernel of 64 floats; returns input, output and report."""
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    y = np.zeros(64, np.float32)
    return x, y, run_kernel(module, [x, y], **options)
