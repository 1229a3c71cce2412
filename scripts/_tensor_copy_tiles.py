"""Tiles of products whose slices come to shared memory by tensor copies, while other warps compute."""

from __future__ import annotations

from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.scripts._block_shape import ROW_BYTES, STEP_BYTES, BlockShape, Sizes
from mlirc.targets import Target

# Of one multiprocessor of an H200, in its clocks: products of 16-bit elements per clock; bytes of shared memory that
# wgmma reads, and that arrive from L2; what a tile costs beside its products, at the least (the first slices on their
# way), and for a row of 128 bytes of results or less; bytes per second of global memory at so many clocks. Fitted to
# some sixty schedules of sixteen products, and to tiles of convolutions with few steps.
PRODUCTS, SHARED_READS, ARRIVALS, TILE_CLOCKS, RESULT_ROW = 2048, 128, 58, 3500, 18.6
MOST_ARRIVALS = 77  # at one multiprocessor, where others have no blocks
GLOBAL_BYTES = 4.2e12 / 1.8e9
TRANSPOSING = 2  # clocks of a row of 128 bytes along k that three warps write, which nobody has measured


def transposed_rows(c: ContractionInfo, block_m: int, block_n: int) -> int:
    """Rows of 128 bytes along k that a slice's 8-bit operands are transposed to, where theirs run along m or n."""
    if c.element_bytes > 1:
        return 0
    extents = (block_m, not c.along_k[0]), (c.count * ceil_div(block_n, ROW_BYTES) * ROW_BYTES, not c.along_k[1])
    return sum(ceil_div(extent, ROW_BYTES) * ROW_BYTES for extent, across in extents if across)


def tensor_copy_tile(
    size: Sizes, kernel: KernelInfo, target: Target, mma: str, rows: tuple[int, ...], columns: tuple[int, ...]
) -> BlockShape | None:
    """The tile, of `rows` x `columns`, whose blocks finish first by a count of clocks; `mma` is one of warpgroups, and
    slices of both operands come by tensor copies. None where no tile fits: a warpgroup holds at most 256 sums per row
    of all products together, or 192 where it holds those of a slice beside them."""
    c = kernel.contraction
    assert c is not None
    element, result = c.element_bytes, max(ELEMENT_BYTES.get(r.dtype, 8) for r in kernel.results)
    most = 192 if mma == "wgmma8" and c.acc_type == "f32" else 256
    depth, deep = ROW_BYTES // element, STEP_BYTES // element  # elements along k of a slice, and of an instruction
    steps = ceil_div(c.k, depth)
    moved = element * (size.m * c.k + c.count * size.n * c.k) + result * c.count * size.m * size.n
    moved *= size.batch
    found: list[tuple[float, int, BlockShape]] = []
    for block_m in rows:
        warpgroups = 1 if block_m == 64 else 2
        instructions = block_m // 64
        for block_n in columns:
            width = c.count * block_n
            if width * instructions // warpgroups > most:
                continue
            copied = c.count * (ceil_div(block_n, depth) * depth if c.panels else block_n)  # whole panels of columns
            rows_anew = transposed_rows(c, block_m, block_n)
            slot = ROW_BYTES * (ceil_div(block_m, ROW_BYTES) * ROW_BYTES + copied)
            # Three slots, two transposed slices, and what leaves by tensor copies, where there is a choice.
            crowded = 3 * slot + 2 * ROW_BYTES * rows_anew + 4096 * 4 * warpgroups + 2048 > target.max_smem
            if rows_anew and crowded and len(rows) * len(columns) > 1:
                continue
            one = max(64 * deep * block_n * element / 2 / PRODUCTS, STEP_BYTES * (64 + block_n) / SHARED_READS)
            blocks = size.batch * ceil_div(size.m, block_m) * ceil_div(size.n, block_n)
            # Of whole columns that are visited in groups: others got no more where some had no block.
            shared = size.n % block_n == 0 and ceil_div(size.m, block_m) > 8
            arriving = arrivals(blocks, target.sms) if shared else ARRIVALS
            step = max(4 * instructions * c.count * one, (block_m + copied) * ROW_BYTES / arriving)
            step = max(step, TRANSPOSING * rows_anew)
            rounds = ceil_div(blocks, target.sms)
            # The last round's blocks take at most twice their share of global memory's bandwidth; and in few rounds
            # blocks that had to wait for it have no time to catch up.
            full, last = divmod(blocks, target.sms)
            shares = full * target.sms + (max(last, target.sms / 2) if last else 0)
            memory = moved / blocks * shares / GLOBAL_BYTES * (1 + 0.2 / min(rounds, 3))
            rest = max(TILE_CLOCKS, RESULT_ROW * block_m * c.count * ceil_div(block_n * result, ROW_BYTES))
            clocks = max(rounds * (steps * step + rest), memory + rest)
            producers = 4 if warpgroups == 2 or rows_anew else 1  # a warpgroup, which gives its registers to two others
            tile = BlockShape(block_m, block_n, depth, 4 * warpgroups, 1, 8, mma, copy="tma", producers=producers)
            found.append((clocks, blocks * (block_m + copied), tile))
    return min(found, key=lambda f: f[:2])[2] if found else None


def arrivals(blocks: int, sms: int) -> float:
    """Bytes that arrive at a multiprocessor in a clock: where some have no block, the others have their share of L2."""
    return min(ARRIVALS * sms / min(blocks, sms), MOST_ARRIVALS)


def step_clocks(block_m: int, block_n: int) -> float:
    """Clocks of a slice of 128 bytes along k of one product of 16-bit elements, by the same count."""
    one = max(64 * (STEP_BYTES // 2) * block_n / PRODUCTS, STEP_BYTES * (64 + block_n) / SHARED_READS)
    return max(4 * (block_m // 64) * one, (block_m + block_n) * ROW_BYTES / ARRIVALS)


def few_rows_tile(size: Sizes, c: ContractionInfo, target: Target) -> BlockShape:
    """At most 16 rows: bound by reading the right operand, whose slices come by tensor copies, as many as fit. Where
    its rows run along n, a tile is one box of 64 columns or less."""

    def cost(tile: BlockShape) -> tuple[int, int]:
        rounds = ceil_div(size.batch * ceil_div(size.n, tile.block_n), target.sms)
        return rounds * tile.block_n, -tile.block_n

    widths = ((32, 2), (64, 4)) if c.panels else ((32, 4), (64, 8), (96, 4))
    return min((BlockShape(16, n, 64, 1, warps, 16, "mma", copy="tma") for n, warps in widths), key=cost)
