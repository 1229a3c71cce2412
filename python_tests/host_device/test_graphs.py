"""Random graphs down to the `gpu` level: the host device gives what the `linalg` level gives, and finds nothing."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import host, mlir
from mlirc.device import DeviceModel
from mlirc.driver.kernel_build import to_gpu
from mlirc.ir import levels
from mlirc.mlir import ir
from mlirc.schedule.registry import Schedules
from mlirc.scripts.graph import to_kernels
from mlirc.targets import get_target
from support.models.random_graphs import random_module

TARGET = get_target("sm_90a")
SEEDS = [*range(40, 60), 13]  # 13: a product of a matrix with itself


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graph(seed):
    module = mlir.parse(random_module(seed))
    with mlir.context(), ir.Location.unknown():
        mlir.run_passes(module, "canonicalize,cse")
        generator = np.random.default_rng(seed)
        types = levels.functions(module)["main"].type.inputs
        arguments = [generator.standard_normal(list(t.shape)).astype(np.float32) for t in types]
        kernels = to_kernels(levels.copy(module), TARGET)
        parts = {}
        for name in levels.kernels(kernels):
            parts[name], _ = Schedules([]).schedule_kernel(levels.isolate(kernels, name), TARGET)
            to_gpu(parts[name], name, TARGET)
        found, report = DeviceModel(kernels, parts).run(arguments)
    assert report.ok, "\n".join(map(str, report.findings))
    for a, b in zip(found, host.run_module(module, arguments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
