"""Launches that begin before those in front of them have ended (programmatic dependent launch: PTX ISA,
griddepcontrol; CUDA C++ guide, "Programmatic Dependent Launch and Synchronization").

`mlirc-dependent-kernels` (`kernels` level) says of each kernel that it is to be launched so (`mlirc.dependent`), and
which of its arguments no launch of a run writes (`mlirc.given`, array of i64); or that it only lets the launch behind
it begin (`mlirc.lets_begin`); or that it lets that one late (`mlirc.lets_begin_late`). `mlirc-dependent-launches`
(`gpu` level) has such a kernel let those behind it begin, and wait for those in front of it as late as it may.
"""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.passes import register
from mlirc.passes.dependent.kernels import mark_kernels
from mlirc.passes.dependent.launches import begin_early


@register("mlirc-dependent-kernels")
def kernels(module: ir.Module, **options: str) -> None:
    """Marks the kernels of a `kernels`-level module, in place; with `rows=true` those of a step of decoding alone."""
    if not set(options) <= {"rows"} or options.get("rows", "true") not in ("true", "false"):
        raise MlircError("mlirc-dependent-kernels has one option: rows, true or false")
    mark_kernels(module, rows=options.get("rows") == "true")


@register("mlirc-dependent-launches")
def launches(module: ir.Module, **options: str) -> None:
    """Has the kernel of a `gpu`-level module begin early where it is marked, in place."""
    begin_early(module)
