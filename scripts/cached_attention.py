"""Attention over a paged cache, or of few queries, with an online softmax: one head of keys and `block_q` rows of
queries per block."""

from __future__ import annotations

from typing import Literal

from mlirc.dialects.mlirc_dialect import ATTENTIONS, TABLE_ATTENTION
from mlirc.dialects.schedule.split_k import NUMBERS, NUMBERS_OF_WARP, PARTS
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
    hoist,
    last_block,
    match,
    match_contractions,
    online_softmax,
    pipeline,
    power_of_two,
    read_pages,
    reverse_blocks,
    script,
    skip_hidden_steps,
    split_softmax,
    split_tested_steps,
    tidy,
    tile_to_blocks,
)
from mlirc.scripts._divided_keys import Division, default_combine, default_division, default_parts
from mlirc.scripts.attention import takes_warpgroups
from mlirc.targets import Target

MANY_KEYS = 256  # of few queries, from which the keys are divided
FEW_ROWS = 64  # queries of all heads that share a head of keys, which are one tile then

NARROW = 64  # elements of a head of which a warp's registers hold three tiles of rows
WIDEST = 128  # elements of a head of which a warp's registers hold 16 rows of results, beside f32 operands or many keys
TEAMS = 15  # of a block: as many as have barriers of their own
COMBINING_WARPS = 4  # of the last block: two such blocks fit a multiprocessor, whatever registers a thread has


def is_cached_attention(kernel: KernelInfo) -> bool:
    """The kernel is one `mlirc.cached_attention` (of f16, bf16 or f32) with something to attend to, or attention of few
    queries to many keys; elements of a token lie one after the other."""
    a = kernel.attention
    if a is None or a.dtype not in (*HALF, "f32") or min(a.batch, a.q_len, a.head_dim, a.value_dim) == 0 or not a.rows:
        return False
    return a.pages is not None or TABLE_ATTENTION not in kernel.ops and has_few_queries(a)


