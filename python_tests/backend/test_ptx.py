"""The back end: what PTX the `gpu` level becomes, and that ptxas takes it for every target."""

from __future__ import annotations

import re

import pytest

from mlirc import mlir
from mlirc.backend.ptx import check_ptxas, compile_kernel, find_ptxas, main, merge_ptx, ptx_from_llvm
from mlirc.errors import MlircError
from mlirc.targets import TARGETS, get_target
from support.kernels.launched import gpu_level

SM80 = get_target("sm_80")
WORKGROUP = "#gpu.address_space<workgroup>"


def ptx(text: str, target=SM80) -> str:
    return compile_kernel(mlir.parse(text), target).ptx


COPY = """
  %c64 = arith.constant 64 : index
  %o = arith.muli %tx, %c64 : index
  %v = vector.load %a[%bx, %o] {alignment = 16 : i64} : memref<64x8192xf32>, vector<64xf32>
  %w = arith.addf %v, %v : vector<64xf32>
  vector.store %w, %b[%bx, %o] {alignment = 16 : i64} : memref<64x8192xf32>, vector<64xf32>"""
MATRIX = "memref<64x8192xf32>"


def test_long_vectors_are_16_byte_accesses_of_read_only_data():
    text = ptx(gpu_level(COPY, {"a": MATRIX, "b": MATRIX}))
    assert len(re.findall(r"ld\.global\.nc\.v4\.b32", text)) == 16
    assert len(re.findall(r"st\.global\.v4\.b32", text)) == 16
    assert ".reqntid 128" in text
    # One address computation serves all the accesses.
    assert text.count("mul.wide") + text.count("mad.wide") <= 2


def test_sixteen_bit_vectors_are_16_byte_accesses():
    body = """
      %c8 = arith.constant 8 : index
      %o = arith.muli %tx, %c8 : index
      %v = vector.load %a[%o] {alignment = 16 : i64} : memref<1024xbf16>, vector<8xbf16>
      %x = arith.extf %v : vector<8xbf16> to vector<8xf32>
      %q = math.sqrt %x : vector<8xf32>
      %y = arith.mulf %q, %x : vector<8xf32>
      %z = arith.truncf %y : vector<8xf32> to vector<8xbf16>
      vector.store %z, %b[%o] {alignment = 16 : i64} : memref<1024xbf16>, vector<8xbf16>"""
    text = ptx(gpu_level(body, {"a": "memref<1024xbf16>", "b": "memref<1024xbf16>"}))
    assert "ld.global.nc.v4.b32" in text and "st.global.v4.b32" in text
    assert text.count("cvt.rn.bf16x2.f32") == 4  # pairs, not single elements


def test_a_buffer_bound_twice_is_not_read_through_the_read_only_cache():
    text = gpu_level(COPY, {"a": MATRIX, "b": MATRIX}, {"a": "b", "b": "b"})
    assert ".nc" not in ptx(text)


def test_a_view_counts_as_its_buffer():
    views = """
    %low = memref.subview %a[0, 0] [64, 8192] [1, 1] : memref<64x8192xf32> to memref<64x8192xf32, strided<[8192, 1]>>
    %va = memref.cast %low : memref<64x8192xf32, strided<[8192, 1]>> to memref<64x8192xf32>"""
    text = gpu_level(COPY, {"a": MATRIX, "b": MATRIX}, {"a": "va", "b": "a"}, allocate=views)
    assert ".nc" not in ptx(text)


def test_only_whole_buffers_are_taken_to_be_aligned():
    body = """
      %x = memref.load %a[%c0] : memref<2xf32>
      %one = arith.constant 1 : index
      %y = memref.load %a[%one] : memref<2xf32>
      %z = arith.addf %x, %y : f32
      memref.store %z, %b[%tx] : memref<128xf32>"""
    arguments = {"a": "memref<2xf32>", "b": "memref<128xf32>"}
    assert "ld.global.nc.v2" in ptx(gpu_level(body, arguments))
    views = """
    %shift = arith.constant 4 : index
    %bytes = memref.alloc() : memref<64xi8>
    %va = memref.view %bytes[%shift][] : memref<64xi8> to memref<2xf32>"""
    text = gpu_level(body, arguments, {"a": "va", "b": "b"}, allocate=views)
    assert "v2" not in ptx(text) and "ld.global" in ptx(text)


