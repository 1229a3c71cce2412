"""Bundles: small kernels that do not depend on each other, in one launch, by the pass `mlirc-loops`."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import annotate, generalize, script
from mlirc.targets import Target


@register(matches=lambda kernel: kernel.kind == "bundle", priority=50)
def bundle(kernel: KernelInfo, target: Target, *, threads: int = 128, min_blocks: int | None = None) -> ir.Module:
    """One thread per element of every result, and blocks of its own for each; what computes the rows that are written
    is computed where they are.

    Knobs:
      threads: threads of a block, a multiple of 32.
      min_blocks: blocks that a multiprocessor should hold.
    """
    if threads % 32 or not 32 <= threads <= 1024:
        raise MlircError(f"kernel '{kernel.name}': threads={threads}: give a multiple of 32 from 32 to 1024")
    with script(threads=threads, min_blocks=min_blocks) as (module, function):
        generalize(function)
        annotate(function, lowering="loops", threads=threads, min_blocks=min_blocks)
    return module
