"""Values that depend on memory which nobody wrote, or on poison: reported where they decide a branch, an address or a
result, and not where they are thrown away."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.shadows.origins import has_poison
from support.kernels.instructions import ints, load, module, places, store
from support.kernels.memrefs import SHARED, X, launch, run

F = f"memref<64xf32, {SHARED}>"
HEAD = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to {F}
  %n = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<64xi32, {SHARED}>
  %v = memref.load %x[%t] : memref<64xf32>
  %zero = arith.constant 0.0 : f32
  %i0 = arith.constant 0 : i32
  %i32 = arith.constant 32 : i32
  %half = arith.cmpi ult, %t, %c32 : index
  %no = arith.cmpi ult, %t, %c0 : index
"""
OUT = "memref.store %r, %y[%t] : memref<64xf32>"
UNSET = f"%u = memref.load %s[%t] : {F}\n"
FLAG = f"%f = memref.load %n[%c0] : memref<64xi32, {SHARED}>\n%p = arith.cmpi eq, %f, %i32 : i32\n"
POISON = "%u = ub.poison : f32\n"
BRANCH = "scf.if %p { memref.store %zero, %y[%t] : memref<64xf32> } else { memref.store %v, %y[%t] : memref<64xf32> }"
INDEX = "%k = arith.index_cast %f : i32 to index\n"
SUM = f"""%r = scf.for %turn = %c0 to %c32 step %c1 iter_args(%a = START) -> (f32) {{
  %next = arith.addf %a, %v : f32
  scf.yield %next : f32
}}
{OUT}"""
SHUFFLE = "%o = arith.constant 1 : i32\n%g, %ok = gpu.shuffle xor %h, %o, %i32 : f32\n"
MATRIX = f"""
  %m = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<16x16xf16, {SHARED}>
  %lane = arith.remui %t, %c32 : index
  %c16 = arith.constant 16 : index
  %c8 = arith.constant 8 : index
  %few = arith.cmpi ult, %t, %c8 : index
  %row = arith.remui %t, %c16 : index
  %some = vector.broadcast %zero : f32 to vector<16xf32>
  %line = arith.truncf %some : vector<16xf32> to vector<16xf16>
  %first = arith.cmpi ult, %t, ROWS : index
  scf.if %first {{ vector.store %line, %m[%row, %c0] : memref<16x16xf16, {SHARED}>, vector<16xf16> }}
  gpu.barrier
  %half8 = arith.divui %lane, %c16 : index
  %col = arith.muli %half8, %c8 : index
  %a = nvgpu.ldmatrix %m[%row, %col] {{numTiles = 4 : i32, transpose = false}} :
    memref<16x16xf16, {SHARED}> -> vector<4x2xf16>
  %bz = arith.constant dense<0.0> : vector<2x2xf16>
  %cz = arith.constant dense<0.0> : vector<2x2xf32>
  %d = nvgpu.mma.sync (%a, %bz, %cz) {{mmaShape = [16, 8, 16]}} :
    (vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>) -> vector<2x2xf32>
  %r = vector.extract %d[WHICH, 0] : f32 from vector<2x2xf32>
"""

ASYNC = f"""
  %token = nvgpu.device_async_copy %y[%t], %s[%t], 1 : memref<64xf32> to {F}
  nvvm.cp.async.commit.group
  nvvm.cp.async.wait.group 0
  %u = memref.load %s[%t] : {F}
"""

