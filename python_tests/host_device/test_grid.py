"""What a kernel arranges with its launch: registers of a block's pool, and launches that wait for earlier ones."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel, DeviceModel
from support.kernels.instructions import ints, places, store

THREADS = ", nvvm.reqntid = array<i32: 384, 1, 1>"
SIZES = THREADS + ", nvvm.minctasm = 1 : i32"  # 65536 / 384, rounded down: 168 registers each
ROLES = """%c256 = arith.constant 256 : i32
  %produces = arith.cmpi ult, %t, %c128 : i32
  scf.if %produces { nvvm.setmaxregister decrease 40 } else { nvvm.setmaxregister increase 232 }\n"""
BAD, SET = "bad setmaxregister", "nvvm.setmaxregister"


def registers(body: str, attributes: str = SIZES, threads: int = 384) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for seed in range(3):
        y = np.zeros(threads, np.int32)
        found |= places(body + store("%t", "%p0", "%t"), y, threads=threads, attributes=attributes, seed=seed)
        assert found or (y == np.arange(threads)).all()
    return found


def test_registers_that_one_warpgroup_gives_are_those_that_the_others_take():
    assert not registers(ROLES)  # 128 * (168 - 40) == 256 * (232 - 168)
    assert not registers(ROLES, ", nvvm.maxnreg = 168 : i32")
    assert not registers("nvvm.setmaxregister increase 168\n")


@pytest.mark.parametrize(
    "old, new",
    [
        ("increase 232", "increase 240"),
        ("nvvm.setmaxregister decrease 40", ""),
        ("decrease 40", "decrease 48"),
    ],
)
def test_a_pool_that_never_has_enough_is_a_deadlock(old, new):
    assert registers(ROLES.replace(old, new)) == {("deadlock", SET)}


def test_a_smaller_launch_has_a_smaller_pool():
    assert registers(ROLES, ", nvvm.maxnreg = 160 : i32") == {("deadlock", SET)}
    two = THREADS + ", nvvm.minctasm = 2 : i32"  # 80 each
    assert registers(ROLES, two) == {("deadlock", SET)}
    assert not registers(ROLES.replace("232", "96").replace("40", "48"), two)


def test_registers_go_the_way_that_is_said():
    assert registers("nvvm.setmaxregister decrease 232\n") == {(BAD, SET)}
    assert registers("nvvm.setmaxregister decrease 48\nnvvm.setmaxregister increase 40\n") == {(BAD, SET)}
    for unknown in ("", THREADS, ", nvvm.minctasm = 1 : i32"):  # ptxas ignores it: C7508
        assert registers(ROLES, unknown) == {(BAD, SET)}


def test_a_launch_has_no_more_registers_than_are_asked_for():
    less = ROLES.replace("232", "144").replace("40", "24")  # 144 each: nothing to take
    assert not registers(less)
    assert not registers(less.replace("nvvm.setmaxregister decrease 24", ""))


def test_registers_are_set_by_whole_warpgroups():
    body = "%low = arith.cmpi ult, %t, %c64 : i32\nscf.if %low { nvvm.setmaxregister decrease 40 }\n"
    assert registers(body) == {("divergent warp", SET)}
    assert registers("nvvm.setmaxregister decrease 40\n", SIZES.replace("384", "64"), threads=64) == {
        ("divergent warp", SET)
    }


# -- launches that depend on each other

MEMORY = "memref<64xf32>"


def gpu_module(name: str, body: str) -> str:
    """A gpu.module with @{name}_double, which is launched first: y = 2 x, and @{name}_add: z = y + w."""
    both = f"%x: {MEMORY}, %w: {MEMORY}, %y: {MEMORY}, %z: {MEMORY}"
    head = "kernel attributes {known_block_size = array<i32: 64, 1, 1>} {\n  %t = gpu.thread_id x\n"
    first = f"""  %a = memref.load %x[%t] : {MEMORY}
  %b = arith.addf %a, %a : f32
  memref.store %b, %y[%t] : {MEMORY}
  nvvm.griddepcontrol launch_dependents
  gpu.return"""
    launches = "".join(
        f"gpu.launch_func @m::@{name}_{k} blocks in (%one, %one, %one) threads in (%n, %one, %one) "
        f"args(%x : {MEMORY}, %w : {MEMORY}, %y : {MEMORY}, %z : {MEMORY})\n"
        for k in ("double", "add")
    )
    return f"""module attributes {{gpu.container_module}} {{ gpu.module @m {{
gpu.func @{name}_double({both}) {head}{first} }}
gpu.func @{name}_add({both}) {head}
{body}
  gpu.return }} }}
