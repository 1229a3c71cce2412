"""A kernel as the cache sees it: a job, and what was built for it."""

from __future__ import annotations

from mlirc.backend.kernel import Copy, Launch
from mlirc.driver.kernel_build import KernelBuild, KernelJob
from mlirc.runtime.tensor_map import TensorMapSpec


def job(name: str = "k") -> KernelJob:
    return KernelJob(name, "text", f"identity of {name}", "tiles", "sm_90a")


def build(name: str = "k", ptx: str = "add.f32 %x, %y, %z;") -> KernelBuild:
    maps = {1: TensorMapSpec("f32", (5, 4), (2, 4), 32)}
    launches = [Launch("k_0", (4, 2, 1), (32, 1, 1), 128, [0, 1], [0, 16], (2, 1, 1), maps), Copy(0, 1, 64)]
    return KernelBuild(name, "gpu", "llvm", ptx, launches, [256], {"gpu": 1.0})
