"""What a report says: the thread, block and byte that it is about, and not others; and what there is instead."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import run_kernel
from mlirc.device.deadlocks import threads_in_words
from mlirc.device.direct import run_function
from mlirc.device.tensor_maps import TensorMap
from support.kernels.memrefs import SHARED, X, launch
from support.kernels.product import BARRIERS, STAGES, K, M, N, product

S = f"memref<64xf32, {SHARED}>"
VIEW = f"%s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to {S}\n"
FIFTH = "%c5 = arith.constant 5 : index\n%fifth = arith.cmpi eq, %b, %c5 : index\n"


def skip(what: str, barrier: str = "gpu.barrier") -> str:
    """All threads but some of block 5 come to a barrier; `what` sets %mine for those."""
    return f"""{FIFTH}
      %w = arith.divui %t, %c32 : index
      %c3 = arith.constant 3 : index
      %c77 = arith.constant 77 : index
      %mine = {what}
      %gone = arith.andi %fifth, %mine : i1
      scf.if %gone {{
      }} else {{
        {barrier}
      }}"""


WARP3, THREAD77 = "arith.cmpi eq, %w, %c3 : index", "arith.cmpi eq, %t, %c77 : index"
COUNTED = "nvvm.barrier id = %one number_of_threads = %many"
NUMBERS = "%one = arith.constant 1 : i32\n%many = arith.constant 128 : i32\n"
HALVES = "%one = arith.constant 1 : i32\n%many = arith.constant 96 : i32\n"
FEWER = f"""{HALVES}{FIFTH}
  %w0 = arith.cmpi ult, %t, %c32 : index
  %come = arith.andi %w0, %fifth : i1
  scf.if %come {{
    {COUNTED}
  }}"""
OTHER = f"""{NUMBERS}
  %w0 = arith.cmpi ult, %t, %c64 : index
  scf.if %w0 {{
    gpu.barrier
  }} else {{
    {COUNTED}
  }}"""


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    "body, words",
    [
        (skip(WARP3), "warps 0 to 2 (threads 0 to 95) of block 5 wait for the barrier of the block, which warp 3 "
         "(threads 96 to 127) never reaches"),
        (skip(THREAD77), "127 threads (0 to 76, 78 to 127) of block 5 wait for the barrier of the block, which thread 77 "
         "(lane 13 of warp 2) never reaches"),
        (NUMBERS + skip(WARP3, COUNTED), "warps 0 to 2 (threads 0 to 95) of block 5 wait for barrier 1 of the block, "
         "which warp 3 (threads 96 to 127) never reaches"),
        (FEWER, "warp 0 (threads 0 to 31) of block 5 waits for "
         "barrier 1 of the block, where 32 of 96 threads have arrived"),
        (OTHER, "warps 0 to 1 (threads 0 to 63) of block 0 wait for the barrier of the block, which warps 2 to 3 (threads "
         "64 to 127) never reach (waiting at nvvm.barrier at line:"),
    ],
    ids=["a warp", "a lane", "by number", "counted", "another barrier"],
)  # fmt: skip
def test_a_deadlock_names_who_waits_and_who_never_comes(body, words, seed):
    report = run_kernel(launch(body, X, threads=128, blocks=8), [np.zeros(64, np.float32) for _ in range(2)], seed=seed)
    stuck = [f.message for f in report.findings if f.kind == "deadlock"]
    assert any(words in m for m in stuck), stuck
    assert len(stuck) == 1 or body is OTHER
    if body is not OTHER and "96" not in body:
        assert "likewise" not in stuck[0]


@pytest.mark.parametrize(
    "numbers, words, several",
    [
        ([5], "thread 5 (lane 5 of warp 0)", False), (range(128), "all 128 threads", True),
        (range(32, 64), "warp 1 (threads 32 to 63)", False), ([33, 34, 40], "lanes 1 to 2, 8 of warp 1 (threads 33 to 34, 40)", True),
        ([*range(32), *range(64, 96)], "warps 0, 2 (threads 0 to 31, 64 to 95)", True),
        (range(1, 128, 2), "64 threads (1 to 127)", True), ([0, 127], "2 threads (0, 127)", True),
    ],
)  # fmt: skip
def test_threads_in_words(numbers, words, several):
    mine = np.zeros(128, bool)
    mine[list(numbers)] = True
    assert threads_in_words(mine) == (words, several)


POINTER = """
  %p = memref.extract_aligned_pointer_as_index %y : memref<64xf32> -> index
  %i = arith.index_cast %p : index to i64
  %q = llvm.inttoptr %i : i64 to !llvm.ptr
  %k = arith.index_cast %t : index to i64
  %e = llvm.getelementptr %q[%k] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  llvm.store %one, %e : f32, !llvm.ptr"""


@pytest.mark.parametrize(
    "body, smem, kind, words",
    [
        (f"{FIFTH}%far = arith.select %fifth, %c64, %c0 : index\n" + VIEW.replace("%c0", "%far"), 256, "out of bounds",
         "block 5 thread 0 takes bytes 64 to 319 of shared memory, which has 256 bytes: launch the kernel with 320"),
        (VIEW, 128, "out of bounds", "takes bytes 0 to 255 of shared memory, which has 128 bytes: launch the kernel with"),
        (VIEW, 0, "out of bounds", "takes bytes 0 to 255 of shared memory, which has 0 bytes"),
        (f"%n = arith.subi %c0, %t : index\n{VIEW.replace('%c0', '%n')}", 512, "out of bounds",
         "block 0 thread 1 takes bytes -1 to 254 of shared memory, which has 512 bytes"),
        ("%w = memref.subview %y[%t] [8] [1] : memref<64xf32> to memref<8xf32, strided<[1], offset: ?>>", 0,
         "out of bounds", "block 0 thread 57 takes elements 57 to 64 of dimension 0 of argument 1, where there are 64"),
        ("%w = memref.reinterpret_cast %y to offset: [%t], sizes: [64], strides: [1]\n"
         ": memref<64xf32> to memref<64xf32, strided<[1], offset: ?>>\n"
         "memref.store %one, %w[%c63] : memref<64xf32, strided<[1], offset: ?>>", 0, "out of bounds",
         "block 0 thread 1 accesses byte 256, outside of argument 1, which has 256 bytes"),
        (f"{VIEW}nvgpu.device_async_copy %x[%t], %s[%c64], 1 : memref<64xf32> to {S}", 256, "out of bounds",
         "block 0 thread 0 uses index 64 in dimension 0 of extent 64 of shared memory"),
        (f"{VIEW}{FIFTH}scf.if %fifth {{\n}} else {{\nmemref.store %one, %s[%t] : {S}\n}}\ngpu.barrier\n"
         f"%v = memref.load %s[%c63] : {S}\nscf.if %fifth {{\nmemref.store %v, %y[%t] : memref<64xf32>\n}}", 256,
         "uninitialized read", "block 5 thread 0 reads byte 252 of shared memory, where nobody wrote"),
        (POINTER, 0, "misaligned", "block 0 thread 1 has an address in argument 1 that is no multiple of the 4 bytes of"),
    ],
)  # fmt: skip
def test_a_finding_names_the_true_place(body, smem, kind, words):
    module = launch("%one = arith.constant 1.0 : f32\n" + body, X, smem=smem, blocks=8)
    report = run_kernel(module, [np.zeros(64, np.float32) for _ in range(2)])
    found = [f.message for f in report.findings if f.kind == kind]
    assert found and words in found[0], report.findings
    assert "stopped" not in report.kinds() and ("misaligned" in report.kinds()) == (kind == "misaligned")


def product_with(old: str, new: str, smem: int) -> list[str]:
    """What is said of a product by wgmma with a change."""
    text = product(2).replace(old, new)
    assert text != product(2) or not old
    a, b = (np.ones((n, 2 * K)).astype(ml_dtypes.bfloat16) for n in (M, N))
    d = np.zeros((M, N), np.float32)
    maps = [TensorMap(x, (len(x), K), 128) for x in (a, b)]
    return [
        f"{f.kind}: {f.message}"
        for f in run_function(mlir.parse(text), "product", [*maps, d], (1, 1, 1), (256, 1, 1), smem).findings
    ]


def test_the_words_for_wgmma_and_mbarriers():
    smem = BARRIERS + 16 * STAGES
    found = product_with("nvvm.wgmma.wait.group.sync.aligned 0", "", smem)
    reads = [f for f in found if "reads the accumulator" in f]
    assert (
        len(reads) == 1
        and "unfinished wgmma: block 0 thread 128 reads the accumulator of the wgmma at line:" in reads[0]
    )
    found = product_with("", "", BARRIERS)
    assert found[0].startswith("out of bounds: block 0 thread 0 puts an mbarrier at byte")
    assert f"of shared memory, which has {BARRIERS} bytes" in found[0] and not any("misaligned" in f for f in found)
    found = product_with("%zero = llvm.mlir.zero", "%zero = llvm.mlir.undef", smem)
    assert found[0].startswith("undefined value:") and "depends on what llvm.mlir.undef at line:" in found[0]
    found = product_with("%token = nvvm.mbarrier.arrive.expect_tx %full, %nbytes : !llvm.ptr<3>, i32 -> i64", "", smem)
    assert any("16384 bytes more than it was told to expect" in f for f in found)