TENSOR_CORE = f"""
  %c8 = arith.constant 8 : index
  %valid = arith.constant 4 : index
  %second = arith.constant 16384 : index
  %dyn = gpu.dynamic_shared_memory : memref<?xi8, {WORKGROUP}>
  %s = memref.view %dyn[%c0][] : memref<?xi8, {WORKGROUP}> to memref<128x64xbf16, {WORKGROUP}>
  %t = memref.view %dyn[%second][] : memref<?xi8, {WORKGROUP}> to memref<1024xf32, {WORKGROUP}>
  %0 = nvgpu.device_async_copy %a[%tx, %c0], %s[%tx, %c0], 8 {{bypassL1}} : memref<128x64xbf16>
    to memref<128x64xbf16, {WORKGROUP}>
  %1 = nvgpu.device_async_copy %a[%tx, %c8], %s[%tx, %c8], 8, %valid {{bypassL1}} : memref<128x64xbf16>
    to memref<128x64xbf16, {WORKGROUP}>
  %2 = nvgpu.device_async_create_group %0, %1
  nvgpu.device_async_wait %2 {{numGroups = 0 : i32}}
  gpu.barrier
  %x = nvgpu.ldmatrix %s[%tx, %c0] {{numTiles = 4 : i32, transpose = false}} : memref<128x64xbf16, {WORKGROUP}>
    -> vector<4x2xbf16>
  %y = nvgpu.ldmatrix %s[%tx, %c8] {{numTiles = 2 : i32, transpose = true}} : memref<128x64xbf16, {WORKGROUP}>
    -> vector<2x2xbf16>
  %z = arith.constant dense<0.0> : vector<2x2xf32>
  %d = nvgpu.mma.sync (%x, %y, %z) {{mmaShape = [16, 8, 16]}}
    : (vector<4x2xbf16>, vector<2x2xbf16>, vector<2x2xf32>) -> vector<2x2xf32>
  %f = vector.shape_cast %d : vector<2x2xf32> to vector<4xf32>
  %mask = arith.constant 1 : i32
  %width = arith.constant 32 : i32
  %e = vector.extract %f[0] : f32 from vector<4xf32>
  %g, %ok = gpu.shuffle xor %e, %mask, %width : f32
  %h = vector.insert %g, %f[0] : f32 into vector<4xf32>
  vector.store %h, %t[%tx] {{alignment = 16 : i64}} : memref<1024xf32, {WORKGROUP}>, vector<4xf32>
  gpu.barrier
  vector.store %h, %b[%tx, %c0] {{alignment = 16 : i64}} : memref<128x16xf32>, vector<4xf32>"""
TENSOR_CORE_ARGUMENTS = {"a": "memref<128x64xbf16>", "b": "memref<128x16xf32>"}


def test_tensor_core_kernel():
    text = ptx(gpu_level(TENSOR_CORE, TENSOR_CORE_ARGUMENTS, smem=65536))
    assert ".extern .shared .align 1024 .b8 __dynamic_shmem__0[];" in text
    assert re.search(r"cp\.async\.cg\.shared\.global \[%r\d+\], \[%rd\d+\], 16;", text)
    # Four of eight elements are valid: the other 8 bytes are filled with zeros.
    assert re.search(r"cp\.async\.cg\.shared\.global \[%r\d+\+16\], \[%rd\d+\+16\], 16, 8;", text)
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in text
    assert "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16" in text
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text
    assert "shfl.sync.bfly.b32" in text


