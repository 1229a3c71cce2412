"""Numbers that a launch takes by value, and grids that they decide, from the `gpu` level down."""

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
from mlirc.runtime.plan import Extent
from mlirc.targets import get_target
from support.kernels.scalars import FACTOR, MOST, PER_BLOCK, SIZE, kernel, model, right
from support.plans import changed

TARGET = get_target("sm_90a")
X = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> tuple[Compilation, Path]:
    return changed.compiled(model(), tmp_path_factory.mktemp("scalars"))


@pytest.mark.parametrize("n", [1, 8, 9, 32])
def test_the_kernel_on_the_host_device(n):
    y = np.zeros_like(X)
    given = [X, np.array(n, np.int32), np.array([0.5], np.float32)]
    report = DeviceKernel(mlir.parse(kernel()), inputs=3).run([*given, y])
    assert report.ok, report
    np.testing.assert_array_equal(y, right(X, n, 0.5))


def test_what_the_launch_says():
    (launch,) = compile_kernel(mlir.parse(kernel()), TARGET).launches
    assert launch.grid == (MOST, 1, 1) and launch.values == (1, 3) and launch.args == [0, 1, 3, 2]
    assert launch.extents == {0: Extent(1, PER_BLOCK, FACTOR)}


def test_the_plan_and_its_run(compiled):
    job, path = compiled
    assert [s.kind for s in job.plan.inputs] == ["input", "scalar", "scalar"]
    (step,) = job.plan.steps
    assert step.values == (1, 3) and step.extents == {0: Extent(1, PER_BLOCK, FACTOR)}
    assert "arg" not in job.ptx or ".param .u32" in job.ptx
    with mlirc.load(path, device="host") as loaded:
        loaded.execute_ptx = True
        for n, s in ((3, 0.5), (32, -1)):
            np.testing.assert_array_equal(loaded(X, n, s), right(X, n, s))
            assert "the whole plan executed in its arena" in loaded.summary()
        with pytest.raises(MlircError, match="33 is not from 0 to 32, as the model was compiled for"):
            loaded(X, 33, 1.0)


CHANGES = [
    (lambda s: s["extents"][0].__setitem__(2, 4), "extents are x divided by 4, times 2, but x divided by 8, times 2"),
    (lambda s: s["extents"][0].__setitem__(3, 1), "extents are x divided by 8, times 1, but"),
    (lambda s: s.pop("extents"), "extents are none, but x divided by 8"),
    (lambda s: s["extents"][0].__setitem__(0, 1), "grid 8x1x1|no multiple of 2|extents are y"),
    (lambda s: s["grid"].__setitem__(0, 6), "grid is 6x1x1, but 8x1x1 at the gpu level"),
    (lambda s: s["args"][3].__setitem__(1, 1), "argument 3 holds scalar 'n', but must hold scalar 's'"),
    (lambda s: s["args"][1].__setitem__(1, 2), "argument 1 holds scalar 's', but must hold scalar 'n'"),
    (lambda s: s["values"].pop(), "takes as argument 3 a value of 4 bytes, not a pointer"),
    (lambda s: s["values"].insert(0, 0), "argument 0, a value, is input 0: that is no scalar"),
]


@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_a_changed_plan_is_refused_or_found(compiled, change, why):
    changed.assert_refused_or_found(compiled[0], change, why)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("{mlirc.most_blocks = array<i64: 8, 1, 1>}", "", "a scalar decides its grid: it needs mlirc.most_blocks"),
        ("arith.ceildivsi %i, %per", "arith.divsi %i, %per", "host operation arith.divsi is not allowed"),
        ("arith.muli %q, %factor", "arith.muli %q, %q", "computes something else than a scalar divided"),
        ("arith.ceildivsi %i, %per", "arith.ceildivsi %per, %i", "divides a product, or by a scalar"),
        ("%v = memref.load %n[] : memref<i32>", "%m = memref.alloc() : memref<i32>\n%v = memref.load %m[] : memref<i32>",
         "loads no argument of one element"),
    ],
)  # fmt: skip
def test_what_a_host_function_may_not_compute(old, new, why):
    assert old in kernel()
    with pytest.raises(MlircError, match=why):
        compile_kernel(mlir.parse(kernel().replace(old, new)), TARGET)


def test_a_number_that_is_no_scalar_is_refused(tmp_path):
    (tmp_path / "m.mlir").write_text(model(kind="input"))
    job = Compilation("m", TARGET, helpers=1)
    job.open(str(tmp_path / "m.mlir"))
    with pytest.raises(MlircError, match="kernel 'scale' takes a number by value that is no input of kind 'scalar'"):
        job.lower("ptx")
