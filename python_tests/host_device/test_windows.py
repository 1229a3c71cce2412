"""Memrefs that control flow chooses, and addresses that are computed: right, or refused in one line."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel

SHARED = "#gpu.address_space<workgroup>"
WIDE = "strided<[1], offset: ?>"
HEAD = """
      %t = gpu.thread_id x
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c32 = arith.constant 32 : index
      %half = arith.cmpi slt, %t, %c32 : index
      %v = memref.load %x[%t] : memref<64xf32>"""


def kernel(body: str) -> str:
    """64 threads with x [64], y [128] and z [128]."""
    types = "%x: memref<64xf32>, %y: memref<128xf32>, %z: memref<128xf32>"
    return f"""
module attributes {{gpu.container_module}} {{
  gpu.module @k_gpu {{
    gpu.func @k_0({types}) kernel attributes {{known_block_size = array<i32: 64, 1, 1>}} {{{HEAD}
{body}
      gpu.return
    }}
  }}
  func.func @k({types}) {{
    %c1 = arith.constant 1 : index
    %c64 = arith.constant 64 : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%c1, %c1, %c1) threads in (%c64, %c1, %c1)
      args(%x : memref<64xf32>, %y : memref<128xf32>, %z : memref<128xf32>)
    return
  }}
}}
"""


def run(body: str) -> tuple:
    x, y, z = np.arange(64, dtype=np.float32), *(np.full(128, -1, np.float32) for _ in range(2))
    device = DeviceKernel(mlir.parse(kernel(body)), inputs=1)
    report = device.run([x, y, z])
    return report, y, z


def window(buffer: str, name: str, at: str) -> str:
    return f"%{name} = memref.subview %{buffer}[{at}] [64] [1] : memref<128xf32> to memref<64xf32, {WIDE}>"


HALVES = f"""
      %c64 = arith.constant 64 : index
      {window("y", "a", "%c0")}
      {window("y", "b", "%c64")}"""
CHOSEN = {
    "select": f"%w = arith.select %half, %a, %b : memref<64xf32, {WIDE}>",
    "if": f"""%w = scf.if %half -> memref<64xf32, {WIDE}> {{
        scf.yield %a : memref<64xf32, {WIDE}>
      }} else {{
        scf.yield %b : memref<64xf32, {WIDE}>
      }}""",
    "switch": f"""%n = arith.divui %t, %c32 : index
      %w = scf.index_switch %n -> memref<64xf32, {WIDE}>
      case 0 {{
        scf.yield %a : memref<64xf32, {WIDE}>
      }}
      default {{
        scf.yield %b : memref<64xf32, {WIDE}>
      }}""",
    "loop": f"""%n = arith.divui %t, %c32 : index
      %w = scf.for %i = %c0 to %n step %c1 iter_args(%v0 = %a) -> (memref<64xf32, {WIDE}>) {{
        scf.yield %b : memref<64xf32, {WIDE}>
      }}""",
}


@pytest.mark.parametrize("how", CHOSEN)
def test_windows_of_one_buffer_are_chosen_by_thread(how):
    report, y, _ = run(f"{HALVES}\n      {CHOSEN[how]}\n      memref.store %v, %w[%t] : memref<64xf32, {WIDE}>")
    assert report.kinds() == {"unwritten result"}, report.findings
    np.testing.assert_array_equal(y[:32], np.arange(32))
    np.testing.assert_array_equal(y[96:], np.arange(32, 64))


@pytest.mark.parametrize("how", CHOSEN)
def test_windows_of_two_buffers_are_refused(how):
    body = HALVES.replace("memref.subview %y[%c64]", "memref.subview %z[%c64]")
    report, *_ = run(f"{body}\n      {CHOSEN[how]}\n      memref.store %v, %w[%t] : memref<64xf32, {WIDE}>")
    (found,) = [f for f in report.findings if f.kind == "stopped"]
    assert "take a window of argument 1 and argument 2: branch around the loads" in found.message, found


def test_all_threads_may_choose_the_same_buffer():
    report, _, z = run(f"""{HALVES.replace("memref.subview %y[%c64]", "memref.subview %z[%c64]")}
      %all = arith.cmpi sge, %t, %c0 : index
      %w = arith.select %all, %b, %a : memref<64xf32, {WIDE}>
      memref.store %v, %w[%t] : memref<64xf32, {WIDE}>""")
    assert report.kinds() == {"unwritten result"} and (z[64:] == np.arange(64)).all(), report.findings


def _integer(offset: str, buffer: str = "y") -> str:
    """A store of %v to the address of a buffer plus an offset in bytes, an i64, computed with integers."""
    return f"""
      %p = memref.extract_aligned_pointer_as_index %{buffer} : memref<128xf32> -> index
      %i = arith.index_cast %p : index to i64
      %t64 = arith.index_cast %t : index to i64
      %four = arith.constant 4 : i64
      %o = arith.muli %t64, %four : i64
      %s = arith.addi %i, %o : i64
      {offset}
      %q = llvm.inttoptr %e : i64 to !llvm.ptr
      llvm.store %v, %q : f32, !llvm.ptr"""


def test_an_address_that_is_computed_is_the_buffers():
    report, y, z = run(_integer("%k = arith.constant 256 : i64\n      %e = arith.addi %s, %k : i64"))
    assert report.kinds() == {"unwritten result"} and "64 bytes" not in str(report.findings), report.findings
    np.testing.assert_array_equal(y[64:], np.arange(64))
    chosen = "%k = arith.constant 64 : i64\n      %e2 = arith.addi %s, %k : i64\n"
    report, y, _ = run(_integer(chosen + "      %e = arith.select %half, %s, %e2 : i64"))
    np.testing.assert_array_equal(y[48:80], np.arange(32, 64))


def test_two_accesses_by_two_addresses_race():
    report, *_ = run(_integer("%e = arith.subi %s, %o : i64"))
    assert "race" in report.kinds(), report.findings


@pytest.mark.parametrize("first", ["%c32", "%c0"])
def test_a_windows_pointer_is_that_of_its_buffer(first):
    """As in LLVM, where the offset is a number beside it; a view's pointer is its own."""
    report, y, _ = run(f"""
      %a = memref.subview %y[{first}] [64] [1] : memref<128xf32> to memref<64xf32, {WIDE}>
      %p = memref.extract_aligned_pointer_as_index %a : memref<64xf32, {WIDE}> -> index
      %i = arith.index_cast %p : index to i64
      %q = llvm.inttoptr %i : i64 to !llvm.ptr
      %ti = arith.index_cast %t : index to i32
      %e = llvm.getelementptr %q[%ti] : (!llvm.ptr, i32) -> !llvm.ptr, f32
      llvm.store %v, %e : f32, !llvm.ptr""")
    np.testing.assert_array_equal(y[:64], np.arange(64))
    report, y, _ = run(f"""
      %a = memref.subview %y[{first}] [64] [1] : memref<128xf32> to memref<64xf32, {WIDE}>
      %o = arith.addi %t, %c1 : index
      %r = memref.reinterpret_cast %a to offset: [%t], sizes: [1], strides: [1]
        : memref<64xf32, {WIDE}> to memref<1xf32, {WIDE}>
      memref.store %v, %r[%c0] : memref<1xf32, {WIDE}>""")
    np.testing.assert_array_equal(y[:64], np.arange(64))


