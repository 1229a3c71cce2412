"""Matmul, batched matmul, and several contractions that share a loop, with elementwise prologue and epilogue."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from mlirc.dialects.schedule.split_k import NUMBERS, NUMBERS_OF_WARP
from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import (
    align_rows,
    annotate,
    cluster,
    collapse_dims,
    generalize,
    last_block,
    match_contractions,
    match_root,
    persist,
    pipeline,
    read_matrices,
    read_windows,
    read_words,
    script,
    specialize,
    split_k,
    stage,
    store_through_shared,
    stream_k,
    swap_operands,
    tidy,
    tile_reduction,
    tile_to_blocks,
)
from mlirc.scripts._aligned_rows import copied_at_once, with_aligned_rows
from mlirc.scripts._block_shape import BlockShape, Sizes
from mlirc.scripts._packed_tiles import DIRECT
from mlirc.scripts._registers import product_blocks
from mlirc.targets import Target


def is_matmul(kernel: KernelInfo) -> bool:
    return not kernel.obstacle and kernel.contraction is not None and kernel.contraction.k > 0


def copied_rows(contractions: ir.Value, numbers: int) -> ir.Value:
    """Operands with rows of multiples of 16 bytes (in `matmul`, the verb's name is a knob)."""
    return align_rows(contractions, numbers=numbers)


def transposed(contractions: ir.Value) -> ir.Value:
    """The products as their transposes (in `matmul`, the verb's name is a knob)."""
    return swap_operands(contractions)


SUMS, SUMS_OF_LAST = 256, 2048  # of a warp, of each part that it adds: in a launch of its own, or in the last block


def streamed(loop: ir.Value, shape: BlockShape, warps: int, combine: str) -> list[ir.Value]:
    """The launches of a product whose blocks share the steps of K."""
    blocks, numbers = shape.persist, warps * (SUMS_OF_LAST if combine == "last" else SUMS)
    both = stream_k(
        loop, blocks=blocks, waves=shape.stream, group=shape.group, cluster=shape.cluster, numbers=numbers
    )  # fmt: skip
    if combine == "last":
        last_block(both[1], warps=warps)
    return list(both)


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
    copy: Literal["cp_async", "tma"] | None = None,
    blocks: int | None = None,
    cluster_size: int | None = None,
    store: Literal["vector", "rows", "tma"] | None = None,
    min_blocks: int | None = None,
    warps_k: int | None = None,
    parts: int | None = None,
    producers: int | None = None,
    through: Literal["cluster", "memory"] | None = None,
    swap_operands: bool | None = None,
    combine: Literal["last", "launch"] | None = None,
    stream: int | None = None,
    align_rows: bool | None = None,
) -> ir.Module:
    """A `block_m` x `block_n` tile of the result per block, with a loop over `block_k` slices of the operands.

    Prologues along K run inside the loop, epilogues after it.

    Knobs:
      block_m: rows of a block's tile.
      block_n: columns of a block's tile.
      block_k: elements of a step along K.
      warps_m: warps along the rows of the tile.
      warps_n: warps along the columns of the tile.
      stages: slots of the copy pipeline.
      mma: `mma` or `wgmma` (tensor cores, 16-bit operands), `mma8`, `wgmma8` or `wgmma8_fast` (8-bit ones),
        `tf32x3`, `wgmma_tf32x3`, `tf32` or `wgmma_tf32` (tensor cores, f32), or `fma`.
      group: columns of blocks that are visited together, row by row (threadblock swizzle), so that both
        operands are found in L2.
      copy: how operands come to shared memory: `cp_async` by the warps that compute, or `tma` by producer
        warps.
      blocks: persistent blocks that are launched, each for several tiles.
      cluster_size: blocks of a cluster, which copy what they share once.
      store: how results leave: `tma`, `rows` (through shared memory) or `vector`.
      min_blocks: blocks that a multiprocessor should hold.
      warps_k: warps that share out K of a step, of TF32.
      parts: blocks that K is divided among (split-K).
      producers: producer warps of copy=tma: 1, or 4 that give their registers away.
      through: where partial sums of split-K are added: in a `cluster` of 2, 4 or 8, or through `memory`.
      swap_operands: computes the result's transpose: the instruction's rows are columns of the result, and
        `warps_n` are along its rows.
      combine: who adds partial sums in memory: the `last` block done, or a second `launch`.
      stream: last waves of tiles whose steps along K are divided evenly among the `blocks` (stream-K).
      align_rows: copies operands into rows of multiples of 16 bytes first.
    """
    assert kernel.contraction is not None
    knobs = dict(
        block_m=block_m, block_n=block_n, block_k=block_k, warps_m=warps_m, warps_n=warps_n, stages=stages, mma=mma,
        group=group, copy=copy, persist=blocks, cluster=cluster_size, store=store, warps_k=warps_k, parts=parts,
        producers=producers, through=through, swap_operands=swap_operands, stream=stream,
    )  # fmt: skip
    kernel, shape = with_aligned_rows(kernel, target, knobs, align_rows)
    assert kernel.contraction is not None
    aligned = kernel.contraction.alignable and kernel.contraction.boxes
    size = Sizes.of(kernel, kernel.contraction)
    if combine and not shape.stream and (shape.parts == 1 or shape.through != "memory"):
        what = "parts of K that go through memory: give through=memory, and parts=2 or more"
        raise MlircError(f"kernel '{kernel.name}': combine={combine}: of {what}")
    warps = shape.warps_m * shape.warps_n * shape.warps_k
    sizes = [0 if d.whole else 1 for d in kernel.dims]
    sizes[size.m_dim], sizes[size.n_dim] = shape.block_m, shape.block_n
    if min_blocks is None:
        min_blocks = product_blocks(shape, size, kernel.contraction, target)
    # blocks that share a slice of the (large) right operand follow each other: m is the fastest block id
    inner = (size.n_dim, size.m_dim)
    outer = [d for d, n in enumerate(sizes) if n and d not in inner]
    order = [*outer, *inner]
    if kernel.contraction.chosen:  # groups that share a matrix follow each other, and read the same columns of it
        order = [size.n_dim, *outer, size.m_dim]
    chosen = asdict(shape)  # by the names of the knobs, None where a knob has no value that would say so
    chosen |= {"cluster_size": chosen.pop("cluster"), "blocks": chosen.pop("persist") or None}
    chosen |= {"swap_operands": shape.swap_operands or None, "stream": shape.stream or None}
    chosen |= {"producers": shape.producers if shape.copy == "tma" else None}
    chosen |= {"through": shape.through if shape.parts > 1 else None}
    with script(**chosen, combine=combine, min_blocks=min_blocks, align_rows=aligned or None) as (module, function):
        generalize(function)
        if kernel.contraction.windows and shape.copy == "tma":
            read_windows(function)
        collapse_dims(function)
        copies = (
            [copied_rows(match_contractions(function), copied_at_once(size, kernel.contraction, target))]
            if aligned
            else []
        )
        root = match_root(function)
        forall = tile_to_blocks(root, sizes=sizes, keep=[size.m_dim, size.n_dim], order=order)
        contractions, warp_grid = match_contractions(forall), [shape.warps_m, shape.warps_n]
        if shape.swap_operands:
            contractions, warp_grid = transposed(contractions), warp_grid[::-1]
        tiled, loop = tile_reduction(contractions, size=shape.block_k)
        if kernel.contraction.chosen:
            read_matrices(loop)
        annotate(tiled, mma=shape.mma, warp_grid=warp_grid)
        pipeline(loop, depth=shape.stages)
        launches = [forall]
        if shape.stream:
            launches = streamed(loop, shape, warps, combine or "launch")
        if shape.parts > 1:
            numbers = NUMBERS_OF_WARP * warps if combine == "last" else NUMBERS
            both = split_k(loop, parts=shape.parts, through=shape.through, numbers=numbers)
            launches = list(both) if shape.through == "memory" else launches
            if combine == "last":
                last_block(both[1], warps=warps)
        forall = launches[0]
        if shape.group > 1 and not shape.stream:
            annotate(forall, group_rows=shape.group)
        if shape.mma == DIRECT:  # which would read the left operand from global memory, too
            stage(tiled, copy="registers" if kernel.contraction.k % 2 else "cp_async")
        if shape.copy == "tma":
            stage(tiled, copy="tma")
            specialize(loop, producers=shape.producers)
        if shape.copy == "tma" or shape.store == "rows":
            store_through_shared(forall, copy=shape.store)
        if shape.cluster > 1:
            cluster(forall, size=shape.cluster)
        if shape.persist:
            persist(forall, blocks=shape.persist)
        if kernel.contraction.packed and shape.copy == "tma":
            read_words(forall)
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, *copies, *launches)
    return module