HARMFUL = {
    "through an asynchronous copy": (ASYNC + "%r = arith.addf %u, %v : f32\n" + OUT, "memref.store"),
    "stored": (UNSET + "%r = arith.addf %u, %v : f32\n" + OUT, "memref.store"),
    "a maximum over unset memory": (UNSET + "%r = arith.maxnumf %u, %v : f32\n" + OUT, "memref.store"),
    "a comparison that selects": (
        UNSET + "%p = arith.cmpf ogt, %u, %v : f32\n%r = arith.select %p, %zero, %v : f32\n" + OUT, "memref.store"),
    "a flag that is never set": (FLAG + BRANCH, "scf.if"),
    "an index": (FLAG + INDEX + f"%r = memref.load %s[%k] : {F}\n" + OUT, "memref.load"),
    "a bound": (FLAG + INDEX + SUM.replace("START", "%zero").replace("to %c32", "to %k"), "scf.for"),
    "a condition of a loop": (FLAG + """scf.while (%q = %p) : (i1) -> () { scf.condition(%q) } do { scf.yield %no : i1 }
      memref.store %v, %y[%t] : memref<64xf32>""", "scf.while"),
    "poison": (POISON + "%r = arith.addf %u, %v : f32\n" + OUT, "memref.store"),
    "poison in half of the lanes": (POISON + "%r = arith.select %half, %u, %v : f32\n" + OUT, "memref.store"),
    "an undef": ("%u = llvm.mlir.undef : f32\n%r = arith.addf %u, %v : f32\n" + OUT, "memref.store"),
    "an element of a vector": ("%w = ub.poison : vector<4xf32>\n%z = vector.insert %v, %w [1] : f32 into vector<4xf32>\n"
                               "%r = vector.extract %z[2] : f32 from vector<4xf32>\n" + OUT, "memref.store"),
    "an accumulator": (POISON + SUM.replace("START", "%u"), "memref.store"),
    "an alloca": ("%l = memref.alloca() : memref<2xf32>\n%r = memref.load %l[%c0] : memref<2xf32>\n" + OUT,
                  "memref.store"),
    "through shared memory": (UNSET + f"memref.store %u, %s[%t] : {F}\ngpu.barrier\n%o = arith.subi %c63, %t : index\n"
                              f"%r = memref.load %s[%o] : {F}\n" + OUT, "memref.store"),
    "through a copy": (f"%l = memref.alloca() : memref<64xf32, {SHARED}>\n%first = arith.cmpi eq, %t, %c0 : index\n"
                       f"scf.if %first {{ memref.copy %s, %l : {F} to {F} }}\ngpu.barrier\n"
                       f"%r = memref.load %l[%t] : {F}\n" + OUT, "memref.store"),
    "through a shuffle": (UNSET + "%h = arith.select %half, %v, %u : f32\n" + SHUFFLE
                          + "%r = arith.addf %g, %v : f32\n" + OUT, "memref.store"),
    "through a branch": (UNSET + "%r = scf.if %half -> (f32) { scf.yield %u : f32 } else { scf.yield %v : f32 }\n" + OUT,
                         "memref.store"),
    "a row of a product": (MATRIX.replace("ROWS", "%c8").replace("WHICH", "1") + OUT, "memref.store"),
}  # fmt: skip

