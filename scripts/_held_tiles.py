"""Tiles of products whose packed weights are the operand of wgmma that comes through registers: words come by tensor
copies to shared memory, and warpgroups unpack them while products run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mlirc.passes.graph.facts import HELD_BITS, HELD_COLUMNS, HELD_ROWS
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.scripts._block_shape import ROW_BYTES, BlockShape, Sizes, element_types
from mlirc.scripts._packed_tiles import unit_of
from mlirc.scripts._tensor_copy_tiles import ARRIVALS, GLOBAL_BYTES, RESULT_ROW, TILE_CLOCKS
from mlirc.targets import Target

HELD = "wgmma"  # the instruction that takes packed weights as its first operand, unpacked into registers
SLICE = ROW_BYTES // 2  # elements of a row of the other operand in shared memory
GROUP, MOST_ROWS = 64, 256  # rows of the weight of a warpgroup's instruction, and columns of it at most
# Registers of a thread for sums, by the warpgroups that compute: what is left beside unpacked weights and addresses.
SUMS = {1: 128, 2: 128, 3: 80}
WORDS_READ = 4  # clocks of shared memory for a bit of 64 weights of 16 of k


def is_held(kernel: KernelInfo, target: Target, given: Mapping[str, Any]) -> bool:
    """Whether a packed weight is the first operand of wgmma, whose words tensor copies bring to shared memory: of 4 or
    8 bits, where the other operand comes so, too, and knobs do not say otherwise."""
    c = kernel.contraction
    assert c is not None
    fits = target.has_wgmma and element_types(c).half and all(c.along_k) and c.left_boxes and c.windows is None
    fits = fits and Sizes.of(kernel, c).n >= HELD_ROWS and c.k >= HELD_COLUMNS
    asked = given["mma"] in (None, HELD) and given["copy"] in (None, "tma") and given["swap_operands"] is not False
    return c.packed in HELD_BITS and fits and asked and not (c.chosen or c.scaled or kernel.partial or kernel.places)


class HeldTile(NamedTuple):
    """A tile by the clocks that it takes, and then by the bytes that arrive in shared memory."""

    clocks: float
    arriving: int
    rows: int
    columns: int
    groups: int


def held_tiles(size: Sizes, c: ContractionInfo, target: Target) -> list[HeldTile]:
    """The tiles that there are, by the count of `_tensor_copy_tiles`: what is
    different are words, of which fewer bytes arrive, and which warps read instead of the instruction."""
    steps, found = ceil_div(c.k, SLICE), list[HeldTile]()
    moved = size.batch * (2 * size.m * c.k + c.count * size.n * (c.k * c.packed // 8 + 2 * size.m))
    for groups, most in SUMS.items():
        for tiles in (1, 2):
            columns = GROUP * groups * tiles
            for rows in range(8, min(2 * most // (tiles * c.count), ceil_div(size.m, 8) * 8) + 1, 8):
                one = max(rows / 2, rows / 4 + WORDS_READ * c.packed)
                arriving = rows * ROW_BYTES + c.count * columns * SLICE * c.packed // 8
                step = max(4 * groups * tiles * c.count * one, arriving / ARRIVALS)
                blocks = size.batch * ceil_div(size.m, rows) * ceil_div(size.n, columns)
                rounds, (full, last) = ceil_div(blocks, target.sms), divmod(blocks, target.sms)
                shares = full * target.sms + (max(last, target.sms / 2) if last else 0)
                memory = moved / blocks * shares / GLOBAL_BYTES * (1 + 0.2 / min(rounds, 3))
                rest = max(TILE_CLOCKS, RESULT_ROW * rows * ceil_div(columns * 2, ROW_BYTES))
                clocks = max(rounds * (steps * step + rest), memory + rest)
                found.append(HeldTile(clocks, blocks * arriving, rows, columns, groups))
    return found


def held_tile(kernel: KernelInfo, size: Sizes, target: Target, given: Mapping[str, Any]) -> BlockShape:
    """The tile of such a product whose blocks finish first by a count of clocks; knobs that are `given`, and what fits
    beside them."""
    c = kernel.contraction
    assert c is not None
    wanted = given["block_m"], given["block_n"]
    fits = [t for t in held_tiles(size, c, target) if all(w in (None, n) for w, n in zip(wanted, t[2:4], strict=True))]
    _, _, rows, columns, groups = min(fits) if fits else (0, 0, *(w or GROUP for w in wanted), 1)
    columns = min(columns, size.n // GROUP * GROUP)
    block_k = given["block_k"] or max(unit_of(c.packed), SLICE)
    warps = given["warps_n"] or 4 * min(groups, columns // GROUP)
    gives = warps in (8, 12)  # a warpgroup that gives its registers away, where there are some to give
    slot = rows * block_k * 2 + c.count * columns * block_k * c.packed // 8
    leaves = given["parts"] in (None, 1) and size.n % 8 == 0  # by tensor copies
    store = given["store"] or ("tma" if leaves else "rows")
    others = 2048 + (2 * (rows + 8) * (columns + 8) * c.count if store == "rows" else 4096 * warps)
    stages = given["stages"] or max(min((target.max_smem - others) // slot, 8), 3)
    blocks = size.batch * ceil_div(size.m, rows) * ceil_div(size.n, columns)
    return BlockShape(
        rows, columns, block_k, 1, warps, stages, HELD, group=given["group"] or 1, copy="tma",
        persist=given["persist"] or (target.sms if blocks > target.sms and not given["parts"] else 0),
        cluster=given["cluster"] or 1, store=store, parts=given["parts"] or 1,
        producers=given["producers"] or (4 if gives else 1), through=given["through"] or "cluster",
        swap_operands=True,
    )  # fmt: skip
