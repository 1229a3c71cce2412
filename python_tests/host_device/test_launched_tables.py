"""Tables of pointers that a launch takes by value, from the `gpu` level down."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mlirc
from mlirc import mlir
from mlirc.backend.ptx import compile_kernel
from mlirc.device.launch import DeviceKernel
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.targets import get_target
from support.kernels.pointer_tables import TABLE, inputs, kernel, model, right
from support.plans import changed

TARGET = get_target("sm_90a")


def run(text: str, xs: list[np.ndarray], **options):
    ys = [np.zeros_like(x) for x in xs]
    return DeviceKernel(mlir.parse(text), inputs=len(xs)).run([*xs, *ys], **options), ys


@pytest.mark.parametrize("seed", [0, 1])
def test_the_kernel_on_the_host_device(seed):
    report, ys = run(kernel(), inputs(), seed=seed)
    assert report.ok, report
    for mine, wanted in zip(ys, right(inputs()), strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("%n1 = arith.constant 64", "%n1 = arith.constant 65", "out of bounds"),
        ("%n2 = arith.constant 33", "%n2 = arith.constant 32", "unwritten result"),
        ("llvm.getelementptr %to[%i]", "llvm.getelementptr %from[%i]", "overwritten input"),
        ("llvm.getelementptr %y[%group]", "llvm.getelementptr %y[%k1]", "race between blocks"),
        ("llvm.getelementptr %x[%group]", "llvm.getelementptr %x[%by]", "out of bounds"),
    ],
)
def test_mistakes_are_found(old, new, kind):
    text = kernel()
    assert old in text
    if "%by" in new:  # a pointer behind the last one
        text = text.replace("%by = arith.addi %group, %k2 : i64\n", "").replace(
            "%px =", "%by = arith.addi %group, %k2 : i64\n%px ="
        )
    report, _ = run(text.replace(old, new), inputs())
    assert kind in {f.kind for f in report.findings}, report


def test_threads_of_a_block_choose_alike():
    report, _ = run(kernel(chosen="%thread"), inputs())
    assert not report.ok


def test_a_kernel_takes_its_tables_by_value():
    compiled = compile_kernel(mlir.parse(kernel()), TARGET)
    (launch,) = compiled.launches
    assert launch.args == [0, 3] and launch.tables == {0: [(1, 0), (2, 0)], 1: [(4, 0), (5, 0)]}
    assert compiled.ptx.count(".param .align 8 .b8 grouped_0_param_") == 2
    with pytest.raises(MlircError, match="argument 1 of grouped_0 is a table of 3 pointers: it needs the attributes"):
        compile_kernel(mlir.parse(kernel().replace(f"%y: {TABLE}", "%y: !llvm.ptr")), TARGET)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> tuple[Compilation, Path]:
    return changed.compiled(model(), tmp_path_factory.mktemp("tables"))


def test_the_plan_and_its_run(compiled):
    job, path = compiled
    (step,) = job.plan.steps
    assert [r.index for r in step.tables[0]] == [1, 2] and {r.space for r in step.tables[1]} == {"output"}
    with mlirc.load(path, device="host") as loaded:
        loaded.execute_ptx = True
        for mine, wanted in zip(loaded(*inputs(3)), right(inputs(3)), strict=True):
            np.testing.assert_array_equal(mine, wanted)
        assert "the whole plan executed in its arena" in loaded.summary()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s["tables"][0][1].reverse(), "holds input 'x2', but must hold input 'x1'|has 132 bytes, but 256"),
        (lambda s: s["tables"][1][1].reverse(), "has 132 bytes, but 256 at the gpu level"),
        (lambda s: s["tables"][0][1].pop(), "takes as argument 0 a table of 3 pointers, not a table of 2"),
        (lambda s: s["tables"].pop(), "no step writes all of output 'y1'"),
        (lambda s: s["tables"][1][1].__setitem__(0, s["tables"][0][1][0]), "writes argument|no step writes all of output"),
    ],
)  # fmt: skip
def test_a_changed_plan_is_refused_or_found(compiled, change, why):
    changed.assert_refused_or_found(compiled[0], change, why)