WGMMA = f"""
  %dyn = gpu.dynamic_shared_memory : memref<?xi8, {WORKGROUP}>
  %bar = memref.view %dyn[%c0][] : memref<?xi8, {WORKGROUP}> to memref<1xi64, {WORKGROUP}>
  %ptr = memref.extract_aligned_pointer_as_index %bar : memref<1xi64, {WORKGROUP}> -> index
  %num = arith.index_cast %ptr : index to i64
  nvvm.wgmma.fence.aligned
  nvvm.wgmma.commit.group.sync.aligned
  nvvm.wgmma.wait.group.sync.aligned 0
  memref.store %num, %b[%tx] : memref<128xi64>"""


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_ptxas_accepts(target):
    kernels = {
        "copy": gpu_level(COPY, {"a": MATRIX, "b": MATRIX}, name="copy"),
        "mma": gpu_level(TENSOR_CORE, TENSOR_CORE_ARGUMENTS, smem=65536, name="mma"),
    }
    if target.has_wgmma:
        kernels["wgmma"] = gpu_level(WGMMA, {"b": "memref<128xi64>"}, smem=1024, name="wgmma")
    texts = [ptx(text, target) for text in kernels.values()]
    report = check_ptxas(merge_ptx(texts, target), target)
    assert all(f"'{name}_0'" in report for name in kernels) and "0 bytes spill stores" in report


def test_merging_keeps_one_header_and_one_shared_array():
    texts = [ptx(gpu_level(TENSOR_CORE, TENSOR_CORE_ARGUMENTS, smem=65536, name=n)) for n in ("p", "q")]
    merged = merge_ptx(texts, SM80)
    assert merged.count(".version") == merged.count(".target") == merged.count(".address_size") == 1
    assert merged.count(".extern .shared") == 1
    assert merged.count(".visible .entry") == 2
    assert merged.index(".version") < merged.index(".extern .shared") < merged.index(".visible .entry")


def test_merging_refuses_equal_names():
    text = ptx(gpu_level(COPY, {"a": MATRIX, "b": MATRIX}))
    with pytest.raises(MlircError, match="k_0"):
        merge_ptx([text, text], SM80)


def test_entries_are_named_after_their_kernel():
    text = gpu_level(COPY, {"a": MATRIX, "b": MATRIX}).replace("@k_0", "@body")
    kernel = compile_kernel(mlir.parse(text), SM80)
    assert kernel.launches[0].symbol == "k_body" and ".entry k_body(" in kernel.ptx


@pytest.mark.parametrize("container", ["", "gpu.module @k_gpu {}"])
def test_a_kernel_without_launches_has_no_ptx(container):
    text = f"module attributes {{gpu.container_module}} {{ {container} func.func @k(%a: memref<0xf32>) {{ return }} }}"
    kernel = compile_kernel(mlir.parse(text), SM80)
    assert kernel.ptx == "" and kernel.launches == []
    assert ".version" in merge_ptx([kernel.ptx], SM80)


def test_compilation_is_deterministic():
    text = gpu_level(TENSOR_CORE, TENSOR_CORE_ARGUMENTS, smem=65536)
    assert ptx(text) == ptx(text)


@pytest.mark.parametrize("rows, wide", [(1 << 17, False), (1 << 18, True)])
def test_indices_have_64_bits_where_32_do_not_reach(rows, wide):
    memref = f"memref<{rows}x8192xi8>"
    body = f"""
      %v = memref.load %a[%bx, %tx] : {memref}
      memref.store %v, %b[%tx, %bx] : {memref}"""
    kernel = compile_kernel(mlir.parse(gpu_level(body, {"a": memref, "b": memref})), SM80)
    widths = re.findall(r"getelementptr [a-z ]*i8, ptr %\d+, i(32|64)", kernel.llvm)
    assert widths == (["64", "64"] if wide else ["32", "32"])


