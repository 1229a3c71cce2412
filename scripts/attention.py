"""Attention with an online softmax: one head and `block_q` queries per block."""

from __future__ import annotations

from mlirc.dialects.schedule.tile_attention import tile_attention
from mlirc.kernel_info import KernelInfo
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.targets import Target
from mlirc.verbs import annotate, ceil_div, match, script, tidy

HALF = ("f16", "bf16")


def is_attention(kernel: KernelInfo) -> bool:
    """The kernel is one `mlirc.attention` (of f16, bf16 or f32) with something to attend to."""
    a = kernel.attention
    return a is not None and a.dtype in (*HALF, "f32") and min(a.q_len, a.kv_len, a.head_dim, a.value_dim) > 0


@register(matches=is_attention, priority=20)
def attention(
    kernel: KernelInfo,
    target: Target,
    *,
    block_q: int | None = None,
    block_kv: int | None = None,
    warps: int | None = None,
    stages: int = 2,
    split: bool = True,
    vector: int | None = None,
) -> ir.Module:
    """FlashAttention-2's loop order. Each warp owns whole rows (16 of them for tensor cores), so that the softmax's
    reductions stay inside a warp.

    Knobs: `block_q` queries and `warps` per block; `block_kv` keys per step; `stages` of the copy pipeline; `split`
    runs the steps that need no causal test in a loop of their own; `vector` elements per thread in elementwise ops.
    """
    a = kernel.attention
    assert a is not None
    half = a.dtype in HALF
    widest = max(a.head_dim, a.value_dim)
    if block_q is None:
        full = 128 if half and widest <= 128 else 64
        fills = a.batch * a.q_heads * ceil_div(a.q_len, full) >= target.sms
        block_q = full if fills else 64
        while block_q > 16 and block_q >= 2 * a.q_len:
            block_q //= 2
    block_kv = block_kv or (64 if half and widest <= 128 else 32)
    warps = warps or max(block_q // 16, 1)
    vector = vector or (8 if half else 4)
    knobs = dict(block_q=block_q, block_kv=block_kv, warps=warps, stages=stages, split=split, vector=vector)
    with script(**knobs) as (module, function):
        op = match(function, "mlirc.attention")
        forall, loops, contractions = tile_attention(op, block_q=block_q, block_kv=block_kv, split=split)
        annotate(match(forall, "linalg.generic"), vector=vector)
        annotate(contractions, mma="mma" if half else "fma", warp_grid=[warps, 1])
        annotate(loops, stages=stages)
        annotate(function, warps=warps)
        tidy(function, forall)
    return module
