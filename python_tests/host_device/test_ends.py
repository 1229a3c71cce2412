"""A kernel that hangs, or tramples over memory, ends with a report: never a hung or crashed process, never a traceback."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import run_kernel
from mlirc.errors import MlircError
from support.kernels.memrefs import SHARED, X, launch

SPIN = """
  scf.while (%turns = %c0) : (index) -> index {
    %v = memref.load %x[%c0] : memref<64xf32>
    %old = arith.cmpf oeq, %v, %v : f32
    scf.condition(%old) %turns : index
  } do {
  ^bb0(%turns: index):
    %more = arith.addi %turns, %c1 : index
    scf.yield %more : index
  }"""
NO_STEP = "scf.for %i = %c0 to %c64 step %c0 {\n gpu.barrier\n }"
NO_STEP_FOR_SOME = "scf.for %i = %c0 to %c64 step %t {\n memref.store %one, %y[%t] : memref<64xf32>\n }"
FAR_END = "%far = arith.constant 9000000000000000000 : index\nscf.for %i = %c0 to %far step %c1 {\n gpu.barrier\n }"
SOME_MISS_THE_BARRIER = """
  %few = arith.cmpi ult, %t, %c32 : index
  scf.if %few {
    gpu.barrier
  }
  gpu.barrier"""
HOPELESS = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<64xf32, {SHARED}>
  %first = arith.cmpi eq, %t, %c0 : index
  scf.if %first {{
    gpu.barrier
  }} else {{
    scf.for %i = %c0 to %c64 step %c1 {{
      gpu.barrier
    }}
  }}"""
FAR_WINDOW = """
  %big = arith.constant 1000000 : index
  %far = arith.muli %t, %big : index
  %w = memref.reinterpret_cast %y to offset: [%far], sizes: [64], strides: [1]
    : memref<64xf32> to memref<64xf32, strided<[1], offset: ?>>
  memref.store %one, %w[%t] : memref<64xf32, strided<[1], offset: ?>>"""
FAR_VIEW = f"""
  %big = arith.constant 1000000 : index
  %s = memref.view %all[%big][] : memref<?xi8, {SHARED}> to memref<64xf32, {SHARED}>
  memref.store %one, %s[%t] : memref<64xf32, {SHARED}>
  %v = memref.load %s[%t] : memref<64xf32, {SHARED}>
  memref.store %v, %y[%t] : memref<64xf32>"""
MATRIX = f"""
  %s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to memref<8x8xf16, {SHARED}>
  %m = nvgpu.ldmatrix %s[%c0, %c0] {{numTiles = 1 : i32, transpose = false}}
    : memref<8x8xf16, {SHARED}> -> vector<1x2xf16>"""
NEGATIVE = """
  %n = arith.subi %c0, %t : index
  memref.store %one, %y[%n] : memref<64xf32>"""


@pytest.mark.parametrize(
    "body, kind",
    [
        (SPIN, "endless loop"), (NO_STEP, "endless loop"), (NO_STEP_FOR_SOME, "endless loop"), (FAR_END, "endless loop"),
        (SOME_MISS_THE_BARRIER, "deadlock"), (HOPELESS, "deadlock"), (FAR_WINDOW, "out of bounds"),
        (FAR_VIEW, "out of bounds"), (NEGATIVE, "out of bounds"),
    ],
    ids=["spin", "no step", "no step for some", "far end", "missed barrier", "hopeless", "far window", "far view",
         "negative"],
)  # fmt: skip
@pytest.mark.parametrize("check", [True, False])
def test_it_ends_with_a_report(body, kind, check):
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    body = "%one = arith.constant 1.0 : f32\n" + body
    report = run_kernel(launch(body, X, smem=256), [x, y], check=check)
    if kind in ("endless loop", "deadlock") or check:
        assert kind in report.kinds()
    if kind == "deadlock":
        assert "for the barrier of the block" in "\n".join(map(str, report.findings))


STORE = "memref.store %one, %y[%t] : memref<64xf32>"
LONG = """
  %far = arith.constant 4000000 : index
  scf.for %i = %c0 to %far step %c1 {
    memref.store %one, %y[%t] : memref<64xf32>
  }"""


