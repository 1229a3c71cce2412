"""Tiles of products that are computed as their transposes (`swap_operands`): the right operand's rows are the
instruction's, and few rows of the left one are few columns, of which it computes as few as eight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlirc.errors import MlircError
from mlirc.passes.distribute import instructions
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div, power_of_two
from mlirc.scripts._block_shape import ROW_BYTES, BlockShape, Sizes, element_types, is_fp32
from mlirc.targets import Target

MOST_ROWS, MOST_STAGES = 256, 16
FEW_ROWS, COLUMNS = 16, 64


def swaps(kernel: KernelInfo, size: Sizes, target: Target, given: Mapping[str, Any], tensor_copies: bool) -> bool:
    """Whether a product is computed as its transpose: as the knob says, or, where none is given, of few rows, where the
    tiles of columns are more than half the multiprocessors, and no more than two to each. With fewer, K is divided
    instead, or narrower tiles read as fast (benchmarks/results/few-rows-h200.md)."""
    if given["swap_operands"] is not None:
        return bool(given["swap_operands"])
    c = kernel.contraction
    assert c is not None
    if not (tensor_copies and target.has_wgmma and element_types(c).half and c.direct and c.count == 1):
        return False
    tiles = size.batch * ceil_div(size.n, COLUMNS)
    fitting = target.sms < 2 * tiles <= 4 * target.sms
    return size.m <= FEW_ROWS and fitting and all(knob is None for knob in given.values())


def swapped_tile(
    kernel: KernelInfo, size: Sizes, target: Target, given: Mapping[str, Any], warpgroups: str, tensor_copies: bool
) -> BlockShape:
    """The tile that a swapped product starts from: all rows (256 at most), and 64 columns, which are the rows of a
    warpgroup or of four warps. Knobs that are `given` are kept; `warpgroups` is the instruction of theirs, "" for
    none. Few rows leave room for two blocks on a multiprocessor, which read more at once than one with a longer ring.
    Raises MlircError for an instruction that chooses its operands' order itself."""
    c = kernel.contraction
    assert c is not None
    by_warps = kernel.fp32 if is_fp32(c) and kernel.fp32 != "ieee" else "mma" if element_types(c).half else "fma"
    mma = given["mma"] or warpgroups or by_warps
    if mma == "wgmma_tf32x3":
        what = "it chooses itself which operand comes first: leave swap_operands out"
        raise MlircError(f"kernel '{kernel.name}': mma={mma}: {what}")
    instruction = instructions.all_instructions()[mma]
    block_m = given["block_m"] or min(ceil_div(size.m, 8) * 8, MOST_ROWS)
    block_n = given["block_n"] or COLUMNS
    warps = 4 if block_n <= COLUMNS else 8
    if instruction.warps == 1:
        warps = power_of_two(min(max(block_n // instruction.tile[0], 1), warps))
    stages = MOST_STAGES if block_m > FEW_ROWS else MOST_STAGES // 2
    producers = 4 if warps == 8 and instruction.asynchronous else 1  # a warpgroup, which gives its registers away
    return BlockShape(
        block_m, block_n, ROW_BYTES // c.element_bytes, given["warps_m"] or 1, given["warps_n"] or warps, stages,
        mma, copy="tma" if tensor_copies else "cp_async", producers=producers, swap_operands=True,
    )  # fmt: skip
