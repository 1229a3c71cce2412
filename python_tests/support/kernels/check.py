"""Checks kernels at the `gpu` level on the host device: scheduled, distributed and executed as the GPU would, against the
same kernel run through the JIT, with every finding of the sanitizer an error."""

from __future__ import annotations

import numpy as np

from mlirc import mlir
from mlirc.device import Report
from mlirc.device.launch import DeviceKernel
from mlirc.driver.kernel_build import to_gpu
from mlirc.host import run_module
from mlirc.host.jit import tensor_spec
from mlirc.ir import levels
from mlirc.mlir import ir
from mlirc.schedule.registry import ScheduleRecord, Schedules
from mlirc.targets import get_target
from support.kernels.payloads import inputs_of

TARGET = "sm_90a"


def function_name(module: ir.Module) -> str:
    """The name of a kernel module's one function."""
    return ir.StringAttr(module.body.operations[0].attributes["sym_name"]).value


def run_tiles(
    tiles: ir.Module, arguments: list[np.ndarray], seed: int = 0, check: bool = True
) -> tuple[list[np.ndarray], Report]:
    """Takes a `tiles`-level kernel to the `gpu` level and executes it; returns its results and the report."""
    name = function_name(tiles)
    module = levels.copy(tiles)
    with mlir.context(), ir.Location.unknown():
        mlir.run_passes(module, "func.func(linalg-generalize-named-ops)")
        types = ir.FunctionType(ir.TypeAttr(module.body.operations[0].attributes["function_type"]).value).results
        results = [np.zeros(spec.shape, spec.dtype) for spec in map(tensor_spec, types)]
        to_gpu(module, name, get_target(TARGET))
        module = mlir.parse(str(module))  # what is printed parses back
        report = DeviceKernel(module).run([*arguments, *results], check=check, seed=seed)
    return results, report


def assert_close(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    """Compares results relative to the largest expected value; NaN where NaN is expected, integers exactly."""
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        assert f.shape == e.shape and f.dtype == e.dtype
        if not e.size:
            continue
        exact = e.dtype.kind in "iub"
        f, e = f.astype(np.float64), e.astype(np.float64)
        finite = e[np.isfinite(e)]
        scale = max(np.abs(finite).max(initial=0.0), 1e-6)
        np.testing.assert_allclose(f, e, rtol=0, atol=0 if exact else tolerance * scale)


def check_tiles(text: str | ir.Module, tolerance: float = 1e-5, seed: int = 0, reference=None) -> ir.Module:
    """A `tiles`-level kernel gives on the host device what the JIT gives (or what `reference(*arguments)` gives), with no
    finding. Returns the module."""
    tiles = mlir.parse(text) if isinstance(text, str) else text
    arguments = inputs_of(tiles, seed)
    found, report = run_tiles(tiles, arguments, seed)
    assert report.ok, "\n".join(map(str, report.findings))
    name = function_name(tiles)
    expected = run_module(tiles, arguments, name) if reference is None else reference(*arguments)
    assert_close(found, list(expected), tolerance)
    return tiles


def check_schedule(
    text: str, overrides: tuple[str, ...] = (), tolerance: float = 1e-5, seed: int = 0
) -> tuple[str, ScheduleRecord]:
    """A `kernels`-level kernel, scheduled, gives on the host device what it gives through the JIT, with no finding.
    Returns the tiles as text and which script made them."""
    module = mlir.parse(text)
    tiles, record = Schedules(list(overrides)).schedule_kernel(module, get_target(TARGET))
    with mlir.context():
        arguments = inputs_of(module, seed)
    found, report = run_tiles(tiles, arguments, seed)
    assert_close(found, run_module(module, arguments, function_name(module)), tolerance)
    assert report.ok, "\n".join(map(str, report.findings))
    return str(tiles), record
