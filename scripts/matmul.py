"""Matmul, batched matmul, and several contractions that share a loop, with elementwise prologue and epilogue."""

from __future__ import annotations

from dataclasses import asdict

from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import (
    annotate,
    cluster,
    collapse_dims,
    generalize,
    match_contractions,
    match_root,
    persist,
    pipeline,
    script,
    specialize,
    stage,
    store_through_shared,
    tidy,
    tile_reduction,
    tile_to_blocks,
)
from mlirc.scripts._matmul_tiles import Sizes, choose
from mlirc.targets import Target


def is_matmul(kernel: KernelInfo) -> bool:
    return not kernel.obstacle and kernel.contraction is not None and kernel.contraction.k > 0


@register(matches=is_matmul, priority=20)
def matmul(
    kernel: KernelInfo,
    target: Target,
    *,
    block_m: int | None = None,
    block_n: int | None = None,
    block_k: int | None = None,
    warps_m: int | None = None,
    warps_n: int | None = None,
    stages: int | None = None,
    mma: str | None = None,
    group: int | None = None,
    copy: str | None = None,
    blocks: int | None = None,
    cluster_size: int | None = None,
    store: str | None = None,
    min_blocks: int | None = None,
    warps_k: int | None = None,
) -> ir.Module:
    """A `block_m` x `block_n` tile of the result per block, with a loop over `block_k` slices of the operands.

    Prologues along k run inside the loop, epilogues after it. Knobs: the tile; `warps_m` x `warps_n` warps,
    of tf32x3 times `warps_k` that share out each slice's k; `stages`
    of the copy pipeline; `mma` is `mma` or `wgmma` (tensor cores, 16-bit operands), `tf32x3` (tensor cores, f32)
    or `fma`; `group` columns of blocks
    are visited together, row by row, so that both operands are found in L2; `copy` of the operands to shared memory,
    `cp_async` by the warps that compute or `tma` by one more; `blocks` that are launched, each for several tiles;
    `cluster_size` of them that copy what they share once; `store` of results, `tma` through shared memory or `vector`;
    `min_blocks` that a multiprocessor should hold.
    """
    assert kernel.contraction is not None
    knobs = dict(
        block_m=block_m, block_n=block_n, block_k=block_k, warps_m=warps_m, warps_n=warps_n, stages=stages, mma=mma,
        group=group, copy=copy, persist=blocks, cluster=cluster_size, store=store, warps_k=warps_k,
    )  # fmt: skip
    shape, size = choose(kernel, target, knobs), Sizes.of(kernel, kernel.contraction)
    sizes = [0 if d.whole else 1 for d in kernel.dims]
    sizes[size.m_dim], sizes[size.n_dim] = shape.block_m, shape.block_n
    if min_blocks is None and shape.mma == "mma" and shape.copy == "tma":
        min_blocks = 1  # ptxas would save registers instead, and read one operand at a time from shared memory
    # blocks that share a slice of the (large) right operand follow each other: m is the fastest block id
    inner = (size.n_dim, size.m_dim)
    order = [d for d, n in enumerate(sizes) if n and d not in inner] + list(inner)
    with script(**asdict(shape), min_blocks=min_blocks) as (module, function):
        generalize(function)
        collapse_dims(function)
        root = match_root(function)
        forall = tile_to_blocks(root, sizes=sizes, keep=[size.m_dim, size.n_dim], order=order)
        contractions = match_contractions(forall)
        tiled, loop = tile_reduction(contractions, size=shape.block_k)
        annotate(tiled, mma=shape.mma, warp_grid=[shape.warps_m, shape.warps_n])
        pipeline(loop, depth=shape.stages)
        if shape.group > 1:
            annotate(forall, group_rows=shape.group)
        if shape.copy == "tma":
            stage(tiled, copy="tma")
            specialize(loop, producers=1)
            store_through_shared(forall, copy=shape.store)
        if shape.cluster > 1:
            cluster(forall, size=shape.cluster)
        if shape.persist:
            persist(forall, blocks=shape.persist)
        annotate(function, warps=shape.warps_m * shape.warps_n * shape.warps_k, min_blocks=min_blocks)
        tidy(function, forall)
    return module
