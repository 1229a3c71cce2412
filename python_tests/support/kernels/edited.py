"""Kernels whose `async` level is edited by hand, and run on the host device."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from mlirc import mlir
from mlirc.device import Report
from mlirc.device.launch import DeviceKernel
from mlirc.driver.kernel_build import to_async, to_gpu
from mlirc.host import run_module
from mlirc.mlir import ir
from mlirc.schedule.registry import Schedules
from mlirc.targets import Target
from support.kernels.check import assert_close, function_name
from support.kernels.payloads import inputs_of


class EditedKernels:
    """`kernels`: a kernel's text and its schedule, by name."""

    def __init__(self, kernels: Mapping[str, tuple[str, str]], target: Target) -> None:
        self.kernels, self.target = kernels, target
        self._levels: dict[str, str] = {}

    def level(self, name: str) -> str:
        """A kernel's `async` level."""
        if name not in self._levels:
            text, knobs = self.kernels[name]
            tiles, _ = Schedules([knobs]).schedule_kernel(mlir.parse(text), self.target)
            to_async(tiles, function_name(tiles), self.target)
            self._levels[name] = str(tiles)
        return self._levels[name]

    def edited(self, name: str, *edits: tuple[str, str]) -> str:
        """A level with regular expressions replaced, each of which has to be there."""
        text = self.level(name)
        for pattern, new in edits:
            text, count = re.subn(pattern, new, text, flags=re.DOTALL)
            assert count, pattern
        return text

    def run(self, name: str, text: str) -> Report:
        """Executes an edited level on the host device, and compares it with the kernel where there is no finding."""
        module, original = mlir.parse(text), mlir.parse(self.kernels[name][0])
        function = function_name(module)
        with mlir.context(), ir.Location.unknown():
            arguments = inputs_of(original, 0)
            expected = run_module(original, arguments, function)
            results = [np.full(e.shape, np.nan, e.dtype) for e in expected]
            to_gpu(module, function, self.target)
            report = DeviceKernel(mlir.parse(str(module))).run([*arguments, *results])
        if report.ok:
            assert_close(results, list(expected), 1e-2)
        return report