def ends(body: str, seconds: float = 120.0, **options):
    """The report of a kernel of 64 threads."""
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    body = "%one = arith.constant 1.0 : f32\n" + body
    return run_kernel(launch(body, X, **options), [x, y], seconds=seconds)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(threads=0), "block is [0, 1, 1]: x must be from 1 to 1024"),
        (dict(threads=-1), "block is [-1, 1, 1]"),
        (dict(threads=1 << 40), "x must be from 1 to 1024"),
        (dict(blocks=0), "grid is [0, 1, 1]: x must be from 1 to 2147483647"),
        (dict(blocks=1 << 62), "x must be from 1 to 2147483647"),
        (dict(smem=232449), "232449 bytes of dynamic shared memory: 232448 are the most"),
        (dict(smem=-1), "-1 bytes of dynamic shared memory"),
    ],
)
def test_launches_that_a_gpu_refuses(options, message):
    (finding,) = ends(STORE, **options).findings
    assert finding.kind == "bad launch"
    assert message in str(finding)


@pytest.mark.parametrize(
    "declared, message",
    [
        ("known_block_size = array<i32: 128, 1, 1>", "the kernel is for blocks of [128, 1, 1] (known_block_size), and is "
         "launched with [64, 1, 1]: too few"),
        ("known_block_size = array<i32: 32, 2, 1>", "(known_block_size), and is launched with [64, 1, 1]"),
        ("nvvm.reqntid = array<i32: 32>", "for blocks of [32, 1, 1] (nvvm.reqntid), and is launched with [64, 1, 1]: too many"),
        ("known_grid_size = array<i32: 2, 1, 1>", "for a grid of [2, 1, 1] (known_grid_size), and is launched with [1, 1, 1]"),
        ("nvvm.maxntid = array<i32: 32, 1, 1>", "for 32 threads at the most (nvvm.maxntid), and is launched with [64, 1, 1]"),
        ("known_block_size = array<i32: 64, 1, 1>, known_grid_size = array<i32: 1, 1, 1>, nvvm.maxntid = array<i32: 96>", ""),
    ],
)  # fmt: skip
def test_launches_that_a_kernel_is_not_for(declared, message):
    text = str(launch("%one = arith.constant 1.0 : f32\n" + STORE, X)).replace(
        "kernel {", f"kernel attributes {{{declared}}} {{"
    )
    assert declared in text
    report = run_kernel(mlir.parse(text), [np.zeros(64, np.float32) for _ in range(2)])
    assert [f.kind for f in report.findings] == ["bad launch"] * bool(message)
    assert message in "".join(map(str, report.findings))


def test_the_largest_launches_that_a_gpu_takes():
    assert ends(STORE, smem=232448).ok


def test_a_launch_that_takes_too_long_is_stopped_and_says_where(ticking):
    finding = ends(LONG, seconds=50).findings[0]
    assert ticking() < 100
    assert finding.kind == "stopped" and finding.op == "scf.for"
    assert "is still at work after 50 s: run fewer blocks (--blocks) or allow more (--seconds)" in finding.message


def test_a_grid_without_end_is_stopped(ticking):
    assert ends("", blocks=(1 << 31) - 1, seconds=50).kinds() == {"stopped"}
    assert ticking() < 100


def test_what_cannot_go_on_names_its_operation():
    body = """
      %z = arith.cmpi slt, %t, %c32 : index
      %size = arith.select %z, %c1, %c32 : index
      %w = memref.reinterpret_cast %y to offset: [0], sizes: [%size], strides: [1]
        : memref<64xf32> to memref<?xf32, strided<[1]>>"""
    (finding,) = ends(body).findings
    assert finding.kind == "stopped" and finding.op == "memref.reinterpret_cast"
    assert "a memref's extent differs between threads" in finding.message


@pytest.mark.parametrize(
    "body, options, message",
    [
        (MATRIX, dict(threads=33, smem=128), "it is executed by whole warps, and a block has 33 threads"),
        (
            NEGATIVE.replace("%t\n", "%c63\n").replace("%c0, ", "%far, "),
            dict(check=False),
            "run with check=True to see",
        ),
    ],
)
def test_what_cannot_go_on_says_why(body, options, message):
    check = options.pop("check", True)
    head = "%yes = arith.constant true\n%one = arith.constant 1.0 : f32\n%far = arith.constant 100000 : index\n"
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    report = run_kernel(launch(head + body, X, **options), [x, y], check=check)
    assert message in "\n".join(map(str, report.findings)), report.findings


