"""A kernel by hand that moves tiles through tensor maps: y = 2 x, and z has what of x came to shared memory."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from mlirc.device.tensor_maps import swizzled
from mlirc.runtime.arrays import NUMPY_DTYPES
from mlirc.runtime.tensor_map import TensorMapSpec

MAP = "!llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>}"
S = "!llvm.ptr<3>"
WORKGROUP = "#gpu.address_space<workgroup>"
THREADS = 64


@dataclass(frozen=True)
class Twice:
    """y = 2 x for x of a shape, in boxes that may be partially outside; z is [tiles, elements of a box]."""

    shape: tuple[int, ...]
    box: tuple[int, ...]
    dtype: str = "f32"
    swizzle: int = 0

    @property
    def spec(self) -> TensorMapSpec:
        return TensorMapSpec(self.dtype, self.shape, self.box, self.swizzle)

    @property
    def tiles(self) -> list[int]:
        """How many boxes cover each dimension."""
        return [-(-n // b) for n, b in zip(self.shape, self.box, strict=True)]

    @property
    def types(self) -> tuple[str, str]:
        """Of x and y, and of z, without `memref` or `tensor`."""
        sizes = math.prod(self.tiles), math.prod(self.box)
        return tuple("x".join([*map(str, s), self.dtype]) for s in (self.shape, sizes))  # type: ignore[return-value]

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        draw = np.random.default_rng(seed)
        return [draw.integers(-99, 99, self.shape).astype(NUMPY_DTYPES[self.dtype])]

    def right(self, x: np.ndarray) -> list[np.ndarray]:
        """y, z."""
        ends = [t * b - n for t, b, n in zip(self.tiles, self.box, self.shape, strict=True)]
        padded = np.pad(x, [(0, n) for n in ends])
        tiles = []
        for at in itertools.product(*map(range, self.tiles)):
            where = tuple(slice(i * b, (i + 1) * b) for i, b in zip(at, self.box, strict=True))
            raw = np.ascontiguousarray(padded[where]).reshape(-1).view(np.uint8)
            tile = np.empty_like(raw)
            tile[swizzled(np.arange(raw.size), self.swizzle)] = raw
            tiles.append(tile.view(x.dtype))
        return [x + x, np.stack(tiles)]

    def kernel(self) -> str:
        """The kernel's `gpu`-level module."""
        xy, z = self.types
        item = np.dtype(NUMPY_DTYPES[self.dtype]).itemsize
        count = math.prod(self.box)
        nbytes, blocks = count * item, math.prod(self.tiles)
        made = f"{{box = array<i64: {', '.join(map(str, self.box))}>, swizzle = {self.swizzle} : i64}}"
        add = "arith.addi" if self.dtype.startswith("i") else "arith.addf"
        numbers, lines, rest = {n: n for n in (*self.tiles, *self.box)}, [], "%b"
        for d in reversed(range(len(self.shape))):  # the tile's place, innermost dimension first
            lines.append(f"%n{d} = arith.remui {rest}, %k{self.tiles[d]} : index")
            lines.append(f"%o{d} = arith.muli %n{d}, %k{self.box[d]} : index")
            lines.append(f"%i{d} = arith.index_cast %o{d} : index to i32")
            lines.append(f"%r{d} = arith.divui {rest}, %k{self.tiles[d]} : index")
            rest = f"%r{d}"
        constants = "\n".join(f"%k{n} = arith.constant {n} : index" for n in numbers)
        place = "\n".join(lines)
        at = ", ".join(f"%i{d}" for d in reversed(range(len(self.shape))))
        return f"""module attributes {{gpu.container_module}} {{
  func.func @twice(%x: memref<{xy}>, %y: memref<{xy}>, %z: memref<{z}>) attributes {{mlirc.kernel}} {{
    %one = arith.constant 1 : index
    %grid = arith.constant {blocks} : index
    %block = arith.constant {THREADS} : index
    %smem = arith.constant {nbytes + 16} : i32
    %from = "mlirc.tensor_map"(%x) {made} : (memref<{xy}>) -> !llvm.ptr
    %to = "mlirc.tensor_map"(%y) {made} : (memref<{xy}>) -> !llvm.ptr
    gpu.launch_func @twice_gpu::@twice_0 blocks in (%grid, %one, %one) threads in (%block, %one, %one)
      dynamic_shared_memory_size %smem args(%from : !llvm.ptr, %z : memref<{z}>, %to : !llvm.ptr)
    return
  }}
  gpu.module @twice_gpu {{
    gpu.func @twice_0(%from: {MAP}, %z: memref<{z}>, %to: {MAP}) kernel
        attributes {{known_block_size = array<i32: {THREADS}, 1, 1>}} {{
      %shared = gpu.dynamic_shared_memory : memref<?xi8, {WORKGROUP}>
      %c0 = arith.constant 0 : index
      %count = arith.constant {count} : index
      %threads = arith.constant {THREADS} : index
      {constants}
      %tile = memref.view %shared[%c0][] : memref<?xi8, {WORKGROUP}> to memref<{count}x{self.dtype}, {WORKGROUP}>
      %address = memref.extract_aligned_pointer_as_index %shared : memref<?xi8, {WORKGROUP}> -> index
      %word = arith.index_castui %address : index to i64
      %s = llvm.inttoptr %word : i64 to {S}
      %bar = llvm.getelementptr %s[{nbytes}] : ({S}) -> {S}, i8
      %t = gpu.thread_id x
      %b = gpu.block_id x
      %first = arith.cmpi eq, %t, %c0 : index
      %w1 = arith.constant 1 : i32
      %w0 = arith.constant 0 : i32
      %patience = arith.constant 10000000 : i32
      %bytes = arith.constant {nbytes} : i32
      {place}
      scf.if %first {{
        nvvm.mbarrier.init %bar, %w1 : {S}, i32
        nvvm.fence.mbarrier.init
      }}
      gpu.barrier
      scf.if %first {{
        %token = nvvm.mbarrier.arrive.expect_tx %bar, %bytes : {S}, i32 -> i64
        %there = llvm.addrspacecast %s : {S} to !llvm.ptr<7>
        nvvm.cp.async.bulk.tensor.shared.cluster.global %there, %from, %bar, box[{at}] : !llvm.ptr<7>, !llvm.ptr
      }}
      nvvm.mbarrier.try_wait.parity %bar, %w0, %patience : {S}, i32, i32
      scf.for %i = %t to %count step %threads {{
        %v = memref.load %tile[%i] : memref<{count}x{self.dtype}, {WORKGROUP}>
        memref.store %v, %z[%b, %i] : memref<{z}>
        %w = {add} %v, %v : {self.dtype}
        memref.store %w, %tile[%i] : memref<{count}x{self.dtype}, {WORKGROUP}>
      }}
      nvvm.fence.proxy {{kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}}
      gpu.barrier
      scf.if %first {{
        nvvm.cp.async.bulk.tensor.global.shared.cta %to, %s, box[{at}] : !llvm.ptr, {S}
        nvvm.cp.async.bulk.commit.group
        nvvm.cp.async.bulk.wait_group 0
      }}
      gpu.return
    }}
  }}
}}
"""

    def model(self) -> str:
        """A model of the kernel alone: a file at the `gpu` level."""
        xy, z = (f"tensor<{t}>" for t in self.types)
        return f"""module {{
  func.func private @twice({xy}) -> ({xy}, {z}) attributes {{mlirc.kernel, mlirc.kind = "generic"}}
  func.func @main(%x: {xy} {{mlirc.name = "x", mlirc.kind = "input"}}) -> ({xy} {{mlirc.name = "y"}},
      {z} {{mlirc.name = "z"}}) {{
    %made:2 = call @twice(%x) : ({xy}) -> ({xy}, {z})
    return %made#0, %made#1 : {xy}, {z}
  }}
}}

// -----

{self.kernel()}"""


# Odd sizes: 1, prime rows, boxes that are partially outside, boxes larger than the array, every rank.
CASES = {
    "odd rows": Twice((13, 24), (8, 16)),
    "one element wide": Twice((1, 4), (1, 4)),
    "swizzled": Twice((67, 96), (16, 32), "f32", 128),
    "middle swizzle": Twice((5, 40), (8, 32), "bf16", 64),
    "narrow swizzle": Twice((11, 8), (4, 8), "i32", 32),
    "a vector": Twice((101,), (64,)),
    "wide": Twice((3, 2, 7, 16), (1, 2, 4, 8), "bf16"),
    "every dimension": Twice((2, 3, 1, 5, 4), (2, 2, 1, 4, 4), "i32"),
    "larger box": Twice((3, 8), (16, 16), "bf16", 32),
}
