"""A warp-specialized product with tensor copies, mbarriers and wgmma."""

from __future__ import annotations

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
