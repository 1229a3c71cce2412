"""Tensor maps of a launch's buffers: what tensor copies read and write through them counts as the buffer's."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.launch import DeviceKernel
from mlirc.device.report import Report
from support.kernels.tensor_maps import CASES, MAP, S, Twice

CASE = CASES["odd rows"]
X, Z = "memref<13x24xf32>", "memref<4x128xf32>"
LOAD = "nvvm.cp.async.bulk.tensor.shared.cluster.global"
STORE = "nvvm.cp.async.bulk.tensor.global.shared.cta"


def run(text: str, case: Twice = CASE, **options) -> tuple[Report, list[np.ndarray]]:
    """Runs the kernel on inputs of its own; returns the report, and y and z."""
    (x,) = case.inputs(1)
    results = [np.zeros_like(r) for r in case.right(x)]
    return DeviceKernel(mlir.parse(text), inputs=1, count=True).run([x, *results], **options), results


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_right_kernels_are_right(name, seed):
    case = CASES[name]
    report, results = run(case.kernel(), case, seed=seed)
    assert not report.findings, report
    for mine, right in zip(results, case.right(*case.inputs(1)), strict=True):
        np.testing.assert_array_equal(mine, right)
    counters = report.counters["twice_0"]
    assert counters["global tma requests"] == 2 * len(results[1])
    assert counters["global tma bytes"] == 2 * results[0].nbytes  # what is outside of the array is not touched


def with_other(text: str, line: str, body: str, other: str = "y") -> str:
    """The kernel with one more argument, %other, and something in front of a line."""
    text = text.replace(f"%to: {MAP}) kernel", f"%to: {MAP}, %other: {X}) kernel")
    text = text.replace("%to : !llvm.ptr)", f"%to : !llvm.ptr, %{other} : {X})")
    assert line in text
    return text.replace(line, f"{body}\n{line}", 1)


TEXT = CASE.kernel()
PUT = f"memref.store %one, %other[%b, %t] : {X}"
ONE = "%one = arith.constant 1.0 : f32\n%few = arith.constant 24 : index\n%in = arith.cmpi ult, %t, %few : index\n"
WORKSPACE = f"%w = memref.alloc() : {X}\n    %one ="
OF_W = TEXT.replace('%from = "mlirc.tensor_map"(%x)', '%from = "mlirc.tensor_map"(%w)').replace("%one =", WORKSPACE, 1)
LAST = "nvvm.cp.async.bulk.wait_group 0"
THREADS = "scf.for %i = %t"


def puts(condition: str = "%in", fence: str = "") -> str:
    return f"{ONE} scf.if {condition} {{ {PUT} }} {fence}"


WRONG = {
    "overwritten input": TEXT.replace('%to = "mlirc.tensor_map"(%y)', '%to = "mlirc.tensor_map"(%x)'),
    "unwritten result": TEXT.replace("%grid = arith.constant 4", "%grid = arith.constant 3"),
    "race between blocks": TEXT.replace(f"{STORE} %to, %s, box[%i1, %i0]", f"{STORE} %to, %s, box[%w0, %w0]"),
    "race between blocks, by threads": with_other(TEXT, THREADS, f"{ONE} memref.store %one, %other[%c0, %t] : {X}"),
    "reads what a copy is writing": with_other(
        TEXT, LAST, f"%old = memref.load %other[%o0, %o1] : {X}\nmemref.store %old, %z[%b, %c0] : {Z}"
    ),
    "no fence before a copy reads": with_other(OF_W, "%token =", puts("%first"), "w"),
    "reads what nobody wrote": OF_W,
}
KINDS = {
    "race between blocks, by threads": {"race between blocks"},
    "reads what a copy is writing": {"unfinished copy"},
    "reads what nobody wrote": {"undefined value", "uninitialized read"},
    "no fence before a copy reads": {"missing proxy fence"},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name):
    report, _ = run(WRONG[name])
    assert KINDS.get(name, {name}) <= report.kinds(), report


SMALL = Twice((3, 8), (4, 8))
FILL = f"""{ONE} %k = arith.constant 8 : index
      scf.if %in {{
        %row = arith.divui %t, %k : index
        %column = arith.remui %t, %k : index
        memref.store %one, %other[%row, %column] : memref<3x8xf32>
      }}"""
FENCE = "nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.global>}\n"


@pytest.mark.parametrize(("behind", "kinds"), [
    (f"{FENCE} gpu.barrier", set()), (FENCE, {"race"}), ("gpu.barrier", {"missing proxy fence"}),
])  # fmt: skip
def test_threads_hand_over_to_a_tensor_copy_by_a_fence_and_a_barrier(behind, kinds):
    text = SMALL.kernel().replace('%from = "mlirc.tensor_map"(%x)', '%from = "mlirc.tensor_map"(%w)')
    text = text.replace("%one =", "%w = memref.alloc() : memref<3x8xf32>\n    %one =", 1)
    text = text.replace(f"%to: {MAP}) kernel", f"%to: {MAP}, %other: memref<3x8xf32>) kernel")
    text = text.replace("%to : !llvm.ptr)", "%to : !llvm.ptr, %w : memref<3x8xf32>)")
    report, (y, z) = run(text.replace("gpu.barrier", f"{FILL} {behind}\n gpu.barrier" if kinds != {"race"} else
                                      f"gpu.barrier\n {FILL} {behind}", 1), SMALL)  # fmt: skip
    assert report.kinds() == kinds, report
    if not kinds:
        assert (y == 2).all() and (z[0, :24] == 1).all() and not z[0, 24:].any()


def test_a_later_launch_reads_what_tensor_copies_wrote():
    """x to w, w to y, by two launches of one kernel: the second one waits for the first."""
    text = TEXT.replace("%one =", WORKSPACE, 1)
    start = text.index("gpu.launch_func")
    launch = text[start : text.index("return", start)]
    maps = "".join(
        f'%{name} = "mlirc.tensor_map"(%w) {{box = array<i64: 8, 16>, swizzle = 0 : i64}} : ({X}) -> !llvm.ptr\n'
        for name in ("into", "out")
    )
    both = maps + launch.replace("%to :", "%into :") + launch.replace("%from :", "%out :")
    report, (y, _) = run(text.replace(launch, both, 1))
    assert not report.findings, report
    np.testing.assert_array_equal(y, 4 * CASE.inputs(1)[0])


def test_a_map_that_is_no_multiple_of_64_bytes_is_found():
    report, _ = run(TEXT.replace(f"%to: {MAP}) kernel", f"%to: {MAP.replace('align = 64', 'align = 16')}) kernel"))
    assert report.kinds() == {"misaligned"}


def test_some_blocks_write_their_part():
    report, (y, _) = run(TEXT, blocks=[1, 2])
    assert not report.findings, report
    right = np.zeros_like(y)
    for rows, columns in ((slice(0, 8), slice(16, 24)), (slice(8, 13), slice(0, 16))):
        right[rows, columns] = 2 * CASE.inputs(1)[0][rows, columns]
    np.testing.assert_array_equal(y, right)


REDUCE = (
    "nvvm.cp.async.bulk.tensor.reduce %to, %s, box[%i1, %i0] {redKind = #nvvm.tma_redux_kind<add>} : !llvm.ptr, " + S
)
COMMIT = "nvvm.cp.async.bulk.commit.group\n"


@pytest.mark.parametrize(("between", "kinds"), [
    (f"{COMMIT}{LAST}\n", set()), (COMMIT, {"unfinished copy"}), (f"{COMMIT}{LAST} {{read}}\n", {"unfinished copy"}),
])  # fmt: skip
def test_sums_by_tensor_copies_come_behind_what_they_add_to(between, kinds):
    text = SMALL.kernel()
    stored = f"{STORE} %to, %s, box[%i1, %i0] : !llvm.ptr, {S}\n"
    assert stored in text
    report, (y, _) = run(text.replace(stored, f"{stored}{between}{REDUCE}\n"), SMALL)
    assert report.kinds() == kinds, report
    if not kinds:
        np.testing.assert_array_equal(y, 4 * SMALL.inputs(1)[0])


def test_sums_onto_what_nobody_wrote_are_undefined():
    text = SMALL.kernel().replace(f"{STORE} %to, %s, box[%i1, %i0] : !llvm.ptr, {S}\n", f"{REDUCE}\n")
    report, _ = run(text, SMALL)
    assert "undefined value" in report.kinds(), report
