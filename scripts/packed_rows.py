"""Products of few rows with packed weights: bound by reading the weights, each of whose words one thread loads."""

from __future__ import annotations

from typing import Literal

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.scripts._block_shape import Sizes, element_types
from mlirc.scripts._direct_rows import direct_rows
from mlirc.scripts._held_tiles import held_clocks, is_held
from mlirc.scripts._packed_tiles import unit_of
from mlirc.scripts.matmul import matmul
from mlirc.targets import Target

ROWS = 16  # at most: each warp reads them all
FEW_ROWS = 8  # beyond which warpgroups take weights in registers, where they can
FEW = (
    2  # blocks of a multiprocessor, below which they are large: (warps, blocks of words of a step), wanted and at most
)
LARGE, SMALL = (16, 2), (7, 4)  # benchmarks/results/packed-rows-h200.md
ALONE = range(14, 24)  # blocks of two products for each multiprocessor, of which each is one warp
RESIDENT = 28  # warps of a multiprocessor that registers are left for
STEP = 64  # of the instruction along k
LONG = 8192  # elements of K from which on blocks that are fewer than multiprocessors divide it
WIDE = 32  # columns of a block, of more rows than FEW_ROWS: each reads all rows
# Bytes a clock that all blocks read of weights from global memory, and of rows from L2; and clocks of a launch. Fitted
# to 9 schedules of 16 rows on an H200 (benchmarks/results/packed-rows-h200.md).
GLOBAL_BYTES, L2_BYTES, LAUNCH = 2350, 4900, 3700


def is_packed_rows(kernel: KernelInfo) -> bool:
    """Few rows times packed weights, both of 16 bits."""
    c = kernel.contraction
    if kernel.obstacle and not (kernel.partial or kernel.places or c is not None and c.scaled):
        return False
    if c is None or not c.packed or not all(c.along_k) or c.k == 0:
        return False
    return element_types(c).half and Sizes.of(kernel, c).m <= ROWS


def steps_of(c: ContractionInfo, given_warps: int | None, parts: int, wanted: int, most: int) -> tuple[int, int]:
    """(warps that share out k, elements of a step of the loop): those that leave the least idle, with few steps, best
    with none that is cut at its end, and near to the wanted warps, `most` blocks of words each. Of each of `parts` of
    K."""
    unit = unit_of(c.packed)
    extent = ceil_div(c.k, parts)
    units, found = ceil_div(extent, unit), [((float("inf"), 0), given_warps or 1, unit)]
    for warps in [given_warps] if given_warps else range(1, LARGE[0] + 1):
        for each in range(1, most + 1):
            step = warps * each * unit
            steps = ceil_div(extent, step)
            # A slice of all of k is as long as k is: it has to fall to the warps in whole blocks of words, too.
            whole = steps * parts > 1 or ceil_div(c.k, STEP * warps) * STEP * warps == step
            if whole:
                cost = warps * each * steps / units * (1.05 if extent % step else 1) + 0.02 * (steps - 1)
                cost += 0.2 * abs(warps - wanted) / wanted
                found.append(((round(cost, 3), -warps), warps, step))
    _, warps, step = min(found)
    return warps, min(step, c.k)


def direct_clocks(size: Sizes, c: ContractionInfo) -> float:
    """Clocks of blocks of WIDE columns, which read all rows from L2 beside their words."""
    words = size.batch * c.count * size.n * c.k * c.packed / 8
    rows = ceil_div(size.batch * c.count * size.n, WIDE) * size.m * c.k * 2
    return words / GLOBAL_BYTES + rows / L2_BYTES + LAUNCH


@register(matches=is_packed_rows, priority=40)
def packed_rows(
    kernel: KernelInfo,
    target: Target,
    *,
    block_n: int | None = None,
    block_k: int | None = None,
    warps: int | None = None,
    min_blocks: int | None = None,
    parts: int = 1,
    through: Literal["cluster", "memory"] = "cluster",
) -> ir.Module:
    """Each block multiplies all rows with `block_n` columns, which are rows of the weight, by `mma.sync` whose operands
    come from global memory straight to the registers.

    Knobs:
      block_n: columns of a block: 16, or 8 of each of two GEMMs, which share instructions then.
      block_k: elements of a step along K, which the warps share out.
      warps: warps of a block.
      min_blocks: blocks that a multiprocessor should hold.
      parts: blocks that K is divided among (split-K).
      through: where partial sums are added: in a `cluster` of 2, 4 or 8, or through `memory` by a second
        launch.
    """
    c = kernel.contraction
    assert c is not None
    size, own = Sizes.of(kernel, c), (block_n, block_k, warps, min_blocks) == (None,) * 4 and parts == 1
    if own and size.m > FEW_ROWS and is_held(kernel, target, {}):
        if held_clocks(kernel, size, target) < direct_clocks(size, c):
            return matmul(kernel, target)
        block_n = WIDE // c.count
        blocks = size.batch * ceil_div(size.n, block_n)
        if c.count == 1 and blocks > target.sms:
            warps = SMALL[0]
        elif c.count == 1 and c.k >= LONG:
            parts, warps = 2, 8
    if kernel.places and parts > 1:
        raise MlircError(f"kernel '{kernel.name}': parts={parts}: blocks that write rows to their places have all of K")
    block_n = block_n or (16 if c.count == 1 else 8)
    tiles = ceil_div(c.count * block_n, 16)  # of an instruction's columns
    blocks = size.batch * ceil_div(size.n, block_n) * parts
    few = blocks < FEW * target.sms
    wanted, most = LARGE if few else SMALL
    if size.m == 1 and c.count == 2 and blocks // target.sms in ALONE and warps is block_k is min_blocks is None:
        # All of them are there at once, a warp each, which adds up all of K by itself.
        warps, block_k, min_blocks = 1, most * unit_of(c.packed), ceil_div(blocks, target.sms)
    chosen, step = steps_of(c, warps, parts, wanted, ceil_div(most, tiles))
    warps, block_k = warps or chosen, block_k or step
    if min_blocks is None and size.m == 1 and tiles == 1 and c.packed in (4, 8):
        # Of more rows and columns ptxas would spill some registers.
        min_blocks = FEW if few else max(RESIDENT // warps, 1)
    if kernel.partial and (block_n % kernel.partial or size.n % block_n or parts > 1):
        raise MlircError(f"kernel '{kernel.name}': blocks have a multiple of {kernel.partial} columns and all of K")
    return direct_rows(
        kernel, size, block_n=block_n, block_k=block_k, warps=warps, min_blocks=min_blocks,
        first=bool(c.scaled or kernel.partial or kernel.places), parts=parts, through=through,
    )  # fmt: skip