HARMLESS = {
    "copied, and not used": ASYNC + "%r = arith.addf %v, %v : f32\n" + OUT,
    "copied, and overwritten": ASYNC.replace("%u =", f"memref.store %v, %s[%t] : {F}\n  %r =") + OUT,
    "not used": UNSET + "%z = arith.addf %u, %v : f32\n%r = arith.addf %v, %v : f32\n" + OUT,
    "selected away": UNSET + "%h = arith.maxnumf %u, %v : f32\n%r = arith.select %no, %h, %v : f32\n" + OUT,
    "decided by the other": FLAG + "%q = arith.andi %p, %no : i1\nscf.if %q { memref.store %zero, %y[%t] : memref<64xf32> }\n"
                            "memref.store %v, %y[%t] : memref<64xf32>",
    "of lanes that do not store": UNSET + "%h = arith.select %half, %v, %u : f32\n%r = arith.addf %h, %h : f32\n"
                                  "scf.if %half { memref.store %r, %y[%t] : memref<64xf32> } else {"
                                  " memref.store %v, %y[%t] : memref<64xf32> }",
    "overwritten": UNSET + f"memref.store %u, %s[%t] : {F}\nmemref.store %v, %s[%t] : {F}\n%r = memref.load %s[%t] : {F}\n"
                   + OUT,
    "a result that is overwritten": UNSET + "memref.store %u, %y[%t] : memref<64xf32>\n"
                                    "memref.store %v, %y[%t] : memref<64xf32>",
    "other elements of a vector": "%w = ub.poison : vector<4xf32>\n"
                                  "%z = vector.insert %v, %w [1] : f32 into vector<4xf32>\n"
                                  "%r = vector.extract %z[1] : f32 from vector<4xf32>\n" + OUT,
    "shuffled where nobody looks": UNSET + "%h = arith.select %half, %v, %u : f32\n" + SHUFFLE
                                   + "%r = arith.select %half, %g, %v : f32\n" + OUT,
    "poison of the other branch": POISON + "%r = scf.if %no -> (f32) { scf.yield %u : f32 } else "
                                  "{ scf.yield %v : f32 }\n" + OUT,
    "a row of a product that pads": MATRIX.replace("ROWS", "%c8").replace("WHICH", "0") + OUT,
    "a product": MATRIX.replace("ROWS", "%c16").replace("WHICH", "1") + OUT,
    "an undef whose fields are set": "%q0 = llvm.mlir.undef : !llvm.struct<(f32, f32)>\n"
        "%q1 = llvm.insertvalue %v, %q0[0] : !llvm.struct<(f32, f32)>\n"
        "%q2 = llvm.insertvalue %v, %q1[1] : !llvm.struct<(f32, f32)>\n"
        "%r = llvm.extractvalue %q2[1] : !llvm.struct<(f32, f32)>\n" + OUT,
}  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_what_depends_on_undefined_values(name):
    body, sink = HARMFUL[name]
    for seed in (0, 3):
        report = run(launch(HEAD + body, X, smem=512), seed=seed)[2]
        assert sink in {f.op for f in report.findings if f.kind == "undefined value"}, report.findings
        assert report.kinds() <= {"undefined value", "uninitialized read", "out of bounds", "overwritten input"}
        made = {f.op for f in report.findings if f.kind == "uninitialized read"}
        message = next(f.message for f in report.findings if f.kind == "undefined value")
        assert "poison" in message or "undef" in message or (made and all(op in message for op in made))


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_thrown_away(name):
    for seed in (0, 3):
        report = run(launch(HEAD + HARMLESS[name], X, smem=512), seed=seed)[2]
        assert report.ok, [str(f) for f in report.findings]


def test_only_the_reads_that_matter_are_reported():
    unused = f"%j = arith.subi %c63, %t : index\n%z = vector.load %s[%j] : {F}, vector<1xf32>\n"
    unused += "%w = arith.addf %z, %z : vector<1xf32>\n"
    report = run(launch(HEAD + UNSET + unused + "%r = arith.addf %u, %v : f32\n" + OUT, X, smem=256))[2]
    read, written = report.findings
    assert (read.kind, read.op, written.kind, written.count) == (
        "uninitialized read",
        "memref.load",
        "undefined value",
        64,
    )
    assert f"what memref.load at {read.location} reads" in written.message


BACK = store("%r", "%p1", "%t")


