"""Exceptions that nobody foresaw: one line that says what mlirc was doing, and the traceback only where asked for."""

from __future__ import annotations

import pickle

import pytest

from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.internal import InternalError, step
from mlirc.tools import mlirc as program

MODEL = """
func.func @main(%x: tensor<3x5xf32>) -> tensor<3x5xf32> {
  %e = tensor.empty() : tensor<3x5xf32>
  %0 = linalg.exp ins(%x : tensor<3x5xf32>) outs(%e : tensor<3x5xf32>) -> tensor<3x5xf32>
  return %0 : tensor<3x5xf32>
}
"""


def broken(*_args, **_options):
    raise TypeError("no such thing\nsecond line")


@pytest.fixture
def model(tmp_path):
    """A model of one kernel."""
    (tmp_path / "m.mlir").write_text(MODEL)
    return tmp_path / "m.mlir"


@pytest.mark.parametrize(
    "place, what",
    [
        ("mlirc.scripts.graph.to_kernels", "dividing the linalg level into kernels"),
        ("mlirc.schedule.registry.Schedules.schedule_kernel", "scheduling kernel elementwise_0"),
        ("mlirc.driver.kernel_build.to_gpu", "taking kernel elementwise_0 from tiles to the gpu level"),
        ("mlirc.backend.ptx.compile_kernel", "compiling kernel elementwise_0 to PTX"),
        ("mlirc.backend.plan_builder.build_plan", "making the launch plan"),
    ],
)
def test_every_step_of_a_compilation_ends_in_one_line(model, ran, monkeypatch, place, what):
    monkeypatch.setattr(place, broken)
    error = ran(program.main, model, "-o", model.with_suffix(".ptx"), "--no-cache").error
    assert error.startswith(f"error: internal error while {what}") and "TypeError: no such thing (at " in error
    assert "MLIRC_TRACEBACK=1 shows the traceback" in error and "second line" not in error


def test_the_traceback_is_there_for_who_asks(model, ran, monkeypatch):
    monkeypatch.setattr("mlirc.scripts.graph.to_kernels", broken)
    monkeypatch.setenv("MLIRC_TRACEBACK", "1")
    result = ran(program.main, model, "--emit", "kernels")
    assert result.status == 1 and "in broken" in result.err and "error: internal error" in result.err.splitlines()[-1]


def test_what_the_user_can_put_right_stays_as_it_is():
    with pytest.raises(MlircError, match="^wrong size$") as caught, step("doing something"):
        raise MlircError("wrong size")
    assert not isinstance(caught.value, InternalError)


def test_an_internal_error_travels_between_processes():
    with pytest.raises(InternalError) as caught, step("doing something"):
        broken()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_import_that_fails_names_the_model(monkeypatch):
    import torch

    from mlirc import frontend
    from mlirc.targets import get_target

    monkeypatch.setattr(frontend, "import_torch", broken, raising=False)
    job = Compilation("thing", get_target("sm_90a"))
    with pytest.raises(InternalError, match="while importing thing from PyTorch: TypeError: no such thing"):
        job.import_module(torch.nn.ReLU(), (torch.randn(3),), {})
