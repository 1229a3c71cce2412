"""A kernel of one's own: a matrix product and the softmax of its rows, in one; see docs/own-kernels.md."""

from __future__ import annotations

import torch

from mlirc.kernel import kernel, ops
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import (
    annotate,
    generalize,
    match_contractions,
    match_root,
    pipeline,
    script,
    tidy,
    tile_reduction,
    tile_to_blocks,
)
from mlirc.targets import Target


@kernel(reference=lambda a, b: torch.softmax((a @ b).float(), dim=-1), example={"M": 128, "N": 256, "K": 64})
def matmul_softmax(a: "bf16[M,K]", b: "bf16[K,N]") -> "bf16[M,N]":
    c = ops.matmul(a, b)  # f32 accumulators, which the softmax takes as they are
    return ops.softmax(c, dim=-1)


def has_rows(kernel: KernelInfo) -> bool:
    return kernel.name == "matmul_softmax" and all(n > 1 for a in kernel.arguments for n in a.shape)


@register(matches=has_rows)
def whole_rows(
    kernel: KernelInfo, target: Target, *, block_m: int = 16, block_k: int = 32, warps: int = 1, stages: int = 2
) -> ir.Module:
    """`block_m` rows of the result per block, as long as they are: the product's loop over k, then the softmax of its
    accumulators, in registers. Each of the `warps` has 16 rows."""
    aligned = all(a.shape[-1] % 2 == 0 for a in kernel.arguments)  # asynchronous copies move 4 bytes or more
    with script(block_m=block_m, block_k=block_k, warps=warps, stages=stages) as (module, function):
        generalize(function)
        forall = tile_to_blocks(match_root(function), sizes=[block_m, 0], keep=[0], order=[])
        tiled, loop = tile_reduction(match_contractions(forall), size=block_k)
        annotate(tiled, mma="mma", warp_grid=[warps, 1])
        pipeline(loop, depth=stages if aligned else 1)
        annotate(function, warps=warps)
        tidy(function, forall)
    return module