@pytest.mark.parametrize("body, sink", [
    (load("u", "%smem", "%t", "i32", "<3>") + "%r = arith.maxsi %u, %x : i32\n" + BACK, "llvm.store"),
    (load("u", "%smem", "%t", "i32", "<3>") + "%r = nvvm.redux.sync max %u, %all : i32 -> i32\n" + BACK, "llvm.store"),
    (load("u", "%smem", "%t", "i32", "<3>") + "%b1 = arith.cmpi eq, %u, %c1 : i32\n"
     "%v = nvvm.vote.sync any %all, %b1 -> i1\nscf.if %v { " + store("%x", "%p1", "%t") + "}", "scf.if"),
    ("%r = llvm.atomicrmw add %smem, %x monotonic : !llvm.ptr<3>, i32\n" + BACK, "llvm.store"),
    ("%u = ub.poison : i32\n%r = llvm.atomicrmw add %p1, %u monotonic : !llvm.ptr<1>, i32\n" + BACK, "llvm.atomicrmw"),
    ("%u = ub.poison : i32\n%at = llvm.getelementptr %p1[%u] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32\n"
     "llvm.store %x, %at : i32, !llvm.ptr<1>\n", "llvm.store"),
    (load("u", "%smem", "%t", "i32", "<3>") + "%b1 = arith.cmpi eq, %u, %c1 : i32\n" + BACK.replace("%r", "%x"), ""),
])  # fmt: skip
def test_functions_of_the_llvm_dialect(body, sink):
    x, y = ints(32), np.zeros(32, np.int32)
    found = places(load("x", "%p0", "%t") + body, x, y, smem=512)
    assert ({op for kind, op in found if kind == "undefined value"} == {sink}) if sink else not found
    assert sink or (x == y).all()


@pytest.mark.parametrize("rows, adds, undefined", [(64, "one", True), (64, "zero", False), (32, "zero", True)])
def test_products_of_warpgroups(rows, adds, undefined):
    """64 rows of A, of which so many are written, and an accumulator that is poison."""
    struct = "!llvm.struct<(f32, f32, f32, f32)>"
    body = f"""%rows = arith.constant {rows} : i32
      %zero = arith.constant 0 : i32
      %mine = arith.cmpi ult, %t, %rows : i32
      %a_at = llvm.getelementptr %smem[%t] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, !llvm.array<16 x bf16>
      %b_at = llvm.getelementptr %smem[2048] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
      %v = arith.constant dense<1.0> : vector<8xbf16>
      scf.if %mine {{
        %half = llvm.getelementptr %a_at[16] : (!llvm.ptr<3>) -> !llvm.ptr<3>, i8
        llvm.store %v, %a_at {{alignment = 16 : i64}} : vector<8xbf16>, !llvm.ptr<3>
        llvm.store %v, %half {{alignment = 16 : i64}} : vector<8xbf16>, !llvm.ptr<3>
      }}
      %few = arith.cmpi ult, %t, %c16 : i32
      scf.if %few {{
        %bt = llvm.getelementptr %b_at[%t] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, !llvm.array<8 x bf16>
        llvm.store %v, %bt {{alignment = 16 : i64}} : vector<8xbf16>, !llvm.ptr<3>
      }}
      nvvm.fence.proxy {{kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}}
      nvvm.barrier
      %s0 = llvm.ptrtoint %smem : !llvm.ptr<3> to i64
      %da = arith.constant {(128 >> 4) << 16 | (256 >> 4) << 32} : i64
      %db = arith.constant {(128 >> 4) << 16 | (256 >> 4) << 32 | 128} : i64
      %acc = ub.poison : {struct}
      nvvm.wgmma.fence.aligned
      %d = nvvm.wgmma.mma_async %da, %db, %acc, <m = 64, n = 8, k = 16>, D [<f32>, #nvvm.wgmma_scale_out<{adds}>],
        A [<bf16>, #nvvm.wgmma_scale_in<one>, <row>], B [<bf16>, #nvvm.wgmma_scale_in<one>, <col>] : {struct} -> {struct}
      nvvm.wgmma.commit.group.sync.aligned
      nvvm.wgmma.wait.group.sync.aligned 0
      %r = llvm.extractvalue %d[1] : {struct}\n"""  # fmt: skip
    y = np.zeros(128, np.float32)
    found = places(body + store("%r", "%p0", "%t", "f32"), y, threads=128, smem=4096)
    kinds = {kind for kind, _ in found}
    assert kinds <= {"undefined value", "uninitialized read"} and bool(kinds) == undefined, found
    assert undefined or (y == 16).all()


