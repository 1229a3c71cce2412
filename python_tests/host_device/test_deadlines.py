"""Loops end by time, or at once where they never will; nothing that the host device does goes on past its deadline; and
no nesting, length or size of a kernel ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlirc.device import run_kernel
from mlirc.errors import MlircError
from support.kernels.memrefs import X, launch

STORE = "memref.store %one, %y[%t] : memref<64xf32>"


def report_of(body: str, seconds: float = 60.0, arguments: str = X, args: list | None = None, **options):
    args = args or [np.zeros(64, np.float32) for _ in range(2)]
    module = launch("%one = arith.constant 1.0 : f32\n" + body, arguments, **options)
    return run_kernel(module, args, seconds=seconds)


def counting(
    end: int, step: int = 1, first: int = 0, predicate: str = "slt", kind: str = "i32", body: str = STORE
) -> str:
    """A loop with a counter, as `scf.while`."""
    return f"""
      %first = arith.constant {first} : {kind}
      %far = arith.constant {end} : {kind}
      %step = arith.constant {step} : {kind}
      %r = scf.while (%i = %first) : ({kind}) -> {kind} {{
        %go = arith.cmpi {predicate}, %i, %far : {kind}
        scf.condition(%go) %i : {kind}
      }} do {{
      ^bb0(%i: {kind}):
        {body}
        %j = arith.addi %i, %step : {kind}
        scf.yield %j : {kind}
      }}"""


AFTER = """
  %far = arith.constant 9000000000 : index
  %r = scf.while (%i = %c0) : (index) -> index {
    %j = arith.addi %c1, %i : index
    %go = arith.cmpi ult, %j, %far : index
    scf.condition(%go) %j : index
  } do {
  ^bb0(%j: index):
    %k = arith.subi %j, %c0 : index
    scf.yield %k : index
  }"""


@pytest.mark.parametrize(
    "body",
    [counting(66_000, body=""), counting(300), counting(5, -1, 300, "sgt"), counting(0, 1, 20, "slt"),
     counting(0, 1, 120, "sgt", "i8"), counting(7, 1, 0, "ne"), STORE, AFTER.replace("9000000000", "40")],
    ids=["long", "short", "down", "no turn", "comes round", "until equal", "no loop", "condition behind"],
)  # fmt: skip
def test_loops_that_end(body):
    report = report_of(body + "\n" + STORE)
    assert report.ok, report.findings


BY_MEMORY = """
  scf.while : () -> () {
    %v = memref.load %x[%t] : memref<64xf32>
    %go = arith.cmpf oeq, %v, %v : f32
    scf.condition(%go)
  } do {
    %w = memref.load %x[%c0] : memref<64xf32>
    scf.yield
  }"""
CIRCLE = """
  %c7 = arith.constant 7 : index
  %r = scf.while (%i = %t) : (index) -> index {
    %go = arith.cmpi ne, %i, %c63 : index
    scf.condition(%go) %i : index
  } do {
  ^bb0(%i: index):
    memref.store %one, %y[%t] : memref<64xf32>
    %j = arith.addi %i, %c1 : index
    %k = arith.remui %j, %c7 : index
    scf.yield %k : index
  }"""
SWAPPING_NOTHING = """
  %r:2 = scf.while (%a = %c0, %n = %c0) : (index, index) -> (index, index) {
    %go = arith.cmpi eq, %a, %c0 : index
    scf.condition(%go) %n, %a : index, index
  } do {
  ^bb0(%n: index, %a: index):
    memref.store %one, %y[%t] : memref<64xf32>
    %k = arith.muli %a, %c1 : index
    %m = arith.addi %n, %c1 : index
    scf.yield %k, %m : index, index
  }"""
FOR = "scf.for %i = %c0 to %far step %c1 {\n memref.store %one, %y[%t] : memref<64xf32>\n}"


@pytest.mark.parametrize(
    "body, words",
    [
        (counting(5, 0), "what its condition depends on comes back to what it was"),
        (counting(5, -1), "its counter goes away from its end"),
        (counting(2_000_000_000), "2e+09 turns, for which 60 s (--seconds) are not enough"),
        (counting(9_000_000_000_000, 1, 0, "ult", "i64"), "9e+12 turns"),
        (BY_MEMORY, "what its condition depends on comes back to what it was"),
        (AFTER, "stays in this loop for 9e+09 turns"),
        (AFTER.replace("%k = arith.subi %j, %c0", "%k = arith.subi %j, %c32").replace("ult", "slt"), "its counter goes away from its end"),
        (CIRCLE, "what its condition depends on comes back to what it was"),
        (CIRCLE.replace("= %t)", "= %c63)").replace("ne, %i, %c63", "ult, %i, %c64"), "comes back to what it was"),
        (SWAPPING_NOTHING, "what its condition depends on comes back to what it was"),
        (counting(5, 1).replace("%step = arith.constant 1 : i32", "%odd = arith.remui %t, %c32 : index\n"
                                "%step = arith.index_cast %odd : index to i32"), "block 0 thread 0 never leaves"),
        (f"%far = arith.constant 2000000000 : index\n{FOR}", "would run from 0 to 2000000000 by 1: 2e+09 turns"),
        (f"%far = arith.addi %t, %big : index\n{FOR}".replace("%far", "%big = arith.constant 2000000000 : index\n%far", 1),
         "would run from 0 to 2000000000 by 1: 2e+09 turns"),
        ("%far = arith.constant 2147483647 : i32\n%z = arith.constant 0 : i32\n%s = arith.constant 1073741824 : i32\n"
         f"scf.for %i = %z to %far step %s : i32 {{\n{STORE}\n}}", "its counter, of 32 bits, overflows before the end"),
        (f"scf.for %i = %c0 to %c64 step %c0 {{\n{STORE}\n}}", "make the step a positive number"),
    ],
)  # fmt: skip
def test_loops_that_never_end_are_told_at_once(body, words):
    report = report_of(body)
    assert report.kinds() - {"unwritten result"} == {"endless loop"}
    assert words in report.findings[0].message


def test_a_loop_that_may_end_goes_on_until_its_time_is_over(ticking):
    body = counting(5_000_000, body=STORE.replace("%t", "%c0"))
    report = report_of(body, seconds=300, threads=1)
    assert report.kinds() == {"stopped"} and ticking() < 400


@pytest.mark.parametrize("nest", ["scf.if %yes {", "scf.for %i{} = %c0 to %c1 step %c1 {{"])
@pytest.mark.parametrize(
    "depth, words", [(150, ""), (501, "nests more than 500 regions"), (5000, "nests 500[0-9] regions")]
)
@pytest.mark.parametrize("inner", [STORE, "gpu.barrier"])
def test_deep_nesting_runs_or_is_an_error(nest, depth, words, inner):
    nested = "\n".join(nest.format(i) if "{}" in nest else nest for i in range(depth))
    body = f"%yes = arith.cmpi ult, %t, %c64 : index\n{nested}\n{inner}\n" + "}\n" * depth
    if words:
        with pytest.raises(MlircError, match=words):
            report_of(body)
    else:
        assert report_of(body).ok


def test_a_long_block_runs_and_is_stopped_in_time(ticking):
    ops = "\n".join(f"%v{i + 1} = arith.addf %v{i}, %one : vector<512xf32>".replace("%one", "%v0") for i in range(2000))
    body = f"%v0 = vector.broadcast %one : f32 to vector<512xf32>\n{ops}\n"
    body += "%e = vector.extract %v2000[0] : f32 from vector<512xf32>\nmemref.store %e, %y[%t] : memref<64xf32>"
    body = body.replace("vector.broadcast %one", "vector.broadcast %f").replace(
        "%v0 =", "%f = memref.load %x[%t] : memref<64xf32>\n%v0 =", 1
    )
    report = report_of(body)
    assert report.ok, report.findings
    report = report_of(body, seconds=10)
    assert "stopped" in report.kinds() and ticking() < 60


def test_a_constant_that_no_thread_can_hold_is_an_error():
    with pytest.raises(MlircError, match="vector<1000000xf32> is no value of a thread"):
        report_of("%v = arith.constant dense<1.0> : vector<1000000xf32>")


COPIES = {
    "whole": ("%x", "%y", "memref<6x10xf32>", "memref<6x10xf32>", (slice(None), slice(None))),
    "columns": ("%p", "%q", "memref<6x4xf32, strided<[10, 1], offset: 3>>", "memref<6x4xf32, strided<[10, 1], offset: 3>>",
                (slice(None), slice(3, 7))),
}  # fmt: skip


@pytest.mark.parametrize("source, target, a, b, window", COPIES.values(), ids=COPIES)
def test_memref_copy(source, target, a, b, window):
    body = "\n".join(
        f"%{new} = memref.subview %{old}[0, 3] [6, 4] [1, 1] : memref<6x10xf32> to {a}"
        for new, old in (("p", "x"), ("q", "y"))
        if source == "%p"
    )
    x, y = np.arange(60, dtype=np.float32).reshape(6, 10), np.zeros((6, 10), np.float32)
    arguments = "%x: memref<6x10xf32>, %y: memref<6x10xf32>"
    report = report_of(
        f"{body}\nmemref.copy {source}, {target} : {a} to {b}", arguments=arguments, args=[x, y], threads=1
    )
    assert report.kinds() <= {"unwritten result"} and (y[window] == x[window]).all()
    assert report.ok == (source == "%x")


def test_a_large_copy_runs_and_is_stopped_in_time(ticking):
    n = 4 << 20
    arguments = f"%x: memref<{n}xf32>, %y: memref<{n}xf32>"
    copy = f"memref.copy %x, %y : memref<{n}xf32> to memref<{n}xf32>"
    x, y = np.ones(n, np.float32), np.zeros(n, np.float32)
    report = report_of(copy, arguments=arguments, args=[x, y], threads=1)
    assert report.ok and (x == y).all()
    stopped = [report_of(copy, limit, arguments, [x, y], threads=1).findings[0] for limit in (2.5, 3.5, 4.5)]
    assert [(f.kind, f.op) for f in stopped] == [("stopped", "memref.copy")] * 3


NEVER = """func.func @k(%x: tensor<64xf32>) -> tensor<64xf32> {
  %c0 = arith.constant 0 : index
  %r = scf.while (%a = %x) : (tensor<64xf32>) -> tensor<64xf32> {
    %f = tensor.extract %a[%c0] : tensor<64xf32>
    %go = arith.cmpf oeq, %f, %f : f32
    scf.condition(%go) %a : tensor<64xf32>
  } do {
  ^bb0(%a: tensor<64xf32>):
    %f = tensor.extract %a[%c0] : tensor<64xf32>
    %n = tensor.insert %f into %a[%c0] : tensor<64xf32>
    scf.yield %n : tensor<64xf32>
  }
  return %r : tensor<64xf32>
}"""


def test_a_level_above_that_does_not_end_is_a_finding():
    """In a process of its own: what never ends keeps a processor busy until the process is gone."""
    code = f"""
import numpy as np
from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.device import run_kernel
from mlirc.device.reference import Reference
from mlirc.host.jit import HostFunction
from support.kernels.memrefs import X, launch

never = {NEVER!r}
right = "%v = memref.load %x[%t] : memref<64xf32>\\nmemref.store %v, %y[%t] : memref<64xf32>"
reference = Reference([("kernels", HostFunction(mlir.parse(never), "k"))], 1)
ones = [np.ones(64, np.float32), np.zeros(64, np.float32)]
print(*run_kernel(launch(right, X), ones, seconds=0.3, reference=reference).findings)
try:
    run_module(mlir.parse(never), ones[:1], "k", seconds=0.2)
except MlircError as e:
    print(e)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "stopped: gpu.func: level kernels, which says what is right, is still at work after 0.3 s" in done.stdout
    assert "'k' is still at work after 0.2 s: allow more (--seconds)" in done.stdout