@pytest.mark.parametrize("flags", ["", " fastmath<contract>"])
def test_products_and_sums_fuse_where_they_say_so(flags):
    body = f"""
      %x = memref.load %a[%tx] : memref<128xf32>
      %y = arith.mulf %x, %x{flags} : f32
      %z = arith.addf %y, %x{flags} : f32
      memref.store %z, %b[%tx] : memref<128xf32>"""
    text = ptx(gpu_level(body, {"a": "memref<128xf32>", "b": "memref<128xf32>"}))
    assert ("fma.rn.f32" in text) == bool(flags) and ("mul.rn.f32" in text) != bool(flags)


def test_division_is_exact_and_maximum_keeps_nan():
    body = """
      %x = memref.load %a[%tx] : memref<128xf32>
      %y = memref.load %b[%tx] : memref<128xf32>
      %z = arith.divf %x, %y : f32
      %m = arith.maximumf %z, %y : f32
      memref.store %m, %b[%tx] : memref<128xf32>"""
    text = ptx(gpu_level(body, {"a": "memref<128xf32>", "b": "memref<128xf32>"}))
    assert "div.rn.f32" not in text and "rcp.approx.f32" in text and "max.NaN.f32" in text


def test_vectors_of_i1_in_memory_are_refused():
    body = """
      %v = vector.load %a[%tx] : memref<512xi1>, vector<4xi1>
      vector.store %v, %b[%tx] : memref<512xi1>, vector<4xi1>"""
    with pytest.raises(MlircError, match="i1.*i8"):
        ptx(gpu_level(body, {"a": "memref<512xi1>", "b": "memref<512xi1>"}))


def test_too_much_shared_memory_is_refused():
    with pytest.raises(MlircError, match="200000 bytes of shared memory, sm_80 has 166912"):
        ptx(gpu_level(TENSOR_CORE, TENSOR_CORE_ARGUMENTS, smem=200000))


def test_a_failure_names_the_kernel_and_its_level(capsys, tmp_path):
    text = gpu_level('"test.unknown"() : () -> ()', {"b": "memref<128xf32>"})
    with mlir.context() as ctx:
        allowed = ctx.allow_unregistered_dialects
        ctx.allow_unregistered_dialects = True
    try:
        with pytest.raises(MlircError, match="kernel k: .*test.unknown.*--emit gpu"):
            ptx(text)
        (tmp_path / "k.mlir").write_text(text)
        assert main([str(tmp_path / "k.mlir"), "--target", "sm_80"]) == 1
        assert "test.unknown" in capsys.readouterr().err
    finally:
        ctx.allow_unregistered_dialects = allowed


# -- threads that communicate through global memory

FLAGS = {"c": "memref<4xi32>", "x": "memref<128xi32>"}
POINTER = """
  %zero = arith.constant 0 : i32
  %i1 = arith.constant 1 : i32
  %address = memref.extract_aligned_pointer_as_index %c : memref<4xi32> -> index
  %number = arith.index_cast %address : index to i64
  %p = llvm.inttoptr %number : i64 to !llvm.ptr<1>
"""


def _order(text: str) -> list[str]:
    """The memory instructions of a kernel, without their operands."""
    words = r"^\s*(fence\S*|membar\S*|bar\.sync|atom\S*|ld\.global\S*|ld\.[arv]\S*\.global\S*|st\S*global\S*)\s"
    return [m.removesuffix(";") for m in re.findall(words, text.replace(";", " ;"), re.M)]


