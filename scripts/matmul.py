"""Matmul, batched matmul, and several contractions that share a loop, with elementwise prologue and epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import ContractionInfo, KernelInfo
from mlirc.schedule.verbs import (
    annotate,
    ceil_div,
    collapse_dims,
    generalize,
    match_contractions,
    match_root,
    power_of_two,
    product,
    script,
    tidy,
    tile_reduction,
    tile_to_blocks,
)
from mlirc.targets import Target

HALF = ("f16", "bf16")


def is_matmul(kernel: KernelInfo) -> bool:
    return not kernel.obstacle and kernel.contraction is not None and kernel.contraction.k > 0


def uses_tensor_cores(c: ContractionInfo) -> bool:
    """mma.sync takes 16-bit operands of one type and accumulates in f32."""
    return c.a_type in HALF and c.a_type == c.b_type and c.acc_type == "f32"


@dataclass(frozen=True)
class Tile:
    """How a block cuts a product: its tile, the slice of K per step, its warps, the depth of the copy pipeline, and the
    instruction."""

    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    stages: int
    mma: str = "mma"


# Fastest of some twenty each on an H200, for the layers of TinyLlama-1.1B at 1, 128 and 512 tokens and for 4096^3,
# from the most reuse of operands to the most blocks.
_TENSOR_CORES = (
    Tile(128, 128, 64, 2, 2, 3),
    Tile(128, 64, 64, 2, 2, 4),
    Tile(64, 64, 64, 2, 2, 4),
    Tile(32, 64, 128, 1, 4, 4),
    Tile(32, 32, 128, 2, 2, 4),
)
# The same for two products that share their left operand and their loop.
_TENSOR_CORES_TWICE = (
    Tile(128, 64, 64, 2, 2, 3),
    Tile(64, 64, 64, 2, 2, 4),
    Tile(64, 32, 64, 2, 1, 4),
    Tile(32, 32, 128, 1, 2, 4),
)
# Warpgroups, where the target has them; where none of these fills the machine, the tiles above do better.
_WARPGROUPS = (
    Tile(128, 256, 64, 8, 1, 4, "wgmma"),
    Tile(128, 128, 64, 8, 1, 5, "wgmma"),
    Tile(128, 64, 64, 8, 1, 6, "wgmma"),
)
_WARPGROUPS_TWICE = (
    Tile(128, 96, 64, 8, 1, 4, "wgmma"),
    Tile(128, 64, 64, 8, 1, 4, "wgmma"),
)
# Scalar FMA: eight by eight sums per thread where the shape allows.
_FMA = (
    Tile(128, 64, 32, 4, 1, 2, "fma"),
    Tile(64, 32, 32, 4, 1, 3, "fma"),
    Tile(32, 32, 64, 2, 2, 4, "fma"),
    Tile(16, 32, 128, 1, 4, 4, "fma"),
    Tile(4, 16, 128, 1, 2, 4, "fma"),
)
_FMA_TWICE = (
    Tile(64, 64, 32, 2, 2, 2, "fma"),
    Tile(32, 32, 64, 2, 2, 2, "fma"),
    Tile(16, 32, 64, 1, 4, 2, "fma"),
    Tile(4, 16, 128, 1, 2, 2, "fma"),
)


def few_rows(n: int, k: int, count: int) -> Tile:
    """At most 16 rows: bound by reading the right operand, so deep slices of it and many blocks."""
    if count > 1:
        return Tile(16, 32, 128, 1, 2, 4)
    return Tile(16, 16, 256, 1, 2, 6) if k >= 4096 and n <= 8192 else Tile(16, 32, 256, 1, 4, 6)


def warpgroup_tile(m: int, n: int, batch: int, count: int, sms: int) -> Tile | None:
    """The largest warpgroup tile whose blocks fill the machine (twice for the largest ones); None if no tile's do."""
    if m <= 64:
        return None
    tiles = _WARPGROUPS if count == 1 else _WARPGROUPS_TWICE if count == 2 else ()
    for t, enough in zip(tiles, (2.0, 1.0, 0.66) if count == 1 else (1.33, 0.66), strict=False):
        if batch * ceil_div(m, t.block_m) * ceil_div(n, t.block_n) >= enough * sms:
            return t
    return None