def has_few_queries(a: AttentionShape) -> bool:
    """Whether the queries of a head of keys are a tile's rows, and keys enough that reading them is all the work."""
    return a.q_len * (a.q_heads // a.kv_heads if a.packs else 1) <= FEW_ROWS and a.kv_len >= max(MANY_KEYS, 8 * a.q_len)


def default_instruction(kernel: KernelInfo, a: AttentionShape, target: Target, rows: int) -> str:
    """Tensor cores for 16-bit heads, by warpgroups where those have rows enough; of f32 as the user chose, where
    registers hold a warp's results."""
    if a.dtype in HALF:
        many = rows > 64 and a.divides_pages(16) and takes_warpgroups(a)
        return "wgmma" if many and target.has_wgmma else "mma"
    return "fma" if kernel.fp32 == "ieee" or max(a.head_dim, a.value_dim) > WIDEST else kernel.fp32


def default_keys(a: AttentionShape, mma: str) -> int:
    """Keys of a step: the most that divide a page and leave room for scores and weights in registers."""
    widest = max(a.head_dim, a.value_dim)
    if mma == "wgmma":
        most = 64 if widest <= 128 else 32
        return max((n for n in range(16, most + 1, 16) if a.divides_pages(n)), default=16)
    most = (64 if widest <= 64 else 32 if widest <= WIDEST else 16) if mma == "mma" else 32 if widest <= 96 else 16
    return max(n for n in range(1, most + 1) if a.divides_pages(n))


def default_rows(a: AttentionShape, target: Target, mma: str, rows: int, heads: int) -> int:
    """Rows of a block: two warpgroups have 64 each where that makes a block for every multiprocessor."""
    if mma != "wgmma":
        most = 32 if mma == "fma" and max(a.head_dim, a.value_dim) > WIDEST else 64
        return min(most, 16 * ceil_div(rows, 16))
    fills = a.batch * heads * ceil_div(rows, 128) >= target.sms
    return 128 if fills and max(a.head_dim, a.value_dim) <= 128 else 64


def default_warps(a: AttentionShape, mma: str, block_q: int) -> int:
    """A warp for each tile of rows. Of three tiles one warp where heads are narrow, 16-bit ones (6.7 us of 35 rows, 7.0
    by two, 15.6 by four, of which fewer teams fit); four elsewhere, since two would have two tiles each, and spill
    (18.0 and 22.9 us of bf16 heads of 128 elements, 21.9 and 27.2 of f32)."""
    widest = max(a.head_dim, a.value_dim)
    rows_of_warp = 8 if mma == "fma" and block_q > 16 and widest > WIDEST else 16
    tiles = max(ceil_div(block_q, rows_of_warp), 1)
    if tiles == 3 and mma == "mma" and widest <= NARROW:
        return 1
    return power_of_two(2 * tiles - 1)


def check(name: str, a: AttentionShape, target: Target, mma: str, block_kv: int, pack: bool) -> None:
    """Raises MlircError for knobs that this kernel or target does not take."""
    why = instructions.refusal(mma, ElementTypes(a.dtype, a.dtype, "f32"), target)
    if why:
        raise MlircError(f"kernel '{name}': mma={mma}: {why}")
    if a.pages is not None and (block_kv < 1 or a.pages.size % block_kv):
        raise MlircError(
            f"kernel '{name}': block_kv={block_kv}: a step takes a part of a page: give a divisor of {a.pages.size}"
        )
    if mma == "wgmma" and not takes_warpgroups(a):
        what = "it takes multiples of 8 up to 256, contiguous in keys and values"
        raise MlircError(f"kernel '{name}': mma=wgmma: heads of {a.head_dim} and {a.value_dim} elements: {what}")
    if pack and not a.packs:
        raise MlircError(f"kernel '{name}': pack: queries of heads that share keys do not lie next to each other")


def check_division(
    name: str, target: Target, parts: int, combine: str | None, combine_warps: int | None, teams: int, warps: int
) -> None:
    """Raises MlircError for parts that nobody combines so."""
    if parts == 1 and (combine or combine_warps):
        raise MlircError(f"kernel '{name}': combine: the keys have one part: give parts=2 or more")
    if combine == "launch" and combine_warps:
        raise MlircError(f"kernel '{name}': combine_warps={combine_warps}: a second launch has warps={warps}")
    if combine == "cluster" and (combine_warps or not target.has_clusters or parts not in PARTS):
        what = "a cluster has 2, 4 or 8 blocks" if target.has_clusters else f"{target.name} has no clusters"
        what = "all warps of its blocks combine: leave combine_warps out" if combine_warps else what
        raise MlircError(f"kernel '{name}': combine=cluster: {what}")
    if not 1 <= teams <= min(TEAMS, 32 // warps):
        raise MlircError(f"kernel '{name}': teams={teams}: 1 to {min(TEAMS, 32 // warps)} of {warps} warps fit a block")


def divide(loops: ir.Value, forall: ir.Value, d: Division, combine_warps: int | None) -> list[ir.Value]:
    """Divides the loop over keys of a block program among blocks; the block programs that there are then."""
    if d.combine == "cluster":
        split_softmax(loops, parts=d.parts, through="cluster", interleave=d.once)
        return [forall]
    numbers = NUMBERS_OF_WARP * combine_warps if combine_warps else NUMBERS
    forall, finish = split_softmax(loops, parts=d.parts, interleave=d.once, numbers=numbers)
    if combine_warps:
        last_block(finish, warps=combine_warps)
    return [forall, finish]


@register(matches=is_cached_attention, priority=25)
def cached_attention(
    kernel: KernelInfo,
    target: Target,
    *,
    block_q: int | None = None,
    block_kv: int | None = None,
    warps: int | None = None,
    stages: int | None = None,
    split: bool = True,
    pack: bool | None = None,
    parts: int | None = None,
    combine: Literal["cluster", "last", "launch"] | None = None,
    teams: int | None = None,
    combine_warps: int | None = None,
    min_blocks: int | None = None,
    mma: str | None = None,
) -> ir.Module:
    """FlashAttention-2's loop order. Over pages each step looks up its page in the table, and the loop ends with the
    sequence (PagedAttention: Kwon et al., 2023). The queries of all heads that share a head of keys are the rows of one
    tile where they are few, so that keys are read once. Where blocks are few and sequences can be long, the keys are
    divided among `parts` blocks, whose results the last one of them combines ("flash decoding": Dao et al., 2023), or a
    cluster of them; and those of a block among `teams` of warps, so that many loads are on their way.

    Knobs:
      block_q: rows of a block.
      block_kv: keys of a step of the loop, a divisor of a page.
      warps: warps of a block.
      stages: slots of the copy pipeline.
      split: steps without a test run in a loop of their own, where the keys are not divided.
      pack: query heads that share keys are rows of one tile.
      parts: blocks that the keys are divided among (split-KV; 1: one block).
      combine: who combines the parts: the `last` block done, a `cluster` (2, 4 or 8 parts), or a second
        `launch`.
      teams: groups of warps that the keys of a block are divided among.
      combine_warps: warps that combine the parts in the last block.
      min_blocks: blocks that a multiprocessor should hold.
      mma: `mma` or `wgmma` (tensor cores, 16-bit heads), `tf32x3` or `tf32` (tensor cores, f32 heads), or
        `fma`.
    """
    a = kernel.attention
    assert a is not None
    group = a.q_heads // a.kv_heads
    pack = a.packs and (group * a.q_len <= FEW_ROWS or a.q_len == 1) if pack is None else pack
    rows, heads = (group * a.q_len, a.kv_heads) if pack else (a.q_len, a.q_heads)
    mma = mma or default_instruction(kernel, a, target, rows)
    block_q = block_q or default_rows(a, target, mma, rows, heads)
    warps = warps or default_warps(a, mma, block_q)
    blocks = a.batch * heads * ceil_div(rows, block_q)
    chosen = None
    if rows <= FEW_ROWS and mma != "wgmma" and not (parts or teams or combine or combine_warps):
        chosen = default_division(a, target, blocks, min(rows, block_q), warps, block_kv)
    if chosen is None:
        block_kv = block_kv or default_keys(a, mma)
        if parts is None:
            parts = default_parts(a, blocks, block_kv, target) if rows <= FEW_ROWS else 1
        once = parts * (teams or 1) > 1 and not a.window and ceil_div(a.kv_len, block_kv) <= parts * (teams or 1)
        combine = combine or ("last" if combine_warps else default_combine(parts, blocks, target))
        chosen = Division(parts, teams or 1, block_kv, combine, 1 if once else 3 if mma == "wgmma" else 2, once)
    parts, teams, block_kv, combine = chosen.parts, chosen.teams, chosen.block_kv, chosen.combine
    stages = stages or chosen.stages
    check(kernel.name, a, target, mma, block_kv, pack)
    check_division(kernel.name, target, parts, combine, combine_warps, teams, warps)
    if combine == "last":
        combine_warps = combine_warps or max(warps * teams, COMBINING_WARPS)
    knobs = dict(
        block_q=block_q, block_kv=block_kv, warps=warps, stages=stages, split=split, pack=pack, parts=parts,
        teams=teams, combine=combine, combine_warps=combine_warps, min_blocks=min_blocks, mma=mma,
    )  # fmt: skip
    with script(**knobs) as (module, function):
        result, _ = decompose_attention(match(function, *ATTENTIONS), base2=True, pack=pack)
        forall = tile_to_blocks(result, sizes=[1, 1, min(block_q, rows), 0], keep=[2], order=[], ones=True)
        loops, _ = online_softmax(match_contractions(forall), size=block_kv, ragged=a.pages is not None)
        if a.pages:
            hoist(loops)
        if a.causal or a.window:
            skip_hidden_steps(loops)
        if parts * teams == 1:
            if split and not a.window:
                loops = split_tested_steps(loops)
            if a.causal and not pack:
                reverse_blocks(forall, loop=-1)  # the last rows have the most keys: they start first
        if a.pages:
            read_pages(loops)
        foralls = divide(loops, forall, chosen, combine_warps) if parts > 1 else [forall]
        if teams > 1:
            split_softmax(loops, parts=teams, through="block", interleave=chosen.once)
        annotate(match_contractions(foralls[0]), mma=mma, warp_grid=[warps, 1])
        pipeline(loops, depth=stages)
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, *foralls)
    return module
