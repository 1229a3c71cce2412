"""A kernel of one's own as the block program itself, at level `tiles`: see docs/own-kernels.md."""

from __future__ import annotations

import torch

from mlirc.kernel import blocks, kernel, ops


@kernel(
    level="tiles",
    reference=lambda a, b, bias: torch.relu(a @ b + bias),
    example={"M": 128, "N": 96, "K": 64},
)
def block_matmul(a: "bf16[M,K]", b: "bf16[K,N]", bias: "bf16[N]", block: int = 32, stages: int = 2) -> "bf16[M,N]":
    (m, k), n = a.shape, b.shape[1]

    def program(rows, columns):
        def step(part, sums):
            return blocks.matmul(a[rows, part], b[part, columns], sums, mma="mma", warp_grid=[2, 1])

        sums = blocks.loop(k, 32, step, blocks.zeros(rows, columns), stages=stages)
        return ops.relu(sums + bias[columns])

    return blocks.grid(program, (m, block), (n, block), warps=2)
