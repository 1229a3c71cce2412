"""Kernels all of whose results have no elements: there is nothing to launch."""

from __future__ import annotations

from mlirc.dialects.schedule.return_empty import return_empty
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import script, tidy
from mlirc.targets import Target


def returns_nothing(kernel: KernelInfo) -> bool:
    return bool(kernel.results) and all(0 in r.shape for r in kernel.results)


@register(matches=returns_nothing, priority=100)
def empty(kernel: KernelInfo, target: Target) -> ir.Module:
    """Returns empty tensors and launches nothing."""
    with script() as (module, function):
        return_empty(function)
        tidy(function)
    return module
