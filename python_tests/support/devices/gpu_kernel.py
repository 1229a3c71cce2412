"""Runs one kernel's `gpu`-level module on the GPU, without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import pytest

from mlirc.backend.kernel import Copy, Launch
from mlirc.backend.ptx import compile_kernel
from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.runtime.cuda import CopyCall, Driver, KernelCall
from mlirc.targets import TARGETS, Target


def gpu_missing() -> str | None:
    """Why there is no GPU to test on; None when there is one."""
    try:
        Driver(0).close()
    except MlircError as e:
        return str(e)
    return None


NO_GPU = gpu_missing()
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(NO_GPU is not None, reason=f"{NO_GPU}")]


def target_of(driver: Driver) -> Target:
    """The target made for the GPU, or the latest older one that runs on it."""
    fitting = [t for t in TARGETS.values() if t.cc == driver.cc or (t.cc < driver.cc and not t.name.endswith("a"))]
    return max(fitting, key=lambda t: t.cc)


def run_kernel(module: ir.Module, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Compiles the kernel for this machine's GPU and runs its launches in order; fills `outputs`."""
    driver = Driver(0)
    with driver.current():
        kernel = compile_kernel(module, target_of(driver))
        loaded = driver.load(kernel.ptx, "test")
        stream = driver.stream()
        buffers = [driver.alloc(a.nbytes) for a in (*inputs, *outputs)]
        buffers += [driver.alloc(size) for size in kernel.workspaces]
        kept = [np.ascontiguousarray(a) for a in (*inputs, *outputs)]
        try:
            for pointer, a in zip(buffers, kept, strict=False):
                driver.copy_in(pointer, a.ctypes.data, a.nbytes, stream)
            for step in kernel.launches:
                driver.launch(_call(driver, loaded, step, buffers), stream)
            for pointer, a in zip(buffers[len(inputs) :], outputs, strict=False):
                driver.copy_out(a.ctypes.data, pointer, a.nbytes, stream)
            driver.synchronize(stream)
        finally:
            for pointer in buffers:
                driver.free(pointer)
            driver.destroy_stream(stream)
            driver.unload(loaded)
    driver.close()


def _call(driver: Driver, loaded, step: Launch | Copy, buffers: list[int]) -> KernelCall | CopyCall:
    if isinstance(step, Copy):
        source, target = buffers[step.source] + step.source_offset, buffers[step.target] + step.target_offset
        return CopyCall(target, source, step.size)
    function = driver.function(loaded, step.symbol, step.smem, prod(step.cluster or ()))
    pointers = [buffers[i] + offset for i, offset in zip(step.args, step.offsets, strict=True)]
    return KernelCall(
        function, step.symbol, step.grid, step.block, step.smem, pointers, step.cluster, step.maps, step.dependent,
        cooperative=step.cooperative,
    )  # fmt: skip
