"""Calls of a kernel: compiled for the tensors that come, and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mlirc.driver.compilation import Compilation
from mlirc.driver.kernel_cache import KernelCache
from mlirc.driver.live import this_gpu
from mlirc.files.kept import cache_folder
from mlirc.frontend.inputs import dtype_name
from mlirc.precision import DEFAULT_FP32, check_fp32
from mlirc.targets import DEFAULT_TARGET, get_target
from mlirc.torch_backend.executors import executor
from mlirc.torch_backend.options import Options
from mlirc.turns import exporting


def run(kernel: Any, tensors: Sequence[Any], constants: Mapping[str, Any]) -> Any:
    """The kernel's results on these tensors, compiled where that is the first of their shapes."""
    signature = kernel.signature
    if wrong := [n for n in constants if n not in signature.constants]:
        raise signature.wrong(f"has no constant '{wrong[0]}': tensors are given in order, and constants by name")
    if bad := [t for t in tensors if not isinstance(t, torch.Tensor)]:
        raise signature.wrong(f"takes tensors of PyTorch, not {type(bad[0]).__name__}")
    if len({t.device for t in tensors}) > 1:
        raise signature.wrong(
            f"its tensors lie on {', '.join(sorted({str(t.device) for t in tensors}))}: give one device"
        )
    given = [(dtype_name(t.dtype), tuple(t.shape)) for t in tensors]
    device = tensors[0].device if tensors else torch.device("cpu")
    key = (tuple(given), device, tuple(sorted(constants.items())))
    if key not in kernel._made:
        with exporting():
            if key not in kernel._made:
                job = compiled(kernel, given, constants, device)
                kernel._made[key] = executor(job, device, _options(kernel))
    with torch.no_grad():
        found = kernel._made[key]([t.detach().contiguous() for t in tensors])
    return tuple(found) if len(found) > 1 or signature.several else found[0]


def _options(kernel: Any) -> Any:
    return Options(level=kernel.level, device=kernel._how.get("device"))


def compiled(kernel: Any, given: Sequence[Any], constants: Mapping[str, Any], device: torch.device) -> Compilation:
    """The compilation of a kernel for inputs of these dtypes and shapes, lowered as far as the device needs."""
    how, signature = kernel._how, kernel.signature
    bound = signature.bound(given)
    on_gpu = device.type == "cuda"
    target = how.get("target") or (this_gpu() if on_gpu else DEFAULT_TARGET)
    fp32 = check_fp32(how.get("fp32", DEFAULT_FP32))
    job = Compilation(kernel.name, get_target(target), (), KernelCache(cache_folder()), fp32=fp32)
    job.import_source(kernel._source(given, bound, signature.constants | dict(constants), ()))
    job.check_schedules()
    job.lower("ptx" if on_gpu or how.get("device") == "host" else kernel.level)
    return job
