"""A schedule of one's own: a row reduction with one row per block and many warps on it; see docs/schedules.md."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import annotate, collapse_dims, generalize, match, match_root, script, tidy, tile_to_blocks
from mlirc.scripts.reduction import is_row_reduction
from mlirc.targets import Target


@register(matches=is_row_reduction)
def wide_rows(kernel: KernelInfo, target: Target, *, warps: int = 8) -> ir.Module:
    """One row per block. Knob: `warps` that share it."""
    sizes = [0 if dim.whole else 1 for dim in kernel.dims]  # 0: the whole row
    rows = [d for d, dim in enumerate(kernel.dims) if not dim.whole]
    with script(warps=warps) as (module, function):
        generalize(function)
        collapse_dims(function)
        root = match_root(function)
        forall = tile_to_blocks(root, sizes=sizes, keep=[rows[-1]], order=[])
        annotate(match(forall, "linalg.generic"), vector=1)
        annotate(function, warps=warps)
        tidy(function, forall)
    return module
