"""The host device: what it computes, and that it finds what it claims to find."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from mlirc.device import DeviceKernel, DeviceModel, run_kernel
from mlirc.device.counters import sectors, table, wavefronts
from mlirc.errors import MlircError
from support.kernels.memrefs import SHARED, X, launch, run

REVERSED = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<64xf32, {SHARED}>
  %v = memref.load %x[%t] : memref<64xf32>
  memref.store %v, %s[%t] : memref<64xf32, {SHARED}>
  gpu.barrier
  %o = arith.subi %c63, %t : index
  %w = memref.load %s[%o] : memref<64xf32, {SHARED}>
  memref.store %w, %y[%t] : memref<64xf32>"""


def test_a_right_kernel_has_no_findings():
    x, y, report = run(launch(REVERSED, X, smem=256))
    np.testing.assert_array_equal(y, x[::-1])
    assert report.ok


def test_a_missing_barrier_is_a_race():
    _, _, report = run(launch(REVERSED.replace("gpu.barrier", ""), X, smem=256))
    assert report.kinds() == {"race"}
    assert "memref.load" in str(report.findings[0]) and "without a barrier" in str(report.findings[0])


def test_threads_of_one_warp_race_too_and_a_warp_barrier_orders_them():
    body = REVERSED.replace("gpu.barrier", "").replace("%c63", "%c31")
    body = "%c31 = arith.constant 31 : index\n" + body
    assert run(launch(body, X, threads=32, smem=256))[2].kinds() == {"race", "unwritten result"}
    body = REVERSED.replace("gpu.barrier", "%m = arith.constant -1 : i32\nnvvm.bar.warp.sync %m : i32")
    assert run(launch(body, X, smem=256))[2].kinds() == {"race"}  # the other warp's elements
    body = body.replace("arith.subi %c63, %t", "arith.xori %t, %c1")
    assert run(launch(body, X, smem=256))[2].ok


def test_shared_memory_too_small():
    assert run(launch(REVERSED, X, smem=252))[2].kinds() == {"out of bounds"}


@pytest.mark.parametrize("index", ["arith.addi %t, %c1", "arith.subi %t, %c1"])
def test_global_index_out_of_bounds(index):
    body = f"%i = {index} : index\n %v = memref.load %x[%i] : memref<64xf32>\n memref.store %v, %y[%t] : memref<64xf32>"
    _, _, report = run(launch(body, X))
    assert report.kinds() == {"out of bounds"} and report.findings[0].count == 1
    bad = "thread 63 uses index 64" if "addi" in index else "thread 0 uses index -1"
    assert bad in report.findings[0].message


def test_an_index_inside_the_buffer_but_outside_its_row():
    body = "%v = memref.load %x[%c0, %t] : memref<2x32xf32>\n memref.store %v, %y[%t] : memref<64xf32>"
    module = launch(body, "%x: memref<2x32xf32>, %y: memref<64xf32>")
    report = run_kernel(module, [np.zeros((2, 32), np.float32), np.zeros(64, np.float32)])
    assert report.kinds() == {"out of bounds"}


def test_inactive_threads_may_have_any_index():
    body = """
  %i = arith.addi %t, %c1 : index
  %in = arith.cmpi slt, %i, %c64 : index
  scf.if %in {
    %v = memref.load %x[%i] : memref<64xf32>
    memref.store %v, %y[%t] : memref<64xf32>
  } else {
    %v = memref.load %x[%c0] : memref<64xf32>
    memref.store %v, %y[%t] : memref<64xf32>
  }"""
    x, y, report = run(launch(body, X))
    assert report.ok
    np.testing.assert_array_equal(y, np.roll(x, -1))


def test_memory_that_nobody_wrote():
    body = REVERSED.replace("memref.store %v, %s[%t]", "memref.store %v, %s[%h]")
    body = f"%h = arith.remui %t, %c32 : index\n{body}".replace("%v, %s[%h]", "%v, %s[%h]")
    _, _, report = run(launch(body, X, smem=256))
    assert "uninitialized read" in report.kinds()


