"""Hopper's instructions on the host device: a warp-specialized product with tensor copies, mbarriers and wgmma, and what
happens when one of its synchronizations is spoiled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.host.device.direct import run_function
from mlirc.host.device.tensor_maps import TensorMap

M, N, K, STAGES = 64, 64, 64, 2  # of a tile: one wgmma wide; K elements are one row of the 128-byte swizzle
TILE_BYTES = (M + N) * K * 2
BARRIERS = TILE_BYTES * STAGES
ACC = "!llvm.struct<(" + ", ".join(["f32"] * (N // 2)) + ")>"
PTR, SMEM = "!llvm.ptr", "!llvm.ptr<3>"
MAP = f"{PTR} {{llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>, nvvm.grid_constant}}"
LAYOUT = (1 << 62) | ((1024 >> 4) << 32) | (1 << 16)  # 128-byte swizzle, eight rows are 1024 bytes apart


def slot(name: str, base: int) -> str:
    """The address of stage %s's mbarrier of one kind."""
    return (
        f"%{name}0 = llvm.getelementptr %smem[{BARRIERS + base}] : ({SMEM}) -> {SMEM}, i8\n"
        f"%{name} = llvm.getelementptr %{name}0[%s] : ({SMEM}, i32) -> {SMEM}, i64\n"
    )


