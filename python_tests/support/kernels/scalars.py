"""A kernel by hand that takes numbers by value, one of which decides how many blocks it has: y = n x + s."""

from __future__ import annotations

import numpy as np

SIZE, BLOCK, PER_BLOCK, FACTOR, MOST = 100, 32, 8, 2, 8  # blocks: ceildiv(n, PER_BLOCK) * FACTOR, at most MOST
INPUTS = f"%x: tensor<{SIZE}xf32>"


def kernel(scalar: str = "i32") -> str:
    """Its `gpu`-level module. All of y is written, however many blocks there are, unless there are none."""
    to_float = "arith.sitofp" if scalar.startswith("i") else "arith.extf"
    grid = f"""
    %i = arith.index_cast %v : {scalar} to index
    %q = arith.ceildivsi %i, %per : index
    %g = arith.muli %q, %factor : index"""
    return f"""module attributes {{gpu.container_module}} {{
  func.func @scale(%x: memref<{SIZE}xf32>, %n: memref<{scalar}>, %s: memref<1xf32>, %y: memref<{SIZE}xf32>)
      attributes {{mlirc.kernel}} {{
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %per = arith.constant {PER_BLOCK} : index
    %factor = arith.constant {FACTOR} : index
    %block = arith.constant {BLOCK} : index
    %v = memref.load %n[] : memref<{scalar}>
    %w = memref.load %s[%zero] : memref<1xf32>{grid}
    gpu.launch_func @scale_gpu::@scale_0 blocks in (%g, %one, %one) threads in (%block, %one, %one)
      args(%x : memref<{SIZE}xf32>, %v : {scalar}, %y : memref<{SIZE}xf32>, %w : f32)
      {{mlirc.most_blocks = array<i64: {MOST}, 1, 1>}}
    return
  }}
  gpu.module @scale_gpu {{
    gpu.func @scale_0(%x: memref<{SIZE}xf32>, %n: {scalar}, %y: memref<{SIZE}xf32>, %s: f32) kernel
        attributes {{known_block_size = array<i32: {BLOCK}, 1, 1>}} {{
      %size = arith.constant {SIZE} : index
      %block = arith.constant {BLOCK} : index
      %b = gpu.block_id x
      %t = gpu.thread_id x
      %blocks = gpu.grid_dim x
      %first = arith.muli %b, %block : index
      %start = arith.addi %first, %t : index
      %step = arith.muli %blocks, %block : index
      %f = {to_float} %n : {scalar} to f32
      scf.for %i = %start to %size step %step {{
        %a = memref.load %x[%i] : memref<{SIZE}xf32>
        %m = arith.mulf %a, %f : f32
        %r = arith.addf %m, %s : f32
        memref.store %r, %y[%i] : memref<{SIZE}xf32>
      }}
      gpu.return
    }}
  }}
}}
"""


def model(scalar: str = "i32", kind: str = "scalar") -> str:
    """A model at the `gpu` level whose @main calls the kernel with inputs n and s of a kind."""
    return f"""module {{
  func.func @main(%x: tensor<{SIZE}xf32> {{mlirc.kind = "input", mlirc.name = "x"}},
      %n: tensor<{scalar}> {{mlirc.kind = "{kind}", mlirc.name = "n"}},
      %s: tensor<f32> {{mlirc.kind = "{kind}", mlirc.name = "s"}}) -> (tensor<{SIZE}xf32> {{mlirc.name = "y"}}) {{
    %t = tensor.expand_shape %s [] output_shape [1] : tensor<f32> into tensor<1xf32>
    %0 = call @scale(%x, %n, %t) : (tensor<{SIZE}xf32>, tensor<{scalar}>, tensor<1xf32>) -> tensor<{SIZE}xf32>
    return %0 : tensor<{SIZE}xf32>
  }}
  func.func private @scale(tensor<{SIZE}xf32>, tensor<{scalar}>, tensor<1xf32>) -> tensor<{SIZE}xf32>
      attributes {{mlirc.kernel}}
}}

// -----

{kernel(scalar)}"""


def right(x: np.ndarray, n: int, s: float) -> np.ndarray:
    return x * np.float32(n) + np.float32(s)
