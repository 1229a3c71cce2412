"""Products of a few rows with weights of 16 bits and few rows of them: each element of the weights goes from global
memory straight to the registers of the one thread that multiplies it."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.scripts._block_shape import Sizes, element_types
from mlirc.scripts._direct_rows import direct_rows
from mlirc.targets import Target

ROWS = 16  # at most: each warp reads them all
COLUMNS = 16  # of the instruction
STEP = 64  # of the instruction along k
# Blocks of 16 columns up to which they read faster than those of `matmul`, whose rings take long to fill, and divide K;
# with a longer K, whose steps follow each other, and without (benchmarks/results/verify-h100.md).
FEW, FEW_OF_SHORT, SHORT = 160, 224, 4096
HALVES, SHORT_OF_HALVES = 256, 2048  # blocks of half as many columns, and K, up to which those are faster
WARPS, MOST_WARPS = 12, 32  # of a block that has all of K at once: wanted at least, and at most
AT_ONCE = 4  # steps of the instruction that a warp's registers hold, at best


def is_few_rows(kernel: KernelInfo) -> bool:
    """2 to 16 rows times a weight [N, K] of few columns, both of 16 bits, in whole steps of the instruction."""
    c = kernel.contraction
    if kernel.obstacle or c is None or c.packed or c.chosen or c.count > 1 or kernel.matvec is not None:
        return False
    if not (element_types(c).half and c.direct and all(c.along_k)) or c.k == 0 or c.k % STEP:
        return False
    size = Sizes.of(kernel, c)
    blocks = ceil_div(size.n, COLUMNS)
    return size.batch == 1 and 1 < size.m <= ROWS and blocks <= (FEW_OF_SHORT if c.k <= SHORT else FEW)


def shares_of(k: int) -> tuple[int, int]:
    """(warps that share out k, elements of a step of the loop): all of k at once, 256 elements for each warp, 128 or 64
    where there would be few warps then; a longer k, or one that no number of warps divides so, in several steps."""
    for each in (4, 3, 2, 1, 5, 6, 7, 8):
        if k % (each * STEP) == 0 and WARPS <= k // (each * STEP) <= MOST_WARPS:
            return k // (each * STEP), k
    if k < WARPS * STEP:
        return k // STEP, k
    steps = ceil_div(k, MOST_WARPS * AT_ONCE * STEP)
    warps = ceil_div(k, steps * AT_ONCE * STEP)
    return warps, warps * AT_ONCE * STEP


@register(matches=is_few_rows, priority=25)
def few_rows(
    kernel: KernelInfo,
    target: Target,
    *,
    block_n: int | None = None,
    block_k: int | None = None,
    warps: int | None = None,
    min_blocks: int | None = None,
) -> ir.Module:
    """Each block multiplies all rows with `block_n` columns, which are rows of the weight, by `mma.sync` whose operands
    come from global memory straight to the registers.

    Knobs:
      block_n: columns of a block: 16, or 8, half an instruction's.
      block_k: elements of a step along K, which the warps share out.
      warps: warps of a block.
      min_blocks: blocks that a multiprocessor should hold.
    """
    c = kernel.contraction
    assert c is not None
    size = Sizes.of(kernel, c)
    halves = ceil_div(size.n, COLUMNS // 2) <= HALVES and c.k <= SHORT_OF_HALVES
    block_n = block_n or (COLUMNS // 2 if halves else COLUMNS)
    chosen, step = shares_of(c.k)
    block_k = block_k or (min(warps * AT_ONCE * STEP, c.k) if warps else step)
    warps = warps or chosen
    return direct_rows(kernel, size, block_n=block_n, block_k=block_k, warps=warps, min_blocks=min_blocks, first=True)
