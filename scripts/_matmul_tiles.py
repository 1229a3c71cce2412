"""How a product is cut where its knobs do not say: tiles that were measured, and which of them fits. What is done with
it is in `matmul.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlirc.errors import MlircError
from mlirc.schedule.kernel_info import ContractionInfo, KernelInfo
from mlirc.schedule.verbs import ceil_div, power_of_two, product
from mlirc.scripts import _fp32_tiles
from mlirc.targets import Target

HALF = ("f16", "bf16")


def uses_tensor_cores(c: ContractionInfo) -> bool:
    """mma.sync takes 16-bit operands of one type and accumulates in f32."""
    return c.a_type in HALF and c.a_type == c.b_type and c.acc_type == "f32"


@dataclass(frozen=True)
class BlockShape:
    """How blocks cut a product: a block's tile, the slice of K per step, its warps, the depth of the copy pipeline, the
    instruction; how many columns of blocks are visited together; how operands come to shared memory ("tma": a producer
    warp copies them); how many blocks are launched (0: all), and how many of them form a cluster."""

    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    stages: int
    mma: str = "mma"
    group: int = 1
    copy: str = "cp_async"
    persist: int = 0
    cluster: int = 1
    store: str = "vector"
    warps_k: int = 1


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


# Of one multiprocessor of an H200, in its clocks: products of 16-bit elements per clock; bytes of shared memory that
# wgmma reads, and that arrive from L2; what a tile costs beside its products (the first slices on their way, results on
# theirs); bytes per second of global memory at so many clocks. Fitted to some sixty schedules of sixteen products.
PRODUCTS, SHARED_READS, ARRIVALS, TILE_CLOCKS = 2048, 128, 58, 3500
GLOBAL_BYTES = 4.2e12 / 1.8e9


def tensor_copy_tile(
    size: Sizes, c: ContractionInfo, target: Target, rows: tuple[int, ...], columns: tuple[int, ...]
) -> BlockShape | None:
    """The tile, of `rows` x `columns`, whose blocks finish first by a count of clocks; wgmma, and slices of both
    operands come by tensor copies. None where no tile fits: a warpgroup holds at most 256 sums per row of all products
    together."""
    element, steps = 2, ceil_div(c.k, 64)
    moved = element * (size.m * c.k + c.count * size.n * c.k + c.count * size.m * size.n) * size.batch
    found: list[tuple[float, int, BlockShape]] = []
    for block_m in rows:
        warpgroups = 1 if block_m == 64 else 2
        instructions = block_m // 64
        for block_n in columns:
            width = c.count * block_n
            if width * instructions // warpgroups > 256:
                continue
            copied = c.count * (ceil_div(block_n, 64) * 64 if c.panels else block_n)  # whole panels of 64 columns
            one = max(64 * 16 * block_n / PRODUCTS, 16 * element * (64 + block_n) / SHARED_READS)
            step = max(4 * instructions * c.count * one, (block_m + copied) * 64 * element / ARRIVALS)
            blocks = size.batch * ceil_div(size.m, block_m) * ceil_div(size.n, block_n)
            rounds = ceil_div(blocks, target.sms)
            # The last round's blocks take at most twice their share of global memory's bandwidth; and in few rounds
            # blocks that had to wait for it have no time to catch up.
            full, rest = divmod(blocks, target.sms)
            shares = full * target.sms + (max(rest, target.sms / 2) if rest else 0)
            memory = moved / blocks * shares / GLOBAL_BYTES * (1 + 0.2 / min(rounds, 3))
            clocks = max(rounds * (steps * step + TILE_CLOCKS), memory + TILE_CLOCKS)
            tile = BlockShape(block_m, block_n, 64, 4 * warpgroups, 1, 8, "wgmma", copy="tma")
            found.append((clocks, blocks * (block_m + copied), tile))
    return min(found, key=lambda f: f[:2])[2] if found else None


def few_rows_tile(size: Sizes, c: ContractionInfo, target: Target) -> BlockShape:
    """At most 16 rows: bound by reading the right operand, whose slices come by tensor copies, as many as fit. Where
    its rows run along n, a tile is one box of 64 columns or less."""

    def cost(tile: BlockShape) -> tuple[int, int]:
        rounds = ceil_div(size.batch * ceil_div(size.n, tile.block_n), target.sms)
        return rounds * tile.block_n, -tile.block_n

    widths = ((32, 2), (64, 4)) if c.panels else ((32, 4), (64, 8), (96, 4))
    return min((BlockShape(16, n, 64, 1, warps, 16, "mma", copy="tma") for n, warps in widths), key=cost)


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
    if mma not in (None, "mma", "wgmma", "tf32x3", "fma"):
        raise MlircError(f"kernel '{name}': mma={mma}: choose mma, wgmma, tf32x3 or fma")
    if mma == "tf32x3" and not _fp32_tiles.is_fp32(c):
        raise MlircError(f"kernel '{name}': mma=tf32x3: operands of {c.a_type} are not f32: use mma or fma")
    if not uses_tensor_cores(c) and mma in ("mma", "wgmma"):
        raise MlircError(f"kernel '{name}': mma={mma}: operands of {c.a_type} take tf32x3 (f32) or fma only")
    if mma == "wgmma" and not target.has_wgmma:
        raise MlircError(f"kernel '{name}': mma=wgmma: {target.name} has no wgmma: use mma")


def fitting_tile(
    size: Sizes, c: ContractionInfo, target: Target, given: Mapping[str, Any], tensor_copies: bool
) -> BlockShape:
    """The measured or computed tile that a product starts from; knobs that are `given` narrow the choice."""
    half, mma, tile = uses_tensor_cores(c), given["mma"], None
    if mma == "tf32x3" or mma is None and _fp32_tiles.pays(size, c, target):
        return _fp32_tiles.tile(size, c, target, tensor_copies)
    tensor_copies = tensor_copies and half
    # The pipelines of wgmma need three slices of 64.
    warpgroups = half and target.has_wgmma and c.direct and c.k > 128 and mma in (None, "wgmma")
    if tensor_copies and size.m <= 16 and mma in (None, "mma") and c.count == 1:
        tile = few_rows_tile(size, c, target)
    elif tensor_copies and (size.m > 16 and mma is None or mma == "wgmma"):
        rows, columns = given["block_m"], given["block_n"]
        all_rows = tuple(m for m in (64, 128, 256) if m < 2 * size.m) or (64,)
        tile = tensor_copy_tile(
            size, c, target, (rows,) if rows else all_rows, (columns,) if columns else tuple(range(16, 257, 16))
        )
    if tile is not None:
        return tile
    if warpgroups:
        tile = warpgroup_tile(size.m, size.n, size.batch, c.count, target.sms)
    fixed = ("block_m", "block_n", "block_k", "warps_m", "warps_n", "stages")
    if tile is None or any(given[knob] is not None for knob in fixed):
        return default_tile(size.m, size.n, c.k, size.batch, c.count, half, target.sms)
    return tile


def choose(kernel: KernelInfo, target: Target, given: Mapping[str, Any]) -> BlockShape:
    """How to cut a product: knobs that are `given` (not None) as they are, the others to fit. Raises MlircError for an
    instruction that cannot be."""
    c = kernel.contraction
    assert c is not None
    half, single, size = uses_tensor_cores(c), _fp32_tiles.is_fp32(c), Sizes.of(kernel, c)
    check_instruction(kernel.name, c, target, given["mma"])
    tensor_copies = (half or single) and target.has_wgmma and c.boxes and c.k > 128 and given["copy"] in (None, "tma")
    tile = fitting_tile(size, c, target, given, tensor_copies)
    mma = given["mma"] or tile.mma
    block_m, block_n = given["block_m"] or tile.block_m, given["block_n"] or tile.block_n
    warps = tile.warps_m, tile.warps_n
    if mma == "wgmma" and given["warps_m"] is None and tile.mma != "wgmma":
        warps = (8 if block_m > 64 else 4, 1)
    elif (block_m, block_n) != (tile.block_m, tile.block_n):
        # Three TF32 products have two accumulators for each sum.
        cores, sums = half or mma == "tf32x3", c.count * (2 if mma == "tf32x3" else 1)
        if not warps_fit(block_m, block_n, warps, sums, cores):
            warps = default_warps(block_m, block_n, sums, cores)
    copy = given["copy"] or (tile.copy if mma == tile.mma else "cp_async")
    warps_k = given["warps_k"] or (tile.warps_k if (given["warps_m"], given["warps_n"]) == (None, None) else 1)
    store = given["store"] or ("tma" if copy == "tma" and mma != "tf32x3" else "vector")
    # Rows along m or n lie in panels of 128 bytes.
    whole = mma == "wgmma" and (c.panels or not c.boxes) or mma == "tf32x3"
    panel = 64 if half else 32
    shared_m, shared_n = (ceil_div(x, panel) * panel if whole else x for x in (block_m, block_n))
    element, block_k, stages = 2 if half else 4, given["block_k"], given["stages"]
    if block_k is None:
        block_k = 64 if mma == "wgmma" else min(tile.block_k, max(16, 1 << (c.k - 1).bit_length()))
        while block_k > 16 and 2 * shared_bytes(shared_m, shared_n, block_k, c.count, element) > target.max_smem:
            block_k //= 2
    if stages is None:
        # Two panels of sixteen rows of 128 bytes of each warp leave by tensor copies.
        leaving = 2048 + warps[0] * warps[1] * 4096 if store == "tma" else 1024
        leaving += 4 * block_m * block_n * c.count * warps_k if warps_k > 1 else 0
        fitting = (target.max_smem - leaving) // shared_bytes(shared_m, shared_n, block_k, c.count, element)
        stages = max(min(tile.stages, fitting, ceil_div(c.k, block_k)), 3 if mma == "wgmma" else 1)
    blocks = ceil_div(size.m, block_m), ceil_div(size.n, block_n)
    group = given["group"] or default_group(*blocks)
    cluster, persist = given["cluster"] or 1, given["persist"] or 0
    if copy == "tma":
        cluster, persist = launch(given, blocks, size.batch, group, target.sms)
    return BlockShape(
        block_m, block_n, block_k, given["warps_m"] or warps[0], given["warps_n"] or warps[1], stages, mma, group,
        copy, persist, cluster, store, warps_k,
    )  # fmt: skip


def launch(given: Mapping[str, Any], blocks: tuple[int, int], batch: int, group: int, sms: int) -> tuple[int, int]:
    """(blocks of a cluster, blocks that are launched, 0 for one per tile) of a product with producer warps."""
    tiles = blocks[0] * blocks[1] * batch
    run = group if group > 1 else blocks[0]
    # Neighbours meet in L2 anyway, unless there are many tiles.
    cluster = given["cluster"] or (2 if run % 2 == 0 and tiles > 8 * sms else 1)
    return cluster, given["persist"] or (sms // cluster * cluster if tiles > sms else 0)