def product(tiles: int) -> str:
    """D [M, N] f32 = A [M, tiles * K] B [N, tiles * K]^T in bf16; warpgroup 0 copies, warpgroup 1 multiplies."""
    inits = "".join(
        f"%b{i} = llvm.getelementptr %smem[{BARRIERS + 8 * i}] : ({SMEM}) -> {SMEM}, i8\n"
        f"nvvm.mbarrier.init %b{i}, %c1 : {SMEM}, i32\n"
        for i in reversed(range(2 * STAGES))  # those that copies tell come last
    )
    products = "".join(
        f"%step{k} = arith.constant {2 * k} : i64\n"
        f"%da{k} = arith.addi %da, %step{k} : i64\n%db{k} = arith.addi %db, %step{k} : i64\n"
        f"%acc{k + 1} = nvvm.wgmma.mma_async %da{k}, %db{k}, %acc{k}, #nvvm.shape<m = 64, n = {N}, k = 16>, "
        f"D [<f32>, #nvvm.wgmma_scale_out<one>], A [<bf16>, #nvvm.wgmma_scale_in<one>, <row>], "
        f"B [<bf16>, #nvvm.wgmma_scale_in<one>, <col>] : {ACC} -> {ACC}\n"
        for k in range(K // 16)
    )
    stores = "".join(
        f"%x{i} = llvm.extractvalue %sum[{i}] : {ACC}\n"
        f"%p{i} = llvm.getelementptr %mine[{8 * (i // 4) + 8 * N * (i // 2 % 2) + i % 2}] : "
        f"(!llvm.ptr<1>) -> !llvm.ptr<1>, f32\nllvm.store %x{i}, %p{i} : f32, !llvm.ptr<1>\n"
        for i in range(N // 2)
    )
    return f"""
module {{ gpu.module @k {{
llvm.mlir.global external @smem() {{addr_space = 3 : i32, alignment = 1024 : i64}} : !llvm.array<0 x i8>
llvm.func @product(%a: {MAP}, %b: {MAP}, %d: !llvm.ptr<1>) attributes {{gpu.kernel, nvvm.kernel}} {{
  %smem = llvm.mlir.addressof @smem : {SMEM}
  %t = nvvm.read.ptx.sreg.tid.x : i32
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %c2 = arith.constant 2 : i32
  %c4 = arith.constant 4 : i32
  %c8 = arith.constant 8 : i32
  %c16 = arith.constant 16 : i32
  %c32 = arith.constant 32 : i32
  %c128 = arith.constant 128 : i32
  %tiles = arith.constant {tiles} : i32
  %stages = arith.constant {STAGES} : i32
  %depth = arith.constant {K} : i32
  %nbytes = arith.constant {TILE_BYTES} : i32
  %patience = arith.constant 1000 : i32
  %first = arith.cmpi eq, %t, %c0 : i32
  scf.if %first {{
    {inits}
    nvvm.fence.mbarrier.init
  }}
  nvvm.barrier
  %copies = arith.cmpi ult, %t, %c128 : i32
  scf.if %copies {{
    scf.if %first {{
      scf.for %i = %c0 to %tiles step %c1 : i32 {{
        %s = arith.remui %i, %stages : i32
        %round = arith.divui %i, %stages : i32
        %odd = arith.andi %round, %c1 : i32
        %free = arith.xori %odd, %c1 : i32
        {slot("full", 0)} {slot("empty", 8 * STAGES)}
        nvvm.mbarrier.try_wait.parity %empty, %free, %patience : {SMEM}, i32, i32
        %token = nvvm.mbarrier.arrive.expect_tx %full, %nbytes : {SMEM}, i32 -> i64
        %at = arith.muli %s, %nbytes : i32
        %ta3 = llvm.getelementptr %smem[%at] : ({SMEM}, i32) -> {SMEM}, i8
        %tb3 = llvm.getelementptr %ta3[{M * K * 2}] : ({SMEM}) -> {SMEM}, i8
        %ta = llvm.addrspacecast %ta3 : {SMEM} to !llvm.ptr<7>
        %tb = llvm.addrspacecast %tb3 : {SMEM} to !llvm.ptr<7>
        %k = arith.muli %i, %depth : i32
        nvvm.cp.async.bulk.tensor.shared.cluster.global %ta, %a, %full, box[%k, %c0] : !llvm.ptr<7>, {PTR}
        nvvm.cp.async.bulk.tensor.shared.cluster.global %tb, %b, %full, box[%k, %c0] : !llvm.ptr<7>, {PTR}
      }}
    }}
  }} else {{
    %lane = arith.subi %t, %c128 : i32
    %last = arith.cmpi eq, %lane, %c0 : i32
    %zero = llvm.mlir.zero : {ACC}
    %base = llvm.ptrtoint %smem : {SMEM} to i32
    %layout = arith.constant {LAYOUT} : i64
    %sum = scf.for %i = %c0 to %tiles step %c1 iter_args(%acc0 = %zero) -> ({ACC}) : i32 {{
      %s = arith.remui %i, %stages : i32
      %round = arith.divui %i, %stages : i32
      %odd = arith.andi %round, %c1 : i32
      {slot("full", 0)} {slot("empty", 8 * STAGES)}
      nvvm.mbarrier.try_wait.parity %full, %odd, %patience : {SMEM}, i32, i32
      %at0 = arith.muli %s, %nbytes : i32
      %at = arith.addi %base, %at0 : i32
      %chunk = arith.shrui %at, %c4 : i32
      %wide = arith.extui %chunk : i32 to i64
      %da = arith.addi %wide, %layout : i64
      %rows = arith.constant {M * K * 2 // 16} : i64
      %db = arith.addi %da, %rows : i64
      nvvm.wgmma.fence.aligned
      {products}
      nvvm.wgmma.commit.group.sync.aligned
      nvvm.wgmma.wait.group.sync.aligned 0
      scf.if %last {{
        %gone = nvvm.mbarrier.arrive %empty : {SMEM} -> i64
      }}
      scf.yield %acc{K // 16} : {ACC}
    }}
    %w = arith.divui %lane, %c32 : i32
    %l = arith.remui %lane, %c32 : i32
    %g = arith.divui %l, %c4 : i32
    %q = arith.remui %l, %c4 : i32
    %row0 = arith.muli %w, %c16 : i32
    %row = arith.addi %row0, %g : i32
    %width = arith.constant {N} : i32
    %line = arith.muli %row, %width : i32
    %column = arith.muli %q, %c2 : i32
    %place = arith.addi %line, %column : i32
    %mine = llvm.getelementptr %d[%place] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
    {stores}
  }}
  llvm.return
}} }} }}"""


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
