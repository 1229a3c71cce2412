"""Attention with an online softmax: one head and `block_q` queries per block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlirc.dialects.mlirc_dialect import WHOLE_ATTENTIONS
from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.passes.distribute import instructions
from mlirc.passes.distribute.instructions import ElementTypes
from mlirc.passes.distribute.instructions.base import HALF
from mlirc.schedule import register
from mlirc.schedule.kernel_info import AttentionShape, KernelInfo
from mlirc.schedule.verbs import (
    annotate,
    ceil_div,
    decompose_attention,
    match,
    match_contractions,
    online_softmax,
    pick,
    pipeline,
    power_of_two,
    reverse_blocks,
    rotate,
    script,
    skip_hidden_steps,
    specialize,
    split_tested_steps,
    stage,
    store_through_shared,
    take_turns,
    tidy,
    tile_to_blocks,
)
from mlirc.scripts._registers import attention_blocks
from mlirc.targets import Target

WIDEST_TF32 = 256  # elements of a head whose 16 rows of results a warp's registers hold


def is_attention(kernel: KernelInfo) -> bool:
    """The kernel is one attention without pages (of f16, bf16 or f32) with something to attend to."""
    a = kernel.attention
    return (
        a is not None
        and not a.pages
        and a.dtype in (*HALF, "f32")
        and min(a.q_len, a.kv_len, a.head_dim, a.value_dim) > 0
    )


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
    """Whether wgmma computes both products: rows that tensor copies take. Panels of 64 elements end in zeros."""
    return a.dtype in HALF and a.rows and all(d % 8 == 0 and d <= 256 for d in (a.head_dim, a.value_dim))


def default_instruction(
    kernel: KernelInfo, a: AttentionShape, target: Target,
    block_q: int | None, block_kv: int | None, warps: int | None, stages: int | None,
) -> str:  # fmt: skip
    """wgmma where the target has it, warpgroups have rows enough, and the knobs that are given suit it; of f32 as the
    user chose."""
    if a.dtype not in HALF:
        narrow = max(a.head_dim, a.value_dim) <= WIDEST_TF32
        return kernel.fp32 if a.dtype == "f32" and narrow and kernel.fp32 != "ieee" else "fma"
    rows = a.q_len > 64 and (block_q or 64) % 64 == 0 and (not warps or warps * 16 == block_q)
    copies = (block_kv or 16) % 16 == 0 and (stages or 2) > 1
    return "wgmma" if target.has_wgmma and takes_warpgroups(a) and rows and copies else "mma"


def check_instruction(name: str, a: AttentionShape, target: Target, mma: str) -> None:
    """Raises MlircError for an instruction that these heads or this target do not have."""
    why = instructions.refusal(mma, ElementTypes(a.dtype, a.dtype, "f32"), target)
    if why:
        raise MlircError(f"kernel '{name}': mma={mma}: {why}")
    if mma == "wgmma" and not takes_warpgroups(a):
        dims = f"{a.head_dim} and {a.value_dim}"
        what = "it takes multiples of 8 up to 256, contiguous in keys and values"
        raise MlircError(f"kernel '{name}': mma=wgmma: heads of {dims} elements: {what}")


def warpgroup_blocking(a: AttentionShape, target: Target) -> Blocking:
    """Two warpgroups of 64 queries each, or one where two blocks fit a multiprocessor, or blocks would be few; keys
    that leave room for scores, weights and results in registers. Fastest of some ten each on an H200."""
    widest = max(a.head_dim, a.value_dim)
    few = 2 * a.batch * a.q_heads * ceil_div(a.q_len, 128) < target.sms
    return Blocking(64 if few or widest <= 64 else 128, 128 if widest <= 128 else 64, 2)


def tf32_blocking(a: AttentionShape, target: Target) -> Blocking:
    """Of FP32 by TF32: 64 queries where that makes a block for every multiprocessor, else 32; as many keys as registers
    hold scores and weights of beside the results: of heads of 128, ptxas spills some with 32 keys."""
    widest = max(a.head_dim, a.value_dim)
    fills = a.batch * a.q_heads * ceil_div(a.q_len, 64) >= target.sms
    block_q = min(64 if fills else 32, 16 * ceil_div(a.q_len, 16))
    return Blocking(power_of_two(block_q), 32 if widest <= 96 else 16, 2)


def blocking_of(mma: str, a: AttentionShape, target: Target, loops: int) -> Blocking:
    """The default blocking for an instruction."""
    if mma == "wgmma":
        return warpgroup_blocking(a, target)
    if mma in ("tf32", "tf32x3") and max(a.head_dim, a.value_dim) <= WIDEST_TF32:
        return tf32_blocking(a, target)
    return default_blocking(a, target, loops)


def scores_ahead(loops: ir.Value, steps: int) -> None:
    """Computes the scores `steps` blocks of keys ahead, in the first of the loops, which has the most steps."""
    loop = pick(loops, number=0)
    rotate(loop, pick(match_contractions(loop), number=0), ahead=steps)


def results_behind(loops: ir.Value, steps: int, groups: int) -> None:
    """Adds to the results `steps` blocks of keys behind the softmax, in the first of the loops; `groups` of the block's
    warps take turns at the products there."""
    loop = pick(loops, number=0)
    if steps:
        found, _ = rotate(loop, pick(match_contractions(loop), number=1), behind=steps)
        loop = pick(found, number=steps)
    if groups > 1:
        take_turns(loop, groups=groups)


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
    copy: Literal["cp_async", "tma"] | None = None,
    store: Literal["vector", "tma"] | None = None,
    rotate: int = 0,
    behind: int = 0,
    turns: int = 1,
) -> ir.Module:
    """FlashAttention-2's loop order. Each warp owns whole rows (16 of them for tensor cores), so that the softmax's
    reductions stay inside a warp. With wgmma, warpgroups have 64 rows each and a producer warp copies keys and values;
    the weights go from the first product's registers to the second one's (as in FlashAttention-3: Shah et al., 2024).

    Knobs:
      block_q: queries of a block.
      block_kv: keys of a step of the loop.
      warps: warps of a block that compute.
      stages: slots of the copy pipeline.
      split: steps without a causal test run in a loop of their own (peeled masked tiles).
      min_blocks: blocks that a multiprocessor should hold.
      mma: `mma` or `wgmma` (tensor cores, 16-bit heads), `tf32x3` or `tf32` (tensor cores, f32 heads), or
        `fma`.
      copy: how keys and values come to shared memory: `tma` by a producer warp, or `cp_async`.
      store: how results leave: `tma` through shared memory, or `vector`.
      rotate: blocks of keys by which scores are ahead of the softmax (FlashAttention-3's overlap within a
        warpgroup).
      behind: blocks of keys by which the second GEMM lags the softmax.
      turns: groups of warps that ping-pong at the tensor cores (FlashAttention-3).
    """
    a = kernel.attention
    assert a is not None
    mma = mma or default_instruction(kernel, a, target, block_q, block_kv, warps, stages)
    check_instruction(kernel.name, a, target, mma)
    warpgroups = mma == "wgmma"
    default = blocking_of(mma, a, target, 2 if split else 1)
    block_q, block_kv, stages = block_q or default.block_q, block_kv or default.block_kv, stages or default.stages
    warps = warps or max(block_q // 16, 1)
    if warpgroups and min_blocks is None and block_q == 64 and max(a.head_dim, a.value_dim) <= 64:
        min_blocks = 2
    if min_blocks is None:
        min_blocks = attention_blocks(kernel, a, target, mma, warps)
    if warps > 32:
        raise MlircError(f"kernel '{kernel.name}': block_q={block_q}: {warps} warps, at most 32: give less, or warps")
    if rotate and behind:
        raise MlircError(f"kernel '{kernel.name}': rotate={rotate},behind={behind}: rotate or behind, not both")
    copy, store = copy or ("tma" if warpgroups else "cp_async"), store or ("tma" if warpgroups else "vector")
    knobs = dict(
        block_q=block_q, block_kv=block_kv, warps=warps, stages=stages, split=split, min_blocks=min_blocks, mma=mma,
        copy=copy, store=store, rotate=rotate or None, behind=behind or None,
        turns=turns if turns > 1 else None,
    )  # fmt: skip
    with script(**knobs) as (module, function):
        result, _ = decompose_attention(match(function, *WHOLE_ATTENTIONS), base2=True)
        forall = tile_to_blocks(result, sizes=[1, 1, min(block_q, a.q_len), 0], keep=[2], order=[], ones=True)
        loops, _ = online_softmax(match_contractions(forall), size=block_kv)
        if a.causal or a.window:
            skip_hidden_steps(loops)
        if split and a.causal and not a.window or not (a.causal or a.window):
            loops = split_tested_steps(loops)
        if a.causal:
            reverse_blocks(forall, loop=-1)  # the last rows have the most keys: they start first
        contractions = match_contractions(forall)
        annotate(contractions, mma=mma, warp_grid=[warps, 1])
        pipeline(loops, depth=stages)
        if copy == "tma":
            stage(contractions, copy=copy)
            specialize(loops, producers=4 if warps > 4 else 1)
        if store == "tma":
            store_through_shared(forall, copy="tma")
        if rotate:
            scores_ahead(loops, rotate)
        if behind or turns > 1:
            results_behind(loops, behind, turns)
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, forall)
    return module