def test_what_is_read_from_fresh_memory_may_be_thrown_away():
    body = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<64xf32, {SHARED}>
  %w = memref.load %s[%t] : memref<64xf32, {SHARED}>
  %v = memref.load %x[%t] : memref<64xf32>
  %c = arith.cmpi slt, %t, %c0 : index
  %u = arith.select %c, %w, %v : f32
  memref.store %u, %y[%t] : memref<64xf32>"""
    assert run(launch(body, X, smem=256))[2].ok


@pytest.mark.parametrize("start, kinds", [("%c0", set()), ("%c1", {"misaligned"})])
def test_misaligned_vector(start, kinds):
    body = f"""
  %four = arith.constant 4 : index
  %i = arith.muli %t, %four : index
  %j = arith.addi %i, {start} : index
  %v = vector.load %x[%j] {{alignment = 16}} : memref<80xf32>, vector<4xf32>
  vector.store %v, %y[%i] {{alignment = 16}} : memref<64xf32>, vector<4xf32>"""
    x, y = np.arange(80, dtype=np.float32), np.zeros(64, np.float32)
    report = run_kernel(launch(body, "%x: memref<80xf32>, %y: memref<64xf32>", threads=16), [x, y])
    assert report.kinds() == kinds


def test_blocks_that_write_the_same_element():
    body = "%v = memref.load %x[%t] : memref<64xf32>\n memref.store %v, %y[%t] : memref<64xf32>"
    _, _, report = run(launch(body, X, blocks=2))
    assert report.kinds() == {"race between blocks"} and report.findings[0].count == 64


def test_a_result_that_nobody_writes():
    body = "%v = memref.load %x[%t] : memref<64xf32>\n memref.store %v, %y[%t] : memref<64xf32>"
    _, _, report = run(launch(body, X, threads=32))
    assert (
        report.kinds() == {"unwritten result"} and "too few, where each writes 1 element" in report.findings[0].message
    )


def test_a_barrier_that_some_threads_never_reach_ends_in_a_report():
    body = "%p = arith.cmpi slt, %t, %c32 : index\n scf.if %p {\n gpu.barrier\n }"
    _, _, report = run(launch(body + REVERSED, X, smem=256))
    assert "deadlock" in report.kinds()
    assert "which warp 1 (threads 32 to 63) never reaches" in str(report.findings[0])


def test_barriers_on_both_sides_of_a_branch():
    """Those of PTX meet, by their number; gpu.barrier is one operation that all threads execute (or none)."""
    both = "%p = arith.cmpi slt, %t, %c32 : index\n scf.if %p {\n gpu.barrier\n } else {\n gpu.barrier\n }"
    assert run(launch(both + REVERSED, X, smem=256))[2].kinds() == {"divergent barrier"}
    x, y, report = run(launch(both.replace("gpu.barrier", "nvvm.barrier") + REVERSED, X, smem=256))
    assert report.ok
    np.testing.assert_array_equal(y, x[::-1])


def test_a_loop_whose_trips_differ_between_threads():
    body = """
  %z = arith.constant 0.0 : f32
  %v = memref.load %x[%t] : memref<64xf32>
  %n = arith.remui %t, %c32 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %z) -> (f32) {
    %s = arith.addf %a, %v : f32
    scf.yield %s : f32
  }
  memref.store %r, %y[%t] : memref<64xf32>"""
    x, y, report = run(launch(body, X))
    assert report.ok
    expected = np.zeros(64, np.float32)
    for t in range(64):
        for _ in range(t % 32):
            expected[t] += x[t]
    np.testing.assert_array_equal(y, expected)


def test_a_while_loop():
    body = """
  %r = scf.while (%i = %t) : (index) -> index {
    %more = arith.cmpi ugt, %i, %c32 : index
    scf.condition(%more) %i : index
  } do {
  ^bb0(%j: index):
    %k = arith.subi %j, %c32 : index
    scf.yield %k : index
  }
  %v = memref.load %x[%r] : memref<64xf32>
  memref.store %v, %y[%t] : memref<64xf32>"""
    x, y, report = run(launch(body, X))
    assert report.ok
    np.testing.assert_array_equal(y, [x[t - 32 if t > 32 else t] for t in range(64)])


@pytest.mark.parametrize(
    "mode, offset, source",
    [
        ("xor", 5, lambda t: t ^ 5),
        ("idx", 3, lambda t: t // 32 * 32 + 3),
        ("up", 1, lambda t: t - (t % 32 > 0)),
        ("down", 2, lambda t: t + 2 * (t % 32 < 30)),
    ],
)
def test_shuffles(mode, offset, source):
    body = f"""
  %v = memref.load %x[%t] : memref<64xf32>
  %o = arith.constant {offset} : i32
  %n = arith.constant 32 : i32
  %w, %ok = gpu.shuffle {mode} %v, %o, %n : f32
  memref.store %w, %y[%t] : memref<64xf32>"""
    x, y, report = run(launch(body, X))
    assert report.ok
    np.testing.assert_array_equal(y, [x[source(t)] for t in range(64)])


def test_a_shuffle_from_a_thread_that_is_not_there():
    body = """
  %v = memref.load %x[%t] : memref<64xf32>
  %o = arith.constant 1 : i32
  %n = arith.constant 32 : i32
  %p = arith.remui %t, %c32 : index
  %q = arith.cmpi slt, %p, %c1 : index
  %r = scf.if %q -> (f32) {
    %w, %ok = gpu.shuffle xor %v, %o, %n : f32
    scf.yield %w : f32
  } else {
    scf.yield %v : f32
  }
  memref.store %r, %y[%t] : memref<64xf32>"""
    assert run(launch(body, X))[2].kinds() == {"divergent shuffle"}


ASYNC = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<64xf32, {SHARED}>
  %k = nvgpu.device_async_copy %x[%t], %s[%t], 1 : memref<64xf32> to memref<64xf32, {SHARED}>
  nvvm.cp.async.commit.group
  nvvm.cp.async.wait.group 0
  gpu.barrier
  %o = arith.subi %c63, %t : index
  %w = memref.load %s[%o] : memref<64xf32, {SHARED}>
  memref.store %w, %y[%t] : memref<64xf32>"""


