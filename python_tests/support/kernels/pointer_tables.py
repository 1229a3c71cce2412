"""A kernel by hand that takes tables of pointers: a block for each of some arrays of their own sizes, y_i = (i + 2) x_i."""

from __future__ import annotations

import numpy as np

SIZES, BLOCK = (5, 64, 33), 32
TABLE = f"!llvm.ptr {{llvm.align = 8 : i64, llvm.byval = !llvm.array<{len(SIZES)} x ptr>}}"
G = "!llvm.ptr<1>"


def _names(letter: str) -> list[str]:
    return [f"%{letter}{i}" for i in range(len(SIZES))]


def kernel(chosen: str = "%block") -> str:
    """Its `gpu`-level module. `chosen` is the number of the array that a thread works on."""
    arguments = ", ".join(f"{v}: memref<{n}xf32>" for k in "xy" for v, n in zip(_names(k), SIZES, strict=True))
    pointers = "\n".join(
        f'    %p{v[1:]} = "mlirc.pointer"({v}) : (memref<{n}xf32>) -> !llvm.ptr'
        for k in "xy" for v, n in zip(_names(k), SIZES, strict=True)
    )  # fmt: skip
    types = ", ".join(["!llvm.ptr"] * len(SIZES))
    tables = "\n".join(
        f'    %{k} = "mlirc.pointer_table"({", ".join("%p" + v[1:] for v in _names(k))}) : ({types}) -> !llvm.ptr'
        for k in "xy"
    )
    bounds = "\n".join(f"      %n{i} = arith.constant {n} : i64" for i, n in enumerate(SIZES))
    return f"""module attributes {{gpu.container_module}} {{
  func.func @grouped({arguments}) attributes {{mlirc.kernel}} {{
    %one = arith.constant 1 : index
    %groups = arith.constant {len(SIZES)} : index
    %threads = arith.constant {BLOCK} : index
{pointers}
{tables}
    gpu.launch_func @grouped_gpu::@grouped_0 blocks in (%groups, %one, %one) threads in (%threads, %one, %one)
      args(%x : !llvm.ptr, %y : !llvm.ptr)
    return
  }}
  gpu.module @grouped_gpu {{
    gpu.func @grouped_0(%x: {TABLE}, %y: {TABLE}) kernel
        attributes {{known_block_size = array<i32: {BLOCK}, 1, 1>}} {{
      %b = gpu.block_id x
      %t = gpu.thread_id x
      %block = arith.index_cast %b : index to i64
      %thread = arith.index_cast %t : index to i64
      %k0 = arith.constant 0 : i64
      %k1 = arith.constant 1 : i64
      %k2 = arith.constant 2 : i64
      %step = arith.constant {BLOCK} : i64
{bounds}
      %group = arith.addi {chosen}, %k0 : i64
      %is0 = arith.cmpi eq, %group, %k0 : i64
      %is1 = arith.cmpi eq, %group, %k1 : i64
      %more = arith.select %is1, %n1, %n2 : i64
      %size = arith.select %is0, %n0, %more : i64
      %px = llvm.getelementptr %x[%group] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
      %py = llvm.getelementptr %y[%group] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
      %from = llvm.load %px : !llvm.ptr -> {G}
      %to = llvm.load %py : !llvm.ptr -> {G}
      %by = arith.addi %group, %k2 : i64
      %factor = arith.sitofp %by : i64 to f32
      scf.for %i = %thread to %size step %step : i64 {{
        %at = llvm.getelementptr %from[%i] : ({G}, i64) -> {G}, f32
        %v = llvm.load %at : {G} -> f32
        %w = arith.mulf %v, %factor : f32
        %out = llvm.getelementptr %to[%i] : ({G}, i64) -> {G}, f32
        llvm.store %w, %out : f32, {G}
      }}
      gpu.return
    }}
  }}
}}
"""


def model() -> str:
    """A model at the `gpu` level that is the kernel."""
    ins = ", ".join(f'{v}: tensor<{n}xf32> {{mlirc.kind = "input", mlirc.name = "{v[1:]}"}}'
                    for v, n in zip(_names("x"), SIZES, strict=True))  # fmt: skip
    types = ", ".join(f"tensor<{n}xf32>" for n in SIZES)
    outs = ", ".join(f'tensor<{n}xf32> {{mlirc.name = "y{i}"}}' for i, n in enumerate(SIZES))
    results = ", ".join(f"%r#{i}" for i in range(len(SIZES)))
    return f"""module {{
  func.func @main({ins}) -> ({outs}) {{
    %r:{len(SIZES)} = call @grouped({", ".join(_names("x"))}) : ({types}) -> ({types})
    return {results} : {types}
  }}
  func.func private @grouped({types}) -> ({types}) attributes {{mlirc.kernel}}
}}

// -----

{kernel()}"""


def inputs(seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(n).astype(np.float32) for n in SIZES]


def right(xs: list[np.ndarray]) -> list[np.ndarray]:
    return [x * np.float32(i + 2) for i, x in enumerate(xs)]
