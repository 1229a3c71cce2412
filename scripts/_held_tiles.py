"""Tiles of products whose packed weights are the operand of wgmma that comes through registers: words come by tensor
copies to shared memory, and warpgroups unpack them while products run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mlirc.passes.distribute.copies.column_stores import COLUMNS, stored_bytes
from mlirc.passes.graph.facts import HELD_BITS, HELD_COLUMNS, HELD_ROWS
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div, product
from mlirc.scripts._block_shape import ROW_BYTES, BlockShape, Sizes, element_types
from mlirc.scripts._packed_tiles import unit_of
from mlirc.scripts._split_k_clocks import IN_CLUSTERS
from mlirc.scripts._tensor_copy_tiles import ARRIVALS, GLOBAL_BYTES, RESULT_ROW, TILE_CLOCKS
from mlirc.targets import Target

HELD = "wgmma"  # the instruction that takes packed weights as its first operand, unpacked into registers
SLICE = ROW_BYTES // 2  # elements of a row of the other operand in shared memory
LEAST = 3  # slots of a ring
PARTS = (1, 2, 4)  # of K, in clusters
GROUP = 64  # rows of the weight of a warpgroup's instruction
# Registers of a thread for sums, by the warpgroups that compute: what is left beside unpacked weights and addresses.
SUMS = {1: 32, 2: 128, 3: 80, 4: 40, 5: 32}
# Clocks of an instruction's 64 rows of weights, 16 of k: half its columns at least; else, by the warpgroups that share
# the issue slots, what unpacking int4 takes and HIDDEN of its columns (int8: WORDS as much). Then of a step's wait, and
# of parts of K that a cluster adds: of all, and bytes a clock. Fitted to loops and schedules on an H200
# (benchmarks/results/packed-rows-h200.md).
UNPACKING, HIDDEN, WORDS = {1: 50.0, 2: 30.0, 3: 26.0, 4: 23.0, 5: 23.0}, 0.455, {4: 1.0, 8: 1.3}
BARRIER, COMBINING, COMBINED = 80, 5000, 1.5


def is_held(kernel: KernelInfo, target: Target, given: Mapping[str, Any]) -> bool:
    """Whether a packed weight is the first operand of wgmma, whose words tensor copies bring to shared memory: of 4 or
    8 bits, where the other operand comes so, too, and knobs do not say otherwise."""
    c = kernel.contraction
    assert c is not None
    fits = target.has_wgmma and element_types(c).half and all(c.along_k) and c.left_boxes and c.windows is None
    fits = fits and Sizes.of(kernel, c).n >= HELD_ROWS and c.k >= HELD_COLUMNS
    asked = given.get("mma") in (None, HELD) and given.get("copy") in (None, "tma")
    asked = asked and given.get("swap_operands") is not False
    return c.packed in HELD_BITS and fits and asked and not (c.chosen or c.scaled or kernel.partial or kernel.places)


class HeldTile(NamedTuple):
    """A tile by the clocks that it takes, and then by the bytes that arrive in shared memory."""

    clocks: float
    arriving: int
    rows: int
    columns: int
    groups: int
    parts: int


def held_tiles(size: Sizes, c: ContractionInfo, target: Target, divisible: bool) -> Iterator[HeldTile]:
    """The tiles that there are, by the count of `_tensor_copy_tiles`, but that fewer bytes arrive, and warps unpack.
    `divisible`: whether K may be."""
    for groups, most in SUMS.items():
        for tiles in (1, 2) if groups in (2, 3) else (1,):
            for rows in range(8, min(2 * most // (tiles * c.count), ceil_div(size.m, 8) * 8) + 1, 8):
                for parts in PARTS if divisible else (1,):
                    yield _counted(size, c, target, rows, GROUP * groups * tiles, groups, parts)


def _counted(
    size: Sizes, c: ContractionInfo, target: Target, rows: int, columns: int, groups: int, parts: int
) -> HeldTile:  # fmt: skip
    moved = size.batch * (2 * size.m * c.k + c.count * size.n * (c.k * c.packed // 8 + 2 * size.m))
    unpacking = WORDS[c.packed] * UNPACKING[groups]
    each = max(rows / 2, unpacking + HIDDEN * rows / 2) + unpacking / 20  # which takes power from the tensor cores
    one = c.count * columns // GROUP * each
    arriving = rows * ROW_BYTES + c.count * columns * SLICE * c.packed // 8
    step = max(4 * one, arriving / ARRIVALS) + BARRIER
    blocks = size.batch * ceil_div(size.m, rows) * ceil_div(size.n, columns) * parts
    rounds, (full, last) = ceil_div(blocks, int(IN_CLUSTERS[parts] * target.sms)), divmod(blocks, target.sms)
    shares = full * target.sms + (max(last, target.sms / 2) if last else 0)
    memory = moved / blocks * shares / GLOBAL_BYTES * (1 + 0.2 / min(rounds, 3))
    rest = max(TILE_CLOCKS, RESULT_ROW * rows * ceil_div(columns * 2, ROW_BYTES))
    if parts > 1:
        rest += COMBINING + 4 * c.count * rows * columns * (parts - 1) / parts / COMBINED
    steps = ceil_div(ceil_div(c.k, SLICE), parts)
    return HeldTile(max(rounds * (steps * step + rest), memory + rest), blocks * arriving, rows, columns, groups, parts)


def _stages(tile: HeldTile, c: ContractionInfo, target: Target, block_k: int, given: Mapping[str, Any]) -> int:
    """The slots that fit beside the results on their way, eight at most."""
    slot = tile.rows * block_k * 2 + c.count * tile.columns * block_k * c.packed // 8
    by_copies = tile.parts == 1 and given["parts"] in (None, 1) and given["store"] in (None, "tma")
    divided = tile.parts > 1 or given["parts"] not in (None, 1)  # whose sums meet in shared memory
    padded = (4 if divided else 2) * (tile.rows + 8) * (tile.columns + 8) * c.count
    others = 2048 + (stored_bytes(tile.rows) * tile.columns // COLUMNS if by_copies else padded)
    return min((target.max_smem - others) // slot, 8)


def held_clocks(kernel: KernelInfo, size: Sizes, target: Target) -> float:
    """Clocks of the tile that takes the fewest."""
    c = kernel.contraction
    assert c is not None
    return min(held_tiles(size, c, target, not _is_whole(kernel, size))).clocks


def _is_whole(kernel: KernelInfo, size: Sizes) -> bool:
    """Whether K is not divided: of two products, or where results are of another shape than sums."""
    c = kernel.contraction
    assert c is not None
    return c.count > 1 or any(product(r.shape) != size.m * size.n * size.batch for r in kernel.results)


def held_tile(kernel: KernelInfo, size: Sizes, target: Target, given: Mapping[str, Any]) -> BlockShape:
    """The tile of such a product whose blocks finish first by a count of clocks; knobs that are `given`, and what fits
    beside them."""
    c = kernel.contraction
    assert c is not None
    wanted = given["block_m"], given["block_n"]
    free = not _is_whole(kernel, size) and all(
        given[knob] is None for knob in ("parts", "persist", "cluster", "store", "stream")
    )
    tiles = held_tiles(size, c, target, free)
    fits = [t for t in tiles if all(w in (None, n) for w, n in zip(wanted, (t.rows, t.columns), strict=True))]
    block_k = given["block_k"] or max(unit_of(c.packed), SLICE)
    fits = [t for t in fits if t.columns <= size.n // GROUP * GROUP and _stages(t, c, target, block_k, given) >= LEAST]
    best = min(fits) if fits else HeldTile(0, 0, wanted[0] or GROUP, wanted[1] or GROUP, 1, given["parts"] or 1)
    rows, columns, parts = best.rows, best.columns, given["parts"] or best.parts
    warps = given["warps_n"] or 4 * best.groups
    gives = warps in (8, 12)  # a warpgroup that gives its registers away, where there are some to give
    stages = given["stages"] or max(_stages(best, c, target, block_k, given), LEAST)
    store = given["store"] or ("tma" if parts == 1 and size.n % 8 == 0 else "rows")
    blocks = size.batch * ceil_div(size.m, rows) * ceil_div(size.n, columns)
    return BlockShape(
        rows, columns, block_k, 1, warps, stages, HELD, group=given["group"] or 1, copy="tma",
        persist=given["persist"] or (target.sms if blocks > target.sms and parts == 1 else 0),
        cluster=given["cluster"] or 1, store=store, parts=parts,
        producers=given["producers"] or (4 if gives else 1), through=given["through"] or "cluster",
        swap_operands=True, stream=given["stream"] or 0,
    )  # fmt: skip
