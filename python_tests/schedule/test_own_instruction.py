"""Instructions for products that a user's file defines: the one in docs/schedules.md, and what can be wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import KernelJob, takes_user_code
from mlirc.driver.workers import build_kernels
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from mlirc.tools import mlirc, mlirc_opt
from support.kernels.check import check_schedule
from support.kernels.own_script import error
from support.kernels.payloads import matmul

ROOT = Path(__file__).resolve().parents[2]
ROUNDED = (ROOT / "examples" / "rounded_mma.py").read_text()
KNOB = "matmul:mma=rounded_mma"
STEP = """from mlirc.passes.distribute.instructions import instruction
from mlirc.passes.distribute.instructions.mma import Mma

@instruction
class HalfStep(Mma):
    name = "mma_k8"
    step_k = 8
"""


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """What one test defines is not there for the next."""
    monkeypatch.setattr("mlirc.passes.distribute.instructions._users", {})


def test_the_page_shows_the_example():
    page = (ROOT / "docs" / "schedules.md").read_text()
    head, body = ROUNDED.split("\n\n", 1)[1].split("\n\n\n")
    assert f"{head}\n\n{body.rstrip()}\n```" in page


@pytest.mark.parametrize("shape", [(2, 3, 5), (17, 19, 23), (33, 130, 71), (65, 72, 96)])
def test_the_example_multiplies_odd_shapes(write, shape):
    path = write(ROUNDED)
    text, _ = check_schedule(matmul(*shape), (path, KNOB), tolerance=2e-2)
    assert 'mlirc.mma = "rounded_mma"' in text
    check_schedule(matmul(*shape, transposed=False, left=True), (path, KNOB), tolerance=2e-2)
    with pytest.raises(AssertionError):  # bf16, not f32, was multiplied
        check_schedule(matmul(*shape), (path, KNOB), tolerance=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 5), (17, 19, 23), (33, 40, 72)])
def test_half_the_step_along_k(write, shape):
    """mma.sync m16n8k8: every size that `Mma` reads follows from its step."""
    path = write(STEP)
    for layout in ({}, {"transposed": False}, {"left": True}):
        check_schedule(matmul(*shape, "bf16", **layout), (path, "matmul:mma=mma_k8"), tolerance=1e-2)


def jobs(path: str, knob: str, count: int) -> list[KernelJob]:
    found = []
    schedules = Schedules([path, knob])
    for i in range(count):
        text = matmul(16, 8 + 8 * i, 16).replace("@matmul_0", f"@matmul_{i}")
        tiles, _ = schedules.schedule_kernel(mlir.parse(text), get_target("sm_90a"))
        assert takes_user_code(next(iter(tiles.body.operations)))
        located = tiles.operation.get_asm(enable_debug_info=True)
        found.append(KernelJob(f"matmul_{i}", located, "", "tiles", "sm_90a", "gpu", tuple(schedules.files)))
    return found


def test_helper_processes_know_it(write):
    built = list(build_kernels(jobs(write(ROUNDED), KNOB, 4), 2))
    assert len(built) == 4 and all("bf16" in b.gpu and "nvgpu.mma.sync" in b.gpu for b in built)


@pytest.mark.parametrize("helpers", [0, 2])
def test_one_that_fails_is_named_by_its_line(write, helpers):
    path = write(ROUNDED.replace("found = product.load", "found = product.loud"))
    line = 1 + ROUNDED[: ROUNDED.index("found = product.load")].count("\n")
    with pytest.raises(MlircError, match=rf"^mine.py:{line}: AttributeError: 'Product' object has no attribute 'loud'"):
        list(build_kernels(jobs(path, KNOB, 4), helpers))


def test_the_programs_take_it(ran, write, tmp_path):
    path = write(ROUNDED)
    kernel = tmp_path / "kernel.mlir"
    kernel.write_text(matmul(33, 40, 24))
    compiled = ran(mlirc.main, kernel, "--emit", "ptx", "--schedule", path, "--schedule", KNOB)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in compiled.out
    steps = ("--script", path, "--script", KNOB)
    tiles = ran(mlirc_opt.main, kernel, *steps)
    assert 'mlirc.mma = "rounded_mma"' in tiles.out
    scheduled = tmp_path / "tiles.mlir"
    scheduled.write_text(tiles.out)
    passes = ("--pass", "mlirc-async", "--pass", "mlirc-distribute")
    assert "nvgpu.mma.sync" in ran(mlirc_opt.main, scheduled, "--script", path, *passes).out


@pytest.mark.parametrize(
    "old, new, wanted",
    [
        ('name = "rounded_mma"', 'name = "fma"', "instruction: 'fma' exists, from "),
        ('name = "rounded_mma"', 'name = "rounded mma"', "a name is letters, digits and underscores, not 'rounded mma'"),
        ("class RoundedMma(Mma)", "class RoundedMma", "decorate a class that is an Instruction, not <class"),
        ('{"f32"}', '{"f64"}', "mma=rounded_mma: it takes f32 operands and sums, not operands of f32 with"),
        ("return set(types)", "return wrong(types)", "NameError: name 'wrong' is not defined"),
    ],
)  # fmt: skip
def test_one_that_is_wrong(write, old, new, wanted):
    assert wanted in error(matmul(16, 16, 16), write(ROUNDED.replace(old, new)), KNOB)


def test_two_files_define_one_name(write):
    first, second = write(STEP, "first.py"), write(STEP)
    Schedules([first])
    assert error(matmul(16, 16, 16), second).startswith("mine.py:4: instruction: 'mma_k8' exists, from first.py: give")
    Schedules([first])  # again, as an edited file is


def test_a_name_that_nobody_defined_lists_those_there_are(write):
    message = error(matmul(16, 16, 16), write(STEP), "matmul:mma=no")
    assert "mma=no: choose fma, mma, " in message and message.endswith(" or mma_k8")
