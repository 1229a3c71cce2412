"""Runs a compiled model's launch plan without a GPU: every launch is its kernel at the `tiles` level, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlirc.device import DeviceModel
from mlirc.device.plan.check import FileCheck
from mlirc.host.jit import HostFunction
from mlirc.ir import levels
from mlirc.runtime import load_text
from support.devices.fake_gpu import FakeDriver, at


class Launches(dict):
    """From a kernel's symbol to a function of the launch's addresses. Kernels must be one launch each."""

    def __init__(self, job: Any):
        super().__init__()
        self.job = job
        self.names = {}
        for name, build in job.builds.items():
            launches = [x for x in build.launches if hasattr(x, "symbol")]
            assert len(launches) == len(build.launches) == 1, f"{name} is more than one launch"
            self.names[launches[0].symbol] = name, launches[0]

    def __missing__(self, symbol):
        name, launch = self.names[symbol]
        function = HostFunction(levels.isolate(self.job.modules["tiles"], name), name)
        count = len(function.inputs)
        specs = [*function.inputs, *function.outputs]

        def run(*pointers: int) -> None:
            tensors = dict(zip(launch.args, pointers, strict=True))
            arrays = [
                at(tensors[i], int(np.prod(s.shape)), s.dtype).reshape(s.shape) if i in tensors else np.zeros(s.shape)
                for i, s in enumerate(specs)
            ]
            # the function's results are arrays of their own: a kernel that reads what it writes would show
            for target, made in zip(arrays[count:], function(*arrays[:count]), strict=True):
                np.copyto(target, made)

        self[symbol] = run
        return run


def run_plan(
    job: Any,
    inputs: list[torch.Tensor],
    times: int = 2,
    launches: Launches | None = None,
    text: str = "",
    weights: dict[str, np.ndarray] | None = None,
) -> list[torch.Tensor]:
    """The outputs of the last of several runs of the compiled model's plan, or of that in a PTX file's `text`, on new
    memory each; the runs before it have other inputs, and what they left in the arena must not matter."""
    if not text:
        model = DeviceModel.parse(job.text("gpu"))
        assert FileCheck(job.plan, model, "", Path("model.ptx"), None).of_plan() == []
    weights = weights or {name: t.detach().numpy() for name, t in job.tensors().items()}
    with load_text(text or job.ptx, weights, driver=FakeDriver(launches or Launches(job))) as model:
        for run in range(times):
            given = inputs if run == times - 1 else [torch.ones_like(x) for x in inputs]
            out = model.flat(*[x.numpy() for x in given])
    return [torch.from_numpy(np.array(o)) for o in out]