@pytest.mark.parametrize(
    "removed, kinds",
    [
        ("", set()),
        ("nvvm.cp.async.wait.group 0", {"unfinished copy"}),
        ("nvvm.cp.async.commit.group", {"unfinished copy"}),
        ("gpu.barrier", {"race"}),
    ],
)
def test_asynchronous_copies(removed, kinds):
    x, y, report = run(launch(ASYNC.replace(removed, ""), X, smem=256))
    assert report.kinds() == kinds
    if removed.startswith("nvvm"):  # and it names the copy
        assert re.search(r"shared memory while the copy at line:\d+:\d+ writes there", report.findings[0].message)
    if "unfinished copy" not in kinds:
        np.testing.assert_array_equal(y, x[::-1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_sums_round_after_every_operation(dtype):
    name = "f16" if dtype == np.float16 else "bf16"
    body = f"""
  %v = memref.load %x[%t] : memref<64x{name}>
  %s = arith.addf %v, %v : {name}
  %p = arith.mulf %s, %v : {name}
  %q = arith.addf %p, %v : {name}
  memref.store %q, %y[%t] : memref<64x{name}>"""
    x, y = np.random.default_rng(1).standard_normal(64).astype(dtype), np.zeros(64, dtype)
    assert run_kernel(launch(body, f"%x: memref<64x{name}>, %y: memref<64x{name}>"), [x, y]).ok

    def rounded(a):
        return a.astype(dtype).astype(np.float64)

    w = x.astype(np.float64)
    expected = rounded(rounded(rounded(w + w) * w) + w)
    np.testing.assert_array_equal(y.astype(np.float64), expected)


def test_only_the_blocks_asked_for_run():
    body = """
  %i0 = arith.muli %b, %c64 : index
  %i = arith.addi %i0, %t : index
  %v = memref.load %x[%i] : memref<256xf32>
  memref.store %v, %y[%i] : memref<256xf32>"""
    module = launch(body, "%x: memref<256xf32>, %y: memref<256xf32>", blocks=4)
    x, y = np.arange(256, dtype=np.float32), np.full(256, -1, np.float32)
    assert run_kernel(module, [x, y], blocks=[1, 3]).ok
    np.testing.assert_array_equal(y.reshape(4, 64)[:, 0], [-1, 64, -1, 192])


def test_arguments_that_do_not_fit():
    module = launch(REVERSED, X, smem=256)
    with pytest.raises(MlircError, match="argument 0: got float64.64., but it must be float32.64."):
        run_kernel(module, [np.zeros(64), np.zeros(64, np.float32)])
    with pytest.raises(MlircError, match="takes 2 arguments, not 1"):
        run_kernel(module, [np.zeros(64, np.float32)])


def test_an_operation_without_a_rule_is_named():
    body = "nvvm.breakpoint"
    with pytest.raises(MlircError, match="kernel k: nvvm.breakpoint at .*: there is no rule"):
        run(launch(body, X))


def test_a_whole_model_runs_at_the_gpu_level():
    kernel = launch(REVERSED, X, smem=256)
    main = """
func.func private @k(%x: tensor<64xf32>) -> tensor<64xf32> attributes {mlirc.kernel}
func.func @main(%x: tensor<8x8xf32>) -> tensor<64xf32> {
  %f = tensor.collapse_shape %x [[0, 1]] : tensor<8x8xf32> into tensor<64xf32>
  %a = func.call @k(%f) : (tensor<64xf32>) -> tensor<64xf32>
  %b = func.call @k(%a) : (tensor<64xf32>) -> tensor<64xf32>
  return %b : tensor<64xf32>
}"""
    model = DeviceModel.parse(f"{main}\n// -----\n\n{kernel}", "gpu.mlir")
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    (result,), report = model.run([x])
    np.testing.assert_array_equal(result, x.reshape(64))
    assert report.ok
    broken = str(kernel).replace("gpu.barrier", "")
    _, report = DeviceModel.parse(f"{main}\n// -----\n\n{broken}", "gpu.mlir").run([x])
    line = 1 + f"{main}\n// -----\n\n{broken}".split("\n").index(
        next(t for t in broken.split("\n") if "memref.load" in t and "workgroup" in t)
    )
    assert f"at gpu.mlir:{line}:" in str(report.findings[0])


@pytest.mark.parametrize(
    "byte, size, expected",
    [
        (lambda t: 4 * t, 4, (1, 1)),
        (lambda t: 8 * t, 4, (2, 1)),
        (lambda t: 128 * t, 4, (32, 1)),
        (lambda t: 0 * t, 4, (1, 1)),
        (lambda t: 2 * t, 2, (1, 1)),
        (lambda t: 132 * t, 4, (1, 1)),
        (lambda t: 8 * t, 8, (2, 2)),
        (lambda t: 16 * t, 16, (4, 4)),
        (lambda t: 128 * t, 16, (32, 4)),
        (lambda t: 16 * (t // 2), 16, (2, 2)),
    ],
)
def test_bank_conflicts(byte, size, expected):
    assert wavefronts(byte(np.arange(32))[None], size, None) == expected


@pytest.mark.parametrize(
    "byte, size, expected",
    [
        (lambda t: 4 * t, 4, (4, 4)),
        (lambda t: 4 * t + 16, 4, (5, 4)),
        (lambda t: 32 * t, 4, (32, 4)),
        (lambda t: 16 * t, 16, (16, 16)),
        (lambda t: 0 * t, 4, (1, 4)),
    ],
)
def test_global_sectors(byte, size, expected):
    assert sectors(byte(np.arange(32))[None], size, None) == expected


def test_counters_of_a_kernel():
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    report = DeviceKernel(launch(REVERSED, X, smem=256), count=True).run([x, y])
    found = report.counters["k"]
    assert found["global requests"] == 4 and found["global sectors"] == 16
    assert found["shared requests"] == 4 and found["shared bank conflicts"] == 0
    assert found["instructions: barrier"] == 2 and found["instructions: integer"] == 2
    assert found["global sectors read, each once"] == found["global sectors written, each once"] == 8
    lines = [line.split() for line in table(report).split("\n")]
    assert ["global", "load", "2", "256", "8", "4.00", "4.00"] in lines
    assert ["shared", "store", "2", "256", "2", "1.00", "1.00"] in lines