@pytest.mark.parametrize(
    "body, instructions",
    [
        (
            '%r = llvm.atomicrmw add %p, %i1 syncscope("device") acq_rel : !llvm.ptr<1>, i32',
            ["fence.acq_rel.gpu", "atom.global.add.u32", "fence.acq_rel.gpu"],
        ),
        (
            '%r = llvm.atomicrmw add %p, %i1 syncscope("block") release : !llvm.ptr<1>, i32',
            ["fence.acq_rel.cta", "atom.global.add.u32"],
        ),
        ("%r = llvm.atomicrmw xchg %p, %i1 monotonic : !llvm.ptr<1>, i32", ["atom.global.exch.b32"]),
        (
            "%r = llvm.atomicrmw xchg %p, %i1 seq_cst : !llvm.ptr<1>, i32",
            ["fence.sc.sys", "atom.global.exch.b32", "fence.sc.sys"],
        ),
        (
            "nvvm.memory.barrier <gpu>\n%r = memref.atomic_rmw addi %i1, %c[%c0] : (i32, memref<4xi32>) -> i32",
            ["fence.sc.gpu", "atom.global.add.u32"],
        ),
        (
            '%v = llvm.load %p atomic syncscope("device") acquire {alignment = 4 : i64} : !llvm.ptr<1> -> i32\n'
            '%w = llvm.load %p atomic syncscope("device") monotonic {alignment = 4 : i64} : !llvm.ptr<1> -> i32\n'
            '%r = arith.addi %v, %w : i32',
            ["ld.acquire.gpu.global.b32", "ld.relaxed.gpu.global.b32"],
        ),
        (
            '%v = llvm.cmpxchg %p, %zero, %i1 syncscope("device") acquire monotonic : !llvm.ptr<1>, i32\n'
            'llvm.store %zero, %p atomic syncscope("device") release {alignment = 4 : i64} : i32, !llvm.ptr<1>\n'
            '%r = llvm.extractvalue %v[0] : !llvm.struct<(i32, i1)>',
            ["atom.acquire.gpu.global.cas.b32", "st.release.gpu.global.b32"],
        ),
    ],
)  # fmt: skip
def test_memory_orders_and_scopes_reach_ptx(body, instructions):
    text = ptx(gpu_level(POINTER + body + "\nmemref.store %r, %x[%tx] : memref<128xi32>", FLAGS), get_target("sm_90a"))
    assert _order(text) == [*instructions, "st.global.b32"]
    assert "cvt.s64.s32" not in text  # the address keeps its 64 bits
    if find_ptxas() is not None:
        check_ptxas(text, get_target("sm_90a"))


@pytest.mark.parametrize("barrier", ["gpu.barrier", "nvvm.barrier", "nvvm.memory.barrier <gpu>"])
def test_what_other_threads_write_is_loaded_again_behind_a_barrier(barrier):
    body = f"""
      %r = memref.load %a[%tx] : memref<128xi32>
      memref.store %r, %x[%tx] : memref<128xi32>
      {barrier}
      %u = memref.load %x[%c0] : memref<128xi32>
      {barrier}
      %v = memref.load %x[%c0] : memref<128xi32>
      %s = arith.addi %u, %v : i32
      memref.store %s, %y[%tx] : memref<128xi32>"""
    arguments = {n: "memref<128xi32>" for n in "axy"}
    met = "fence.sc.gpu" if "memory" in barrier else "bar.sync"
    assert _order(ptx(gpu_level(body, arguments), get_target("sm_90a"))) == [
        "ld.global.nc.b32", "st.global.b32", met, "ld.global.b32", met, "ld.global.b32", "st.global.b32",
    ]  # fmt: skip


def test_packed_integers_are_taken_apart():
    """ptxas computes a wrong half of add.s16x2 with a constant where the other half is not used."""
    ir = """
    define ptx_kernel void @k(ptr addrspace(1) %p, <2 x i16> %x) {
      %old = load <2 x i16>, ptr addrspace(1) %p
      %y = add <2 x i16> %x, %old
      %z = add <2 x i16> <i16 1, i16 7>, %y
      store <2 x i16> %z, ptr addrspace(1) %p
      ret void
    }
    """
    text = ptx_from_llvm(ir, get_target("sm_90a"))
    assert not re.search(r"[su]16x2 ", text) and len(re.findall(r"add\.s16\s", text)) == 4
    check_ptxas(text, get_target("sm_90a"))
