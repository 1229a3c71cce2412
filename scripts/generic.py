"""Any kernel: one thread per point of every op, by the pass `mlirc-loops`; slower than a schedule of its own."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import annotate, generalize, product, script, split_reductions
from mlirc.targets import Target

MOST_THREADS = 1024  # of a block


@register(matches=lambda kernel: True, priority=-100)
def generic(
    kernel: KernelInfo, target: Target, *, threads: int | None = None, length: int = 32, min_blocks: int | None = None
) -> ir.Module:
    """Splits long reductions with few results, those of convolutions too, and asks for `mlirc-loops`.

    Knobs:
      threads: threads of a block, a multiple of 32 (default: 256, or 1024 where so many neighbours reduce columns).
      length: elements of a split reduction that one thread takes, 2 or more.
      min_blocks: blocks that a multiprocessor should hold.
    """
    if threads is None:
        # Threads of a block read neighbours of one row after the other: long pieces of few pages of memory.
        columns = max((product(r.shape) for r in kernel.results), default=0) if kernel.kind == "reduction" else 0
        threads = MOST_THREADS if columns >= 2 * MOST_THREADS * target.sms else 256
    if threads % 32 or not 32 <= threads <= MOST_THREADS:
        raise MlircError(f"kernel '{kernel.name}': threads={threads}: give a multiple of 32 from 32 to 1024")
    if length < 2:
        raise MlircError(f"kernel '{kernel.name}': length={length}: give 2 or more")
    with script(threads=threads, length=length, min_blocks=min_blocks) as (module, function):
        generalize(function)
        split_reductions(function, length=length)
        annotate(function, lowering="loops", threads=threads, min_blocks=min_blocks)
    return module
