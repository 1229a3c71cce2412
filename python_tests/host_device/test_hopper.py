"""Hopper's instructions on the host device: a warp-specialized product with tensor copies, mbarriers and wgmma, and what
happens when one of its synchronizations is spoiled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.direct import run_function
from mlirc.device.tensor_maps import TensorMap
from support.kernels.product import ACC, BARRIERS, SMEM, STAGES, K, M, N, product


def run(text: str, tiles: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, set[str]]:
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((n, tiles * K)).astype(ml_dtypes.bfloat16) for n in (M, N))
    d = np.zeros((M, N), np.float32)
    maps = [TensorMap(x, (len(x), K), 128) for x in (a, b)]
    report = run_function(
        mlir.parse(text), "product", [*maps, d], (1, 1, 1), (256, 1, 1), BARRIERS + 16 * STAGES, seed=seed
    )
    return d, a.astype(np.float64) @ b.astype(np.float64).T, report.kinds()


@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_product(tiles):
    for seed in range(3):
        found, expected, kinds = run(product(tiles), tiles, seed)
        assert not kinds
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


SPOILED = {
    "consumer does not wait": (f"nvvm.mbarrier.try_wait.parity %full, %odd, %patience : {SMEM}, i32, i32", ""),
    "producer does not wait": (f"nvvm.mbarrier.try_wait.parity %empty, %free, %patience : {SMEM}, i32, i32", ""),
    "buffer never given back": (f"%gone = nvvm.mbarrier.arrive %empty : {SMEM} -> i64", ""),
    "buffer given back early": ("nvvm.wgmma.wait.group.sync.aligned 0", ""),
    "registers not fenced": ("nvvm.wgmma.fence.aligned", ""),
    "group not committed": ("nvvm.wgmma.commit.group.sync.aligned", ""),
    "too many bytes expected": (
        "%token = nvvm.mbarrier.arrive.expect_tx %full, %nbytes",
        "%more = arith.addi %nbytes, %c8 : i32\n%token = nvvm.mbarrier.arrive.expect_tx %full, %more",
    ),
    "wrong parity": ("%free = arith.xori %odd, %c1 : i32", "%free = arith.xori %odd, %c0 : i32"),
    "two arrivals wanted": ("nvvm.mbarrier.init %b0, %c1", "nvvm.mbarrier.init %b0, %c2"),
    "barriers not initialized": ("nvvm.mbarrier.init %b1, %c1 : !llvm.ptr<3>, i32", ""),
    "one warp leaves": ("%copies = arith.cmpi ult, %t, %c128", "%copies = arith.cmpi ult, %t, %c160"),
    "second operand elsewhere": ("%db = arith.addi %da, %rows : i64", "%db = arith.addi %rows, %layout : i64"),
    "buffer past its end": (
        "%at = arith.muli %s, %nbytes : i32\n        %ta3",
        "%at = arith.muli %i, %nbytes : i32\n        %ta3",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled(name):
    old, new = SPOILED[name]
    text = product(5)
    assert old in text
    text = text.replace(old, new).replace("%c128 = arith", "%c160 = arith.constant 160 : i32\n  %c128 = arith", 1)
    found, expected, kinds = run(text, 5)
    right = np.allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert kinds or (name == "second operand elsewhere" and not right)


def test_boxes_past_the_edge_are_filled_with_zeros():
    text = product(1)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((50, 40), (64, 40)))
    d = np.zeros((M, N), np.float32)
    maps = [TensorMap(x, (64, K), 128) for x in (a, b)]
    run_function(mlir.parse(text), "product", [*maps, d], (1, 1, 1), (256, 1, 1), BARRIERS + 16 * STAGES).raise_if_bad()
    np.testing.assert_allclose(d[:50], a.astype(np.float64) @ b.astype(np.float64).T, rtol=0, atol=1e-4)
    assert not d[50:].any()


WORKGROUP = "#gpu.address_space<workgroup>"
GROUP = f"!nvgpu.mbarrier.group<memorySpace = {WORKGROUP}, num_barriers = 2>"
MAP2D = ("!nvgpu.tensormap.descriptor<tensor = memref<8x16xi32, 3>, swizzle = none, l2promo = none, oob = zero, "
         "interleave = none>")  # fmt: skip
NVGPU = f"""module {{ gpu.module @m {{ gpu.func @k(%map: {MAP2D}, %y: memref<8x16xi32>) kernel {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %even = arith.constant false
  %n = arith.constant 512 : index
  %patience = arith.constant 1000 : index
  %t = gpu.thread_id x
  %first = arith.cmpi eq, %t, %c0 : index
  %all = gpu.dynamic_shared_memory : memref<?xi8, {WORKGROUP}>
  %s = memref.view %all[%c0][] : memref<?xi8, {WORKGROUP}> to memref<8x16xi32, {WORKGROUP}>
  %s3 = memref.memory_space_cast %s : memref<8x16xi32, {WORKGROUP}> to memref<8x16xi32, 3>
  %b = nvgpu.mbarrier.create -> {GROUP}
  nvgpu.mbarrier.init %b[%c1], %c1, predicate = %first : {GROUP}
  nvvm.fence.mbarrier.init
  gpu.barrier
  nvgpu.mbarrier.arrive.expect_tx %b[%c1], %n, predicate = %first : {GROUP}
  nvgpu.tma.async.load %map[%c0, %c0], %b[%c1] to %s3, predicate = %first : {MAP2D}, {GROUP} -> memref<8x16xi32, 3>
  nvgpu.mbarrier.try_wait.parity %b[%c1], %even, %patience : {GROUP}
  %i = arith.divui %t, %c16 : index
  %j = arith.remui %t, %c16 : index
  %v = memref.load %s[%i, %j] : memref<8x16xi32, {WORKGROUP}>
  memref.store %v, %y[%i, %j] : memref<8x16xi32>
  gpu.return }} }} }}"""


@pytest.mark.parametrize(
    "old, new, kinds",
    [
        ("", "", set()),
        (
            "nvgpu.mbarrier.try_wait.parity %b[%c1], %even, %patience",
            "",
            {"race", "unfinished copy", "uninitialized read", "undefined value"},
        ),
        ("constant 512", "constant 508", {"deadlock"}),
        ("gpu.barrier\n", "\n", {"race", "bad mbarrier"}),
    ],
)
def test_copies_of_the_nvgpu_dialect(old, new, kinds):
    wait = f"nvgpu.mbarrier.try_wait.parity %b[%c1], %even, %patience : {GROUP}"
    text = NVGPU.replace(wait, "") if "try_wait" in old else NVGPU.replace(old, new) if old else NVGPU
    x, y = np.arange(128, dtype=np.int32).reshape(8, 16), np.zeros((8, 16), np.int32)
    found = set()
    for seed in range(3):
        arguments = [TensorMap(x, (8, 16)), y]
        found |= run_function(mlir.parse(text), "k", arguments, (1, 1, 1), (256 // 2, 1, 1), 512, seed=seed).kinds()
    assert bool(found) == bool(kinds) and found <= kinds | {"race"}
    if not kinds:
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    "name, dtype",
    [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2), ("tf32", np.float32), ("f16", np.float16)],
)
def test_products_of_other_types(name, dtype):
    item = np.dtype(dtype).itemsize
    wide = 128 // item  # elements in a row of the swizzle's pattern
    text = product(3).replace("<bf16>", f"<{name}>").replace("k = 16>", f"k = {32 // item}>")
    text = text.replace(f"%depth = arith.constant {K}", f"%depth = arith.constant {wide}")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, 3 * wide)).astype(np.float32).astype(dtype) for n in (M, N))
    d = np.zeros((M, N), np.float32)
    maps = [TensorMap(x, (len(x), wide), 128) for x in (a, b)]
    run_function(mlir.parse(text), "product", [*maps, d], (1, 1, 1), (256, 1, 1), BARRIERS + 16 * STAGES).raise_if_bad()
    if name == "tf32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    want = a.astype(np.float64) @ b.astype(np.float64).T
    atol = 1e-3 if item == 1 else 1e-5  # 8-bit products keep 13 bits
    np.testing.assert_allclose(d, want, rtol=0, atol=atol * np.abs(want).max())


def test_a_buffer_given_back_by_arrival_before_the_wait_is_a_race():
    early = product(5).replace("nvvm.wgmma.wait.group.sync.aligned 0\n", "\n")
    early = early.replace("scf.yield %acc4", "nvvm.wgmma.wait.group.sync.aligned 0\n      scf.yield %acc4")
    for seed in range(3):
        assert "race" in run(early, 5, seed)[2]


def test_a_box_of_the_nvgpu_dialect_is_stored():
    fence = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}\n"
    head, _, rest = NVGPU.partition("  %b = nvgpu.mbarrier.create")
    text = (
        head.replace("%y: memref<8x16xi32>", "%x: memref<8x16xi32>")
        + f"""  %i = arith.divui %t, %c16 : index
  %j = arith.remui %t, %c16 : index
  %v = memref.load %x[%i, %j] : memref<8x16xi32>
  memref.store %v, %s[%i, %j] : memref<8x16xi32, {WORKGROUP}>
  {fence}  gpu.barrier
  nvgpu.tma.async.store %s3 to %map[%c0, %c0], predicate = %first : memref<8x16xi32, 3> -> {MAP2D}
  nvvm.cp.async.bulk.commit.group
  nvvm.cp.async.bulk.wait_group 0
  gpu.return }} }} }}"""
    )

    def stored(text: str) -> set[str]:
        x, y = np.arange(128, dtype=np.int32).reshape(8, 16), np.zeros((8, 16), np.int32)
        found = run_function(mlir.parse(text), "k", [TensorMap(y, (8, 16)), x], (1, 1, 1), (128, 1, 1), 512).kinds()
        assert found or (x == y).all()
        return found

    assert not stored(text)
    assert stored(text.replace(fence, "")) == {"missing proxy fence"}
    assert "race" in stored(text.replace("gpu.barrier", ""))


def test_products_of_integers():
    wide = 128
    text = product(2).replace("<bf16>", "<s8>").replace("k = 16>", "k = 32>").replace("D [<f32>", "D [<s32>")
    text = text.replace(f"%depth = arith.constant {K}", f"%depth = arith.constant {wide}")
    text = text.replace(ACC, ACC.replace("f32", "i32")).replace("llvm.store %x", "llvm.store %x").replace(
        ": f32, !llvm.ptr<1>", ": i32, !llvm.ptr<1>")  # fmt: skip
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (n, 2 * wide)).astype(np.int8) for n in (M, N))
    d = np.zeros((M, N), np.int32)
    maps = [TensorMap(x, (len(x), wide), 128) for x in (a, b)]
    run_function(mlir.parse(text), "product", [*maps, d], (1, 1, 1), (256, 1, 1), BARRIERS + 16 * STAGES).raise_if_bad()
    np.testing.assert_array_equal(d, a.astype(np.int32) @ b.astype(np.int32).T)