PREDICATE = "{ .reg .pred p; setp.ne.b32 p, $13, 0; "
TEXT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {$0, $1, $2, $3}, {$8, $9, $10, $11}, $12, ADDS, 1, 1, 0;"


@pytest.mark.parametrize(
    "adds, scale, fields, poisoned",
    [
        ("p", "%none", False, False),
        ("p", "%one", False, True),
        ("p", "%given", False, True),
        ("0", "%one", True, False),
        ("1", "%none", True, True),
    ],
)
def test_an_accumulator_that_no_product_adds_to_is_nothing_undefined(adds, scale, fields, poisoned):
    """So that kernels whose first products begin sums do not run a second time."""
    struct, f = "!llvm.struct<(f32, f32, f32, f32)>", "f32, f32, f32, f32"
    start, names = "%u = llvm.mlir.undef : f32\n", ["%u"] * 4
    if fields:
        names = [f"%u{i}" for i in range(4)]
        start = f"%s = llvm.mlir.undef : {struct}\n" + "".join(
            f"{n} = llvm.extractvalue %s[{i}] : {struct}\n" for i, n in enumerate(names)
        )
    text = (PREDICATE if adds == "p" else "") + TEXT.replace("ADDS", adds) + (" }" if adds == "p" else "")
    body = f"""{start}%none = arith.constant 0 : i32
      %one = arith.constant 1 : i32
      %given = nvvm.read.ptx.sreg.ctaid.y : i32
      %at = arith.constant 0 : i64
      %d = llvm.inline_asm has_side_effects asm_dialect = att "{text}",
        "=f,=f,=f,=f,0,1,2,3,r,r,r,r,l,r" {", ".join(names)}, %t, %t, %t, %t, %at, {scale} :
        ({f}, i32, i32, i32, i32, i64, i32) -> {struct}\n"""
    text = module(body, 0)
    (gpu,) = text.body.operations
    assert has_poison(gpu.operation) == poisoned


@pytest.mark.parametrize("reads, kinds", [("%few", set()), ("%yes", {"uninitialized read", "undefined value"})])
def test_a_workspace_that_an_earlier_launch_writes_in_part(reads, kinds):
    """The first launch writes 32 of 64 elements; the second one takes some of them, and x elsewhere."""
    m = "memref<64xf32>"
    text = f"""module attributes {{gpu.container_module}} {{
      gpu.module @k_gpu {{
        gpu.func @first(%x: {m}, %w: {m}) kernel {{
          %t = gpu.thread_id x
          %v = memref.load %x[%t] : {m}
          memref.store %v, %w[%t] : {m}
          gpu.return
        }}
        gpu.func @second(%x: {m}, %w: {m}, %y: {m}) kernel {{
          %t = gpu.thread_id x
          %c32 = arith.constant 32 : index
          %few = arith.cmpi ult, %t, %c32 : index
          %yes = arith.constant true
          %v = memref.load %x[%t] : {m}
          %u = memref.load %w[%t] : {m}
          %r = arith.select {reads}, %u, %v : f32
          memref.store %r, %y[%t] : {m}
          gpu.return
        }}
      }}
      func.func @k(%x: {m}, %y: {m}) {{
        %w = memref.alloc() : {m}
        %one = arith.constant 1 : index
        %half = arith.constant 32 : index
        %all = arith.constant 64 : index
        %none = arith.constant 0 : i32
        gpu.launch_func @k_gpu::@first blocks in (%one, %one, %one) threads in (%half, %one, %one)
          dynamic_shared_memory_size %none args(%x : {m}, %w : {m})
        gpu.launch_func @k_gpu::@second blocks in (%one, %one, %one) threads in (%all, %one, %one)
          dynamic_shared_memory_size %none args(%x : {m}, %w : {m}, %y : {m})
        return
      }}
    }}"""
    x, y, report = run(mlir.parse(text))
    assert report.kinds() == kinds
    assert (x == y).all() or (kinds and report.findings[-1].count == 32)
