"""Any kernel: one thread per point of every op, by the pass `mlirc-loops`; slower than a schedule of its own."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.kernel_info import KernelInfo
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.targets import Target
from mlirc.verbs import annotate, script


@register(matches=lambda kernel: True, priority=-100)
def generic(kernel: KernelInfo, target: Target, *, threads: int = 256) -> ir.Module:
    """Leaves the kernel as it is and asks for `mlirc-loops`. Knob: `threads` per block, a multiple of 32."""
    if threads % 32 or not 32 <= threads <= 1024:
        raise MlircError(f"kernel '{kernel.name}': threads={threads}: give a multiple of 32 from 32 to 1024")
    with script(threads=threads) as (module, function):
        annotate(function, lowering="loops", threads=threads)
    return module
