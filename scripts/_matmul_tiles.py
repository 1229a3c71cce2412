"""How a product is cut where its knobs do not say: tiles that were measured, and which of them fits. What is done with
it is in `matmul.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlirc.errors import MlircError
from mlirc.schedule.kernel_info import ContractionInfo, KernelInfo
from mlirc.schedule.verbs import ceil_div, power_of_two, product
from mlirc.targets import Target

HALF = ("f16", "bf16")


def uses_tensor_cores(c: ContractionInfo) -> bool:
    """mma.sync takes 16-bit operands of one type and accumulates in f32."""
    return c.a_type in HALF and c.a_type == c.b_type and c.acc_type == "f32"


@dataclass(frozen=True)
class BlockShape:
    """How blocks cut a product: a block's tile, the slice of K per step, its warps, the depth of the copy pipeline, the
    instruction; and how many columns of blocks are visited together."""

    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    stages: int
    mma: str = "mma"
    group: int = 1


# Fastest of some twenty each on an H200, for the layers of TinyLlama-1.1B at 1, 128 and 512 tokens and for 4096^3,
# from the most reuse of operands to the most blocks.
_TENSOR_CORES = (
    BlockShape(128, 128, 64, 2, 2, 3),
    BlockShape(128, 64, 64, 2, 2, 4),
    BlockShape(64, 64, 64, 2, 2, 4),
    BlockShape(32, 64, 128, 1, 4, 4),
    BlockShape(32, 32, 128, 2, 2, 4),
)
# The same for two products that share their left operand and their loop.
_TENSOR_CORES_TWICE = (
    BlockShape(128, 64, 64, 2, 2, 3),
    BlockShape(64, 64, 64, 2, 2, 4),
    BlockShape(64, 32, 64, 2, 1, 4),
    BlockShape(32, 32, 128, 1, 2, 4),
)
# Warpgroups, where the target has them; where none of these fills the machine, the tiles above do better.
_WARPGROUPS = (
    BlockShape(128, 256, 64, 8, 1, 4, "wgmma"),
    BlockShape(128, 128, 64, 8, 1, 5, "wgmma"),
    BlockShape(128, 64, 64, 8, 1, 6, "wgmma"),
)
_WARPGROUPS_TWICE = (
    BlockShape(128, 96, 64, 8, 1, 4, "wgmma"),
    BlockShape(128, 64, 64, 8, 1, 4, "wgmma"),
)
# Scalar FMA: eight by eight sums per thread where the shape allows.
_FMA = (
    BlockShape(128, 64, 32, 4, 1, 2, "fma"),
    BlockShape(64, 32, 32, 4, 1, 3, "fma"),
    BlockShape(32, 32, 64, 2, 2, 4, "fma"),
    BlockShape(16, 32, 128, 1, 4, 4, "fma"),
    BlockShape(4, 16, 128, 1, 2, 4, "fma"),
)
_FMA_TWICE = (
    BlockShape(64, 64, 32, 2, 2, 2, "fma"),
    BlockShape(32, 32, 64, 2, 2, 2, "fma"),
    BlockShape(16, 32, 64, 1, 4, 2, "fma"),
    BlockShape(4, 16, 128, 1, 2, 2, "fma"),
)


def few_rows(n: int, k: int, count: int) -> BlockShape:
    """At most 16 rows: bound by reading the right operand, so deep slices of it and many blocks."""
    if count > 1:
        return BlockShape(16, 32, 128, 1, 2, 4)
    return BlockShape(16, 16, 256, 1, 2, 6) if k >= 4096 and n <= 8192 else BlockShape(16, 32, 256, 1, 4, 6)


def warpgroup_tile(m: int, n: int, batch: int, count: int, sms: int) -> BlockShape | None:
    """The largest warpgroup tile whose blocks fill the machine (twice for the largest ones); None if no tile's do."""
    if m <= 64:
        return None
    tiles = _WARPGROUPS if count == 1 else _WARPGROUPS_TWICE if count == 2 else ()
    for t, enough in zip(tiles, (2.0, 1.0, 0.66) if count == 1 else (1.33, 0.66), strict=False):
        if batch * ceil_div(m, t.block_m) * ceil_div(n, t.block_n) >= enough * sms:
            return t
    return None


