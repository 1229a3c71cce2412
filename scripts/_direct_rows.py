"""Block programs of products of few rows whose weights go from global memory straight to the registers: what
`packed_rows` and `few_rows` share."""

from __future__ import annotations

from typing import Literal

from mlirc.mlir import ir
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import (
    annotate,
    ceil_div,
    collapse_dims,
    generalize,
    match_contractions,
    match_reductions,
    match_root,
    partial_results,
    place_results,
    read_first,
    script,
    split_k,
    tidy,
    tile_reduction,
    tile_to_blocks,
)
from mlirc.scripts._block_shape import Sizes
from mlirc.scripts._packed_tiles import DIRECT
from mlirc.scripts.reduction import lanes_width


def direct_rows(
    kernel: KernelInfo,
    size: Sizes,
    *,
    block_n: int,
    block_k: int,
    warps: int,
    min_blocks: int | None,
    first: bool,
    parts: int | None = None,
    through: Literal["cluster", "memory"] = "cluster",
) -> ir.Module:
    """All rows by `block_n` columns to a block, `block_k` elements of K to a step, which `warps` share out; of `parts`
    of K, added `through` a cluster or memory. `first`: what is added to the sums is read in front of them."""
    c = kernel.contraction
    assert c is not None
    sizes = [0 if d.whole else 1 for d in kernel.dims]
    sizes[size.m_dim], sizes[size.n_dim] = ceil_div(size.m, 8) * 8, block_n
    order = [d for d, n in enumerate(sizes) if n and d not in (size.n_dim, size.m_dim)] + [size.n_dim, size.m_dim]
    divided = {} if parts is None else dict(parts=parts, through=through)
    with script(block_n=block_n, block_k=block_k, warps=warps, min_blocks=min_blocks, **divided) as (module, function):
        generalize(function)
        collapse_dims(function)
        forall = tile_to_blocks(match_root(function), sizes=sizes, keep=[size.m_dim, size.n_dim], order=order)
        if kernel.places:
            forall = place_results(forall)
        tiled, loop = tile_reduction(match_contractions(forall), size=block_k)
        annotate(tiled, mma=DIRECT, warp_grid=[1, 1])
        if c.scaled:
            # Each warp adds a row's parts up by itself: no barrier.
            annotate(match_reductions(forall), vector=lanes_width(c.scaled))
        if kernel.partial:
            forall = partial_results(forall)
        if first:
            read_first(forall)  # what would be waited for behind the sums
        launches = [forall]
        if parts and parts > 1:
            both = split_k(loop, parts=parts, through=through)
            launches = list(both) if through == "memory" else launches
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, *launches)
    return module
