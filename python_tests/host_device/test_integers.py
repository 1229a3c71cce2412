"""Integer arithmetic is PTX's: an index has 32 bits, and what has no meaning is reported where anything depends on it."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel

COUNT = 64


def text(body: str, t: str, out: str) -> str:
    """64 threads with %x and %y of type t from memory; %r of type `out` is stored."""
    types = f"%a: memref<{COUNT}x{t}>, %b: memref<{COUNT}x{t}>, %c: memref<{COUNT}x{out}>"
    return f"""
module attributes {{gpu.container_module}} {{
  gpu.module @k_gpu {{
    gpu.func @k_0({types}) kernel attributes {{known_block_size = array<i32: {COUNT}, 1, 1>}} {{
      %t = gpu.thread_id x
      %x = memref.load %a[%t] : memref<{COUNT}x{t}>
      %y = memref.load %b[%t] : memref<{COUNT}x{t}>
{body}
      memref.store %r, %c[%t] : memref<{COUNT}x{out}>
      gpu.return
    }}
  }}
  func.func @k({types}) {{
    %c1 = arith.constant 1 : index
    %c64 = arith.constant {COUNT} : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%c1, %c1, %c1) threads in (%c64, %c1, %c1)
      args(%a : memref<{COUNT}x{t}>, %b : memref<{COUNT}x{t}>, %c : memref<{COUNT}x{out}>)
    return
  }}
}}
"""


DTYPES = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
}


def run(body: str, t: str, x, y, out: str = ""):
    out = out or t
    args = [np.full(COUNT, v).astype(DTYPES[t]) if np.ndim(v) == 0 else np.asarray(v, DTYPES[t]) for v in (x, y)]
    result = np.zeros(COUNT, DTYPES[out])
    report = DeviceKernel(mlir.parse(text(body, t, out)), inputs=2).run([*args, result])
    return report, result


INDEX = """
      %i = arith.index_cast %x : i32 to index
      %j = arith.index_cast %y : i32 to index
      {op}
      %r = arith.index_cast{u} %k : index to {out}"""
# The operation, x, y, what it is in 32 bits, and whether that is a finding.
NARROW = [
    ("%k = arith.addi %i, %j : index", 2**31 - 1, 1, -(2**31), True),
    ("%k = arith.subi %i, %j : index", -(2**31), 1, 2**31 - 1, True),
    ("%k = arith.muli %i, %j : index", 1 << 20, 1 << 13, 0, True),
    ("%k = arith.muli %i, %j : index", 1 << 20, 1 << 10, 1 << 30, False),
    ("%k = arith.shli %i, %j : index", 1, 31, -(2**31), True),
    ("%k = affine.apply affine_map<()[s0, s1] -> (s0 * 65536 + s1)>()[%i, %j]", 1 << 16, 5, 5, True),
    ("%k = arith.divui %i, %j : index", -1, 7, (2**32 - 1) // 7, False),
    ("%k = arith.remui %i, %j : index", -1, 7, (2**32 - 1) % 7, False),
    ("%k = arith.shrui %i, %j : index", -1, 4, (2**32 - 1) >> 4, False),
    ("%k = arith.divsi %i, %j : index", -9, 2, -4, False),
    ("%k = math.ctlz %i : index", 5, 0, 29, False),
    ("%k = math.ctpop %i : index", -1, 0, 32, False),
    (
        "%v = vector.from_elements %i, %j : vector<2xindex>\n      %w = arith.muli %v, %v : vector<2xindex>\n"
        "      %k = vector.extract %w[0] : index from vector<2xindex>",
        1 << 16,
        2,
        0,
        True,
    ),
]


@pytest.mark.parametrize("op, x, y, expected, reported", NARROW)
def test_an_index_has_32_bits(op, x, y, expected, reported):
    report, result = run(INDEX.format(op=op, u="", out="i64"), "i32", x, y, "i64")
    assert set(result) == {expected}
    assert ("undefined arithmetic" in report.kinds()) == reported, report.findings
    _, result = run(INDEX.format(op=op, u="ui", out="i64"), "i32", x, y, "i64")
    assert set(result) == {expected % 2**32}


def test_an_index_that_is_an_address_has_64_bits():
    """As the back end gives it, where a kernel takes the address of global memory as an index."""
    op = "%p = memref.extract_aligned_pointer_as_index %a : memref<64xi32> -> index\n      %k = arith.addi %i, %j : index"
    report, result = run(INDEX.format(op=op, u="", out="i64"), "i32", 2**31 - 1, 1, "i64")
    assert report.ok and set(result) == {2**31}, report.findings


def test_a_word_too_long_for_an_index_is_reported():
    body = "%k = arith.index_cast %x : i64 to index\n      %r = arith.index_cast %k : index to i64"
    report, result = run(body, "i64", 2**32 + 5, 0)
    assert report.kinds() >= {"undefined arithmetic"} and set(result) == {5}
    report, result = run(body, "i64", -(2**31), 0)
    assert report.ok and set(result) == {-(2**31)}


BAD = [
    ("%r = arith.shli %x, %y : T", "i32", 1, 32), ("%r = arith.shrui %x, %y : T", "i64", 1, 64),
    ("%r = arith.shrsi %x, %y : T", "i16", 1, -1), ("%r = arith.divsi %x, %y : T", "i32", 1, 0),
    ("%r = arith.remui %x, %y : T", "i64", 1, 0), ("%r = arith.ceildivsi %x, %y : T", "i32", 1, 0),
    ("%r = arith.floordivsi %x, %y : T", "i32", 1, 0), ("%r = arith.divui %x, %y : T", "i8", 1, 0),
    ("%r = arith.divsi %x, %y : T", "i32", -(2**31), -1), ("%r = arith.remsi %x, %y : T", "i64", -(2**63), -1),
    ("%r = arith.addi %x, %y overflow<nsw> : T", "i32", 2**31 - 1, 1),
    ("%r = arith.addi %x, %y overflow<nuw> : T", "i32", -1, 1),
    ("%r = arith.addi %x, %y overflow<nsw, nuw> : T", "i64", 2**63 - 1, 1),
    ("%r = arith.subi %x, %y overflow<nuw> : T", "i32", 1, 2),
    ("%r = arith.subi %x, %y overflow<nsw> : T", "i8", -128, 1),
    ("%r = arith.muli %x, %y overflow<nsw> : T", "i64", 2**32, 2**31),
    ("%r = arith.muli %x, %y overflow<nuw> : T", "i16", 256, 256),
    ("%r = arith.shli %x, %y overflow<nsw> : T", "i32", 3, 30),
]  # fmt: skip
GOOD = [
    ("%r = arith.shli %x, %y : T", "i32", 1, 31), ("%r = arith.shrsi %x, %y : T", "i64", -8, 63),
    ("%r = arith.divsi %x, %y : T", "i32", -(2**31), 1), ("%r = arith.divui %x, %y : T", "i32", -(2**31), -1),
    ("%r = arith.addi %x, %y : T", "i32", 2**31 - 1, 1), ("%r = arith.muli %x, %y : T", "i64", 2**62, 2),
    ("%r = arith.addi %x, %y overflow<nsw> : T", "i32", -(2**31), 2**31 - 1),
    ("%r = arith.addi %x, %y overflow<nuw> : T", "i64", 2**63 - 1, 1),
    ("%r = arith.subi %x, %y overflow<nuw> : T", "i32", -1, -2),
    ("%r = arith.muli %x, %y overflow<nsw> : T", "i64", -(2**32), 2**31),
    ("%r = arith.muli %x, %y overflow<nuw> : T", "i8", 15, 17),
    ("%r = arith.shli %x, %y overflow<nsw> : T", "i32", -1, 31),
]  # fmt: skip


@pytest.mark.parametrize("op, t, x, y", BAD)
def test_arithmetic_without_a_meaning_is_reported(op, t, x, y):
    some = np.arange(COUNT) == 3  # one thread does it
    fine = [np.ones(COUNT, DTYPES[t]), np.ones(COUNT, DTYPES[t])]
    for bad in (some, ~some):
        xs, ys = (np.where(bad, DTYPES[t](v), one) for v, one in zip((x, y), fine, strict=True))
        report, _ = run(op.replace("T", t), t, xs, ys)
        found = [f for f in report.findings if f.kind == "undefined arithmetic"]
        name = op.split()[2]  # ceildivsi and floordivsi are expanded
        assert found and all(f.op == name or "div" in name for f in found), report.findings
        assert f"thread {int(np.flatnonzero(bad)[0])} " in found[0].message


@pytest.mark.parametrize("op, t, x, y", GOOD)
def test_other_arithmetic_is_not(op, t, x, y):
    report, _ = run(op.replace("T", t), t, x, y)
    assert report.ok, report.findings


CAST = "      {}\n      %r = arith.trunci %w : i64 to i32"
BY_INDEX = """%i = arith.index_cast %x : i32 to index
      %j = arith.index_cast %y : i32 to index
      {}
      %r = arith.index_cast %k : index to i32"""
# What a flag rules out: the operation, its type, operands with which it is fine, operands with which it is not.
FLAGS = [
    ("%r = arith.shrsi %x, %y exact : T", "i32", (-8, 3), (-8, 4)),
    ("%r = arith.shrui %x, %y exact : T", "i8", (-128, 7), (-127, 1)),
    ("%r = arith.shrui %x, %y exact : T", "i64", (2**40, 40), (2**40 + 1, 2)),
    ("%r = arith.divsi %x, %y exact : T", "i32", (-9, 3), (-9, 2)),
    ("%r = arith.divui %x, %y exact : T", "i16", (-2, 2), (-1, 2)),
    (BY_INDEX.format("%k = arith.shrui %i, %j exact : index"), "i32", (-4, 2), (-4, 3)),
    (BY_INDEX.format("%k = arith.divsi %i, %j exact : index"), "i32", (12, -4), (12, 5)),
    (BY_INDEX.format("%k = arith.subi %i, %j overflow<nuw> : index"), "i32", (-1, 5), (4, 5)),
    (BY_INDEX.format("%k = arith.addi %i, %j overflow<nuw> : index"), "i32", (-9, 5), (-4, 5)),
    (CAST.format("%w = arith.extui %x nneg : i32 to i64"), "i32", (2**31 - 1, 0), (-1, 0)),
    ("%i = arith.index_castui %x nneg : i32 to index\n      %r = arith.index_cast %i : index to i32", "i32", (7, 0), (-7, 0)),
    ("%f = arith.uitofp %x nneg : i32 to f32\n      %r = arith.bitcast %f : f32 to i32", "i32", (7, 0), (-7, 0)),
    ("%w = arith.trunci %x overflow<nsw> : i32 to i8\n      %r = arith.extsi %w : i8 to i32", "i32", (-128, 0), (128, 0)),
    ("%w = arith.trunci %x overflow<nuw> : i32 to i8\n      %r = arith.extui %w : i8 to i32", "i32", (255, 0), (-1, 0)),
    ("%w = arith.trunci %x overflow<nuw> : i32 to i1\n      %r = arith.extui %w : i1 to i32", "i32", (1, 0), (-1, 0)),
    ("%r = arith.shli %x, %y overflow<nuw> : T", "i32", (-1, 0), (-1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("op, t, fine, bad", FLAGS)
def test_what_a_flag_rules_out_is_reported(op, t, fine, bad):
    one = np.arange(COUNT) == 5  # a thread
    xs, ys = (np.where(one, DTYPES[t](b), DTYPES[t](f)) for f, b in zip(fine, bad, strict=True))
    report, _ = run(op.replace(": T", f": {t}"), t, xs, ys)
    found = [f.message for f in report.findings if f.kind == "undefined arithmetic"]
    assert found and "thread 5 " in found[0] and "flag" in found[0], report.findings
    report, _ = run(op.replace(": T", f": {t}"), t, *fine)
    assert report.ok, report.findings


HARMLESS = {
    "selected away": """
      %zero = arith.constant 0 : i32
      %none = arith.cmpi eq, %y, %zero : i32
      %q = arith.divsi %x, %y : i32
      %r = arith.select %none, %zero, %q : i32""",
    "not used": "%q = arith.divsi %x, %y : i32\n      %r = arith.addi %x, %x : i32",
    "in a branch that no thread takes": """
      %zero = arith.constant 0 : i32
      %some = arith.cmpi ne, %y, %zero : i32
      %r = scf.if %some -> i32 {
        %q = arith.divsi %x, %y : i32
        scf.yield %q : i32
      } else {
        scf.yield %x : i32
      }""",
}


@pytest.mark.parametrize("how", HARMLESS)
def test_what_nothing_depends_on_is_no_finding(how):
    report, _ = run(HARMLESS[how], "i32", np.arange(COUNT), np.arange(COUNT) % 2)
    assert report.ok, report.findings


LEAST = {"i32": -(2**31), "i64": -(2**63)}
FROM_FLOATS = [
    ("f32", "i32", {-(2.0**31): LEAST["i32"], -0.5: 0, 2.0**31: 2**31 - 1, -np.inf: LEAST["i32"], np.nan: 0}),
    ("f32", "i8", {-128.9: -128, 127.9: 127, 300.0: 44, -129.0: 127, 3e9: -1, np.nan: 0}),
    ("f16", "i64", {65504.0: 65504, np.inf: 2**63 - 1, -np.inf: LEAST["i64"], np.nan: LEAST["i64"]}),
    ("f64", "i32", {-1e300: LEAST["i32"], 2147483646.9: 2147483646, np.nan: LEAST["i32"]}),
]  # fmt: skip


@pytest.mark.parametrize("t, out, values", FROM_FLOATS)
def test_floats_that_an_integer_cannot_hold_saturate(t, out, values):
    """As cvt.rzi has it; fewer than 32 bits are the last ones of 32."""
    for value, wanted in values.items():
        report, result = run(f"%r = arith.fptosi %x : {t} to {out}", t, value, 0, out)
        assert report.ok and set(result) == {wanted}, (value, result, report.findings)


def test_functions_that_select_such_conversions_away_are_right():
    """The sine of infinity goes through a quadrant that is no integer."""
    report, result = run("%r = math.sin %x : f32", "f32", np.inf, 0)
    assert report.ok and np.isnan(result).all(), report.findings