def default_tile(m: int, n: int, k: int, batch: int, count: int, half: bool, sms: int) -> BlockShape:
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


@dataclass(frozen=True)
class Sizes:
    """A product's sizes: of the root dimensions that are cut, `m_dim` and `n_dim`, and of all others together."""

    m_dim: int
    n_dim: int
    m: int
    n: int
    batch: int

    @staticmethod
    def of(kernel: KernelInfo, c: ContractionInfo) -> Sizes:
        extents = [d.extent for d in kernel.dims]
        m, n = (max(dims, key=lambda d: extents[d]) for dims in (c.m, c.n))
        return Sizes(
            m, n, extents[m], extents[n], product([extents[d] for d in (*c.batch, *c.m, *c.n) if d not in (m, n)])
        )


def check_instruction(name: str, c: ContractionInfo, target: Target, mma: str | None) -> None:
    """Raises MlircError for an instruction that this product or target does not have."""
    if mma not in (None, "mma", "wgmma", "fma"):
        raise MlircError(f"kernel '{name}': mma={mma}: choose mma, wgmma or fma")
    if not uses_tensor_cores(c) and mma not in (None, "fma"):
        raise MlircError(f"kernel '{name}': mma={mma}: operands of {c.a_type} take fma only")
    if mma == "wgmma" and not target.has_wgmma:
        raise MlircError(f"kernel '{name}': mma=wgmma: {target.name} has no wgmma: use mma")


def choose(kernel: KernelInfo, target: Target, given: Mapping[str, Any]) -> BlockShape:
    """How to cut a product: knobs that are `given` (not None) as they are, the others to fit. Raises MlircError for an
    instruction that cannot be."""
    c = kernel.contraction
    assert c is not None
    half, size = uses_tensor_cores(c), Sizes.of(kernel, c)
    mma = given["mma"]
    check_instruction(kernel.name, c, target, mma)
    # wgmma's pipeline needs three slices of 64.
    warpgroups = half and target.has_wgmma and c.direct and c.k > 128
    tile = None
    if warpgroups and mma in (None, "wgmma"):
        tile = warpgroup_tile(size.m, size.n, size.batch, c.count, target.sms)
    fixed = ("block_m", "block_n", "block_k", "warps_m", "warps_n", "stages")
    if tile is None or any(given[knob] is not None for knob in fixed):
        tile = default_tile(size.m, size.n, c.k, size.batch, c.count, half, target.sms)
    mma = mma or (tile.mma if half else "fma")
    block_m, block_n = given["block_m"] or tile.block_m, given["block_n"] or tile.block_n
    warps = tile.warps_m, tile.warps_n
    if mma == "wgmma" and given["warps_m"] is None and tile.mma != "wgmma":
        warps = (8 if block_m > 64 else 4, 1)
    elif (block_m, block_n) != (tile.block_m, tile.block_n) and not warps_fit(block_m, block_n, warps, c.count, half):
        warps = default_warps(block_m, block_n, c.count, half)
    # Rows along m or n lie in panels of 64 elements.
    shared_m, shared_n = (ceil_div(x, 64) * 64 if mma == "wgmma" else x for x in (block_m, block_n))
    element, block_k, stages = 2 if half else 4, given["block_k"], given["stages"]
    if block_k is None:
        block_k = 64 if mma == "wgmma" else min(tile.block_k, max(16, 1 << (c.k - 1).bit_length()))
        while block_k > 16 and 2 * shared_bytes(shared_m, shared_n, block_k, c.count, element) > target.max_smem:
            block_k //= 2
    if stages is None:
        fitting = target.max_smem // shared_bytes(shared_m, shared_n, block_k, c.count, element)
        stages = max(min(tile.stages, fitting, ceil_div(c.k, block_k)), 3 if mma == "wgmma" else 1)
    group = given["group"] or default_group(ceil_div(size.m, block_m), ceil_div(size.n, block_n))
    return BlockShape(
        block_m, block_n, block_k, given["warps_m"] or warps[0], given["warps_n"] or warps[1], stages, mma, group
    )