@pytest.mark.parametrize("second", [False, True])
def test_arrays_in_shared_memory_have_addresses_of_their_own(second):
    """Two static arrays and the dynamic one: each thread writes all, by pointers, and reads its own."""
    body = f"""
      %all = gpu.dynamic_shared_memory : memref<?xi8, {SHARED}>
      %a = memref.alloca() : memref<64xf32, {SHARED}>
      %b = memref.alloca() : memref<64xf32, {SHARED}>
      memref.store %v, %a[%t] : memref<64xf32, {SHARED}>
      %p = memref.extract_aligned_pointer_as_index %b : memref<64xf32, {SHARED}> -> index
      %i = arith.index_cast %p : index to i32
      %q = llvm.inttoptr %i : i32 to !llvm.ptr<3>
      %ti = arith.index_cast %t : index to i32
      %e = llvm.getelementptr %q[%ti] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, f32
      %w = arith.addf %v, %v : f32
      llvm.store %w, %e : f32, !llvm.ptr<3>
      %1 = memref.load %{"b" if second else "a"}[%t] : memref<64xf32, {SHARED}>
      memref.store %1, %y[%t] : memref<128xf32>"""
    report, y, _ = run(body)
    assert report.kinds() == {"unwritten result"}, report.findings
    np.testing.assert_array_equal(y[:64], np.arange(64) * (2 if second else 1))