def through_own_buffers(shared: int, private: int):
    """Reverses 64 numbers through a buffer in shared memory, and one in local memory, that the kernel declares."""
    s, q = f"memref<{shared}xf32, {SHARED}>", f"memref<{private}xf32, #gpu.address_space<private>>"
    body = f"""
      %v = memref.load %x[%t] : memref<64xf32>
      memref.store %v, %s[%t] : {s}
      gpu.barrier
      %o = arith.subi %c63, %t : index
      %w = memref.load %s[%o] : {s}
      memref.store %w, %q[%c0] : {q}
      %z = memref.load %q[%c0] : {q}
      memref.store %z, %y[%t] : memref<64xf32>"""
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    report = run_kernel(launch(body, X, buffers=f"workgroup(%s: {s}) private(%q: {q})"), [x, y])
    return report, (y == x[::-1]).all()


@pytest.mark.parametrize(
    "shared, private, message",
    [
        (64, 1, ""), (58112, 1, ""), (64, 131072, ""),
        (58113, 1, "232452 bytes of shared memory, 0 of them dynamic: 232448 are the most of a block"),
        (64, 131073, "524292 bytes of local memory: 524288 are the most of a thread"),
        (32, 1, "block 0 thread 32 uses index 32 in dimension 0 of extent 32 of shared memory"),
    ],
)  # fmt: skip
def test_buffers_that_a_kernel_declares(shared, private, message):
    report, right = through_own_buffers(shared, private)
    assert (report.ok and right) if not message else message in str(report.findings[0])


def test_a_launch_with_too_little_shared_memory_says_how_much_it_has():
    s = f"memref<64xf32, {SHARED}>"
    body = f"%s = memref.view %all[%c0][] : memref<?xi8, {SHARED}> to {s}\nmemref.store %one, %s[%t] : {s}\n{STORE}"
    assert ends(body, smem=256).ok
    first, *_ = ends(body, smem=128).findings
    assert (
        first.kind == "out of bounds"
        and "takes bytes 0 to 255 of shared memory, which has 128 bytes: launch the kernel with 256" in first.message
    )


def test_what_no_machine_has_is_an_error():
    with pytest.raises(MlircError, match="is no value of a thread: it has 4096 elements at the most"):
        ends("%v = vector.broadcast %one : f32 to vector<1048576xf32>")
    workspace = "%w = memref.alloc() : memref<1099511627776xf32>\n    gpu.launch_func"
    text = str(launch("%one = arith.constant 1.0 : f32\n" + STORE, X)).replace("gpu.launch_func", workspace)
    with pytest.raises(MlircError, match="workspace 0 takes 4,398,046,511,.* bytes: more memory than this machine has"):
        run_kernel(mlir.parse(text), [np.zeros(64, np.float32) for _ in range(2)])


def test_more_threads_than_can_be_watched_are_an_error_that_says_what_to_do():
    body = "%old = memref.atomic_rmw addf %one, %y[%c0] : (f32, memref<64xf32>) -> f32\n"
    body += "nvvm.memory.barrier #nvvm.mem_scope<gpu>"
    (finding,) = ends(body, blocks=5000).findings
    assert finding.kind == "stopped" and "too many to watch" in finding.message


def test_a_long_loop_without_a_barrier_takes_little_memory(monkeypatch):
    monkeypatch.setattr("mlirc.device.order.races.LOG_BYTES", 1 << 14)
    monkeypatch.setattr("mlirc.device.order.races.MAX_LOG_BYTES", 1 << 15)
    turns = "%far = arith.constant 3000 : index\nscf.for %i = %c0 to %far step %c1 {{\n{}\n}}"
    assert ends(turns.format(STORE)).ok
    wrong = "%r = arith.subi %c63, %t : index\nmemref.store %one, %y[%r] : memref<64xf32>"
    (finding,) = ends(f"{turns.format(STORE)}\n{wrong}").findings  # seen across what was condensed
    assert finding.kind == "race"
