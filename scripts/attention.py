"""Attention with an online softmax: one head and `block_q` queries per block."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.dialects.schedule.tile_attention import tile_attention
from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import AttentionShape, KernelInfo
from mlirc.schedule.verbs import (
    annotate,
    ceil_div,
    match,
    pipeline,
    script,
    specialize,
    stage,
    store_through_shared,
    tidy,
)
from mlirc.targets import Target

HALF = ("f16", "bf16")


def is_attention(kernel: KernelInfo) -> bool:
    """The kernel is one `mlirc.attention` (of f16, bf16 or f32) with something to attend to."""
    a = kernel.attention
    return a is not None and a.dtype in (*HALF, "f32") and min(a.q_len, a.kv_len, a.head_dim, a.value_dim) > 0


@dataclass(frozen=True)
class Blocking:
    """Sizes that decide how much shared memory a block takes."""

    block_q: int
    block_kv: int
    stages: int

    def shared_bytes(self, a: AttentionShape, loops: int) -> int:
        """Queries for each loop, the ring of key and value tiles, and, for f32, the weights between products."""
        element = 2 if a.dtype in HALF else 4
        d, e = (1 << (n - 1).bit_length() for n in (a.head_dim, a.value_dim))
        weights = 0 if a.dtype in HALF else self.block_q * self.block_kv
        return element * (loops * (self.block_q * d + weights) + self.stages * self.block_kv * (d + e))


def default_blocking(a: AttentionShape, target: Target, loops: int) -> Blocking:
    """The largest blocks that keep the machine busy and fit its shared memory."""
    half = a.dtype in HALF
    widest = max(a.head_dim, a.value_dim)
    full = 128 if half and widest <= 128 else 64
    fills = a.batch * a.q_heads * ceil_div(a.q_len, full) >= target.sms
    block_q = full if fills else 64
    while block_q > 16 and block_q >= 2 * a.q_len:
        block_q //= 2
    block_kv = min(64 if half and widest <= 128 else 32, max(1 << (a.kv_len - 1).bit_length(), 16))
    found = Blocking(block_q, block_kv, 2)
    smaller = [(1, 2, 1), (1, 4, 1), (2, 4, 1), (2, 4, 2), (4, 4, 2)]  # divisors to try when it does not fit
    for dq, dkv, ds in smaller:
        if found.shared_bytes(a, loops) <= target.max_smem:
            break
        found = Blocking(max(block_q // dq, 16), min(64 // dkv, block_kv), 2 // ds)
    return found


def takes_warpgroups(a: AttentionShape) -> bool:
    """Whether wgmma computes both products: rows of whole panels (64 elements), which tensor copies take."""
    return a.dtype in HALF and a.rows and all(d % 64 == 0 and d <= 256 for d in (a.head_dim, a.value_dim))


def default_instruction(
    a: AttentionShape, target: Target, block_q: int | None, block_kv: int | None, warps: int | None, stages: int | None
) -> str:
    """wgmma where the target has it, warpgroups have rows enough, and the knobs that are given suit it."""
    if a.dtype not in HALF:
        return "fma"
    rows = a.q_len > 64 and (block_q or 64) % 64 == 0 and (not warps or warps * 16 == block_q)
    copies = (block_kv or 16) % 16 == 0 and (stages or 2) > 1
    return "wgmma" if target.has_wgmma and takes_warpgroups(a) and rows and copies else "mma"


def check_instruction(name: str, a: AttentionShape, target: Target, mma: str) -> None:
    """Raises MlircError for an instruction that these heads or this target do not have."""
    if mma not in ("mma", "wgmma", "fma"):
        raise MlircError(f"kernel '{name}': mma={mma}: choose mma, wgmma or fma")
    if mma != "fma" and a.dtype not in HALF:
        raise MlircError(f"kernel '{name}': mma={mma}: heads of {a.dtype} take fma only")
    if mma == "wgmma" and not target.has_wgmma:
        raise MlircError(f"kernel '{name}': mma=wgmma: {target.name} has no wgmma: use mma")
    if mma == "wgmma" and not takes_warpgroups(a):
        dims = f"{a.head_dim} and {a.value_dim}"
        what = "it takes multiples of 64 up to 256, contiguous in keys and values"
        raise MlircError(f"kernel '{name}': mma=wgmma: heads of {dims} elements: {what}")


def warpgroup_blocking(a: AttentionShape, target: Target) -> Blocking:
    """Two warpgroups of 64 queries each, or one where two blocks fit a multiprocessor, or blocks would be few; keys
    that leave room for scores, weights and results in registers. Fastest of some ten each on an H200."""
    widest = max(a.head_dim, a.value_dim)
    few = 2 * a.batch * a.q_heads * ceil_div(a.q_len, 128) < target.sms
    return Blocking(64 if few or widest <= 64 else 128, 128 if widest <= 128 else 64, 2)


@register(matches=is_attention, priority=20)
def attention(
    kernel: KernelInfo,
    target: Target,
    *,
    block_q: int | None = None,
    block_kv: int | None = None,
    warps: int | None = None,
    stages: int | None = None,
    split: bool = True,
    min_blocks: int | None = None,
    mma: str | None = None,
    store: str | None = None,
) -> ir.Module:
    """FlashAttention-2's loop order. Each warp owns whole rows (16 of them for tensor cores), so that the softmax's
    reductions stay inside a warp. With wgmma, warpgroups have 64 rows each and a producer warp copies keys and values;
    the weights go from the first product's registers to the second one's (as in FlashAttention-3: Shah et al., 2024).

    Knobs: `block_q` queries and `warps` per block; `block_kv` keys per step; `stages` of the copy pipeline; `split`
    runs the steps that need no causal test in a loop of their own; `min_blocks` that a multiprocessor should hold;
    `mma` is `mma` or `wgmma` (tensor cores, 16-bit heads) or `fma`; `store` of results, `tma` through shared memory or
    `vector`.
    """
    a = kernel.attention
    assert a is not None
    mma = mma or default_instruction(a, target, block_q, block_kv, warps, stages)
    check_instruction(kernel.name, a, target, mma)
    warpgroups = mma == "wgmma"
    default = warpgroup_blocking(a, target) if warpgroups else default_blocking(a, target, 2 if split else 1)
    block_q, block_kv, stages = block_q or default.block_q, block_kv or default.block_kv, stages or default.stages
    warps = warps or max(block_q // 16, 1)
    if warpgroups and min_blocks is None and block_q == 64 and max(a.head_dim, a.value_dim) <= 64:
        min_blocks = 2
    if warps > 32:
        raise MlircError(f"kernel '{kernel.name}': block_q={block_q}: {warps} warps, at most 32: give less, or warps")
    store = store or ("tma" if warpgroups else "vector")
    knobs = dict(
        block_q=block_q, block_kv=block_kv, warps=warps, stages=stages, split=split, min_blocks=min_blocks, mma=mma,
        store=store,
    )  # fmt: skip
    with script(**knobs) as (module, function):
        op = match(function, "mlirc.attention")
        forall, loops, contractions = tile_attention(op, block_q=block_q, block_kv=block_kv, split=split)
        annotate(contractions, mma=mma, warp_grid=[warps, 1])
        pipeline(loops, depth=stages)
        if warpgroups:
            stage(contractions, copy="tma")
            specialize(loops, producers=4 if warps > 4 else 1)
        if store == "tma":
            store_through_shared(forall, copy="tma")
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, forall)
    return module