def default_tile(m: int, n: int, k: int, batch: int, count: int, half: bool, sms: int) -> Tile:
    """The tile with the most reuse of operands that still keeps two thirds of the multiprocessors busy, else the one
    with the most blocks. `count` products share the loop."""
    if half and m <= 16:
        return few_rows(n, k, count)
    one, several = (_TENSOR_CORES, _TENSOR_CORES_TWICE) if half else (_FMA, _FMA_TWICE)
    tiles = one if count == 1 else several
    rows = max(1 << (m - 1).bit_length(), 4)
    least = 16 if m > 8 else 1
    fitting = [t for t in tiles if least <= t.block_m <= rows] or [tiles[-1]]
    for t in fitting:
        if 3 * batch * ceil_div(m, t.block_m) * ceil_div(n, t.block_n) >= 2 * sms:
            return t
    return fitting[-1]


def default_warps(block_m: int, block_n: int, count: int, half: bool) -> tuple[int, int]:
    """(warps_m, warps_n): warp tiles of 64x64 at most for tensor cores; 8 warps on a large FMA tile.

    All accumulators together take at most 128 registers of a thread, half of what it has.
    """
    if not half:
        warps = min(max(block_m * block_n // 1024, 1), 8)
        warps_m = power_of_two(min(max(block_m // 32, 1), 2 if warps > 2 else 1))
        warps_n = max(warps // warps_m, 1)
    else:
        warps_m = max(block_m // 64, 1) if block_m * block_n > 64 * 64 else max(min(block_m // 32, 2), 1)
        warps_n = max(block_n // 64, 1) if block_n >= 128 else max(block_n // 32, 1)
    while count * block_m * block_n > 128 * 32 * warps_m * warps_n and block_n // warps_n >= 32:
        warps_n *= 2
    return warps_m, warps_n


def warps_fit(block_m: int, block_n: int, warps: tuple[int, int], count: int, half: bool) -> bool:
    """Whether a tile can keep the (warps_m, warps_n) of another: whole instructions for each warp, a sum for each lane,
    and no more than 128 registers of sums."""
    warps_m, warps_n = warps
    whole = (16 * warps_m, 8 * warps_n) if half else warps
    divides = block_m % whole[0] == 0 and block_n % whole[1] == 0
    return (
        divides
        and 32 <= block_m * block_n // (warps_m * warps_n)
        and count * block_m * block_n <= 4096 * (warps_m * warps_n)
    )


def shared_bytes(block_m: int, block_n: int, block_k: int, count: int, element: int) -> int:
    """Shared memory of one stage, in bytes, when the contractions share their first operand."""
    return (block_m + count * block_n) * block_k * element


def default_group(m_blocks: int, n_blocks: int) -> int:
    """Block columns to visit together: with few block rows a column at a time already shares everything."""
    if m_blocks <= 8:
        return 1
    return next(g for g in (8, 4, 2, 1) if n_blocks % g == 0)


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
    min_blocks: int | None = None,
) -> ir.Module:
    """A `block_m` x `block_n` tile of the result per block, with a loop over `block_k` slices of the operands.

    Prologues along k run inside the loop, epilogues after it. Knobs: the tile; `warps_m` x `warps_n` warps; `stages`
    of the copy pipeline; `mma` is `mma` or `wgmma` (tensor cores, 16-bit operands) or `fma`; `group` columns of blocks
    are visited together, row by row, so that both operands are found in L2; `min_blocks` that a multiprocessor should
    hold.
    """
    c = kernel.contraction
    assert c is not None
    extents = [d.extent for d in kernel.dims]
    half = uses_tensor_cores(c)
    if mma not in (None, "mma", "wgmma", "fma"):
        raise MlircError(f"kernel '{kernel.name}': mma={mma}: choose mma, wgmma or fma")
    if not half and mma not in (None, "fma"):
        raise MlircError(f"kernel '{kernel.name}': mma={mma}: operands of {c.a_type} take fma only")
    if mma == "wgmma" and not target.has_wgmma:
        raise MlircError(f"kernel '{kernel.name}': mma=wgmma: {target.name} has no wgmma: use mma")
    m_dim, n_dim = (max(dims, key=lambda d: extents[d]) for dims in (c.m, c.n))
    batch = product([extents[d] for d in (*c.batch, *c.m, *c.n) if d not in (m_dim, n_dim)])
    m, n = extents[m_dim], extents[n_dim]
    # wgmma's pipeline needs three slices of 64.
    warpgroups = half and target.has_wgmma and c.direct and c.k > 128
    tile = warpgroup_tile(m, n, batch, c.count, target.sms) if warpgroups and mma in (None, "wgmma") else None
    if tile is None or any(knob is not None for knob in (block_m, block_n, block_k, warps_m, warps_n, stages)):
        tile = default_tile(m, n, c.k, batch, c.count, half, target.sms)
    mma = mma or (tile.mma if half else "fma")
    own_tile = (block_m or tile.block_m, block_n or tile.block_n) != (tile.block_m, tile.block_n)
    block_m, block_n = block_m or tile.block_m, block_n or tile.block_n
    chosen_warps = (tile.warps_m, tile.warps_n)
    if mma == "wgmma" and warps_m is None and tile.mma != "wgmma":
        chosen_warps = (8 if block_m > 64 else 4, 1)
    elif own_tile and not warps_fit(block_m, block_n, chosen_warps, c.count, half):
        chosen_warps = default_warps(block_m, block_n, c.count, half)
    warps_m, warps_n = warps_m or chosen_warps[0], warps_n or chosen_warps[1]
    element = 2 if half else 4
    # Rows along m or n lie in panels of 64 elements.
    shared_m, shared_n = (ceil_div(x, 64) * 64 if mma == "wgmma" else x for x in (block_m, block_n))
    if block_k is None:
        block_k = 64 if mma == "wgmma" else min(tile.block_k, max(16, 1 << (c.k - 1).bit_length()))
        while block_k > 16 and 2 * shared_bytes(shared_m, shared_n, block_k, c.count, element) > target.max_smem:
            block_k //= 2
    if stages is None:
        fitting = target.max_smem // shared_bytes(shared_m, shared_n, block_k, c.count, element)
        stages = max(min(tile.stages, fitting, ceil_div(c.k, block_k)), 3 if mma == "wgmma" else 1)

    sizes = [0 if d.whole else 1 for d in kernel.dims]
    sizes[m_dim], sizes[n_dim] = block_m, block_n
    # blocks that share a slice of the (large) right operand follow each other: m is the fastest block id
    order = [d for d, size in enumerate(sizes) if size and d not in (m_dim, n_dim)] + [n_dim, m_dim]
    group = group or default_group(ceil_div(extents[m_dim], block_m), ceil_div(extents[n_dim], block_n))
    knobs = dict(
        block_m=block_m, block_n=block_n, block_k=block_k, warps_m=warps_m, warps_n=warps_n, stages=stages, mma=mma,
        group=group, min_blocks=min_blocks,
    )  # fmt: skip
    with script(**knobs) as (module, function):
        generalize(function)
        collapse_dims(function)
        root = match_root(function)
        forall = tile_to_blocks(root, sizes=sizes, keep=[m_dim, n_dim], order=order)
        contractions = match_contractions(forall)
        tiled, loop = tile_reduction(contractions, size=block_k)
        annotate(tiled, mma=mma, warp_grid=[warps_m, warps_n])
        annotate(loop, stages=stages)
        if group > 1:
            annotate(forall, group_m=group)
        annotate(function, warps=warps_m * warps_n, min_blocks=min_blocks)
        tidy(function, forall)
    return module