func.func @{name}({both}) {{
  %one = arith.constant 1 : index
  %n = arith.constant 64 : index
  {launches}
  return }} }}"""


READ_W = f"%w0 = memref.load %w[%t] : {MEMORY}\n"
WAITS = "nvvm.griddepcontrol wait\n"
READ_Y = f"%y0 = memref.load %y[%t] : {MEMORY}\n"
WRITE_Z = f"%s = arith.addf %y0, %w0 : f32\nmemref.store %s, %z[%t] : {MEMORY}\n"
EARLY_READ, EARLY_WRITE = "read before griddepcontrol.wait", "write before griddepcontrol.wait"


def dependent(body: str) -> set[tuple[str, str]]:
    text = gpu_module("k", body)
    x, w = (np.random.default_rng(i).standard_normal(64).astype(np.float32) for i in range(2))
    y, z = np.zeros(64, np.float32), np.zeros(64, np.float32)
    report = DeviceKernel(mlir.parse(text)).run([x, w, y, z])
    lines = text.split("\n")
    for f in report.findings:
        assert f.op in lines[int(f.location.split(":")[-2]) - 1]
    if report.ok:
        np.testing.assert_array_equal(z, 2 * x + w)
    return {(f.kind, f.op) for f in report.findings}


def test_what_an_earlier_launch_writes_is_read_behind_the_wait():
    assert not dependent(READ_W + WAITS + READ_Y + WRITE_Z)  # what no launch writes may be fetched before
    assert dependent(READ_W + READ_Y + WAITS + WRITE_Z) == {(EARLY_READ, "memref.load")}
    assert not dependent(READ_W + READ_Y + WRITE_Z)  # which does not wait is launched when the other one has ended


def test_what_an_earlier_launch_reads_is_written_behind_the_wait():
    clear = f"memref.store %w0, %z[%t] : {MEMORY}\n"
    assert not dependent(READ_W + WAITS + clear + READ_Y + WRITE_Z)
    assert dependent(READ_W + clear + WAITS + READ_Y + WRITE_Z) == {(EARLY_WRITE, "memref.store")}


def test_one_thread_waits_for_the_others_if_they_meet():
    one = f"%c0 = arith.constant 0 : index\n%first = arith.cmpi eq, %t, %c0 : index\nscf.if %first {{ {WAITS} }}\n"
    both = {(EARLY_READ, "memref.load"), (EARLY_WRITE, "memref.store")}
    assert dependent(READ_W + one + READ_Y + WRITE_Z) == both
    assert not dependent(READ_W + one + "gpu.barrier\n" + READ_Y + WRITE_Z)
    assert dependent(READ_W + "gpu.barrier\n" + one + READ_Y + WRITE_Z) == both


T = "tensor<64xf32>"


def chained(prefetch: str) -> set[tuple[str, str]]:
    """Two kernels of a model, each with one launch: b = a + w, c = b + w, where the second fetches something early."""
    parts = [f"""func.func private @first({T}, {T}) -> {T}
      func.func private @second({T}, {T}) -> {T}
      func.func @main(%a: {T}, %w: {T}) -> {T} {{
        %b = call @first(%a, %w) : ({T}, {T}) -> {T}
        %c = call @second(%b, %w) : ({T}, {T}) -> {T}
        return %c : {T} }}"""]  # fmt: skip
    for name, early in (("first", "%x"), ("second", prefetch)):
        names = f"%x: {MEMORY}, %w: {MEMORY}, %z: {MEMORY}"
        late = "%w" if early == "%x" else "%x"
        parts.append(f"""module attributes {{gpu.container_module}} {{ gpu.module @m {{
gpu.func @{name}_gpu({names}) kernel attributes {{known_block_size = array<i32: 64, 1, 1>}} {{
  %t = gpu.thread_id x
  %p = memref.load {early}[%t] : {MEMORY}
  nvvm.griddepcontrol wait
  %q = memref.load {late}[%t] : {MEMORY}
  %s = arith.addf %p, %q : f32
  memref.store %s, %z[%t] : {MEMORY}
  gpu.return }} }}
func.func @{name}({names}) {{
  %one = arith.constant 1 : index
  %n = arith.constant 64 : index
  gpu.launch_func @m::@{name}_gpu blocks in (%one, %one, %one) threads in (%n, %one, %one)
    args(%x : {MEMORY}, %w : {MEMORY}, %z : {MEMORY})
  return }} }}""")
    model = DeviceModel.parse("\n// -----\n".join(parts))
    a, w = ints(64).astype(np.float32), ints(64).astype(np.float32)
    (c,), report = model.run([a, w])
    np.testing.assert_array_equal(c, a + 2 * w)
    return {(f.kind, f.op) for f in report.findings}


def test_weights_of_a_model_may_be_fetched_before_the_wait_and_its_activations_not():
    assert not chained("%w")
    assert chained("%x") == {(EARLY_READ, "memref.load")}
