"""Where ptxas spills although a thread could have more registers, and what a schedule says so that it does not.

ptxas takes 48, 80, 96 or 128 registers of its own accord, and spills what is over, to make room for blocks that shared
memory has none for anyway, or that the launch does not have. `min_blocks` says how many there will be: none that leave
a thread less than `ROOM`, and no more than shared memory holds. What is left to ptxas where it does not spill stays so;
where it does was found with ptxas 13.0 on every kernel of the `models` suite (`benchmarks/results/ptxas.md`).
"""

from __future__ import annotations

from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import AttentionShape, KernelInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.scripts._block_shape import BlockShape, Sizes, element_types
from mlirc.targets import Target

REGISTERS = 65536  # of a multiprocessor
ROOM = 168  # registers of a thread that none of these kernels spills with
TF32_REGISTERS = 210  # of a thread with 32 sums of three TF32 products, and its share of the copies


def roomy_blocks(threads: int) -> int:
    """As many blocks of so many threads as leave each `ROOM`; the lowering takes no more than fit."""
    return max(REGISTERS // (threads * ROOM), 1)


def product_blocks(tile: BlockShape, size: Sizes, c: ContractionInfo, target: Target) -> int | None:
    """`min_blocks` of a product's tile; None: what ptxas takes does."""
    threads = 32 * tile.warps_m * tile.warps_n * tile.warps_k
    held = c.packed if tile.copy == "tma" else 0  # bits of what comes of the right operand
    right = c.count * tile.block_n * tile.block_k * (held or 8 * c.element_bytes) // 8
    slice_bytes = tile.block_m * tile.block_k * c.element_bytes + right
    fitting = target.sm_smem // (tile.stages * slice_bytes + 2048)
    if tile.mma == "mma" and tile.copy == "tma":
        # ptxas would save registers instead, and read one operand at a time from shared memory.
        return 2 if fitting == 2 else 1
    if tile.swap_operands and tile.copy == "tma" and tile.parts == 1:
        return min(fitting, 2) or None
    if tile.copy != "cp_async":
        return None
    steps = ceil_div(ceil_div(c.k, tile.parts), tile.block_k)
    whole = tile.mma == "fma" and c.direct and size.n % tile.block_n == 0
    # All slices are on their way at once: the loop's few steps keep all addresses.
    at_once = whole and tile.block_m == 4 and steps <= tile.stages and target.cc >= 90
    if tile.parts > 1:
        return roomy_blocks(threads) if at_once else None
    if tile.mma == "tf32x3":  # two blocks would leave a thread 128 registers
        wide = c.count == 1 and tile.block_m * tile.block_n >= 1024 * tile.warps_m * tile.warps_n
        return 1 if fitting == 2 and wide and fitting * threads * TF32_REGISTERS > REGISTERS else None
    sums = c.count * tile.block_m * tile.block_n // threads
    # A target whose ptxas takes 80 registers for six blocks where four fit.
    six = whole and (tile.block_m, tile.block_n) == (64, 32) and size.m % 64 == 0 and is_power_of_two(c.k)
    six = six and target.cc == 80
    # Two products and their gate, on a target that keeps pairs of f32 in registers that follow each other.
    gated = tile.mma == "mma" and element_types(c).half and c.count == 2 and sums == 64 and target.cc == 100
    return roomy_blocks(threads) if at_once or six or gated else None


def attention_blocks(kernel: KernelInfo, a: AttentionShape, target: Target, mma: str, warps: int) -> int | None:
    """`min_blocks` of attention's blocks of so many warps; None: what ptxas takes does."""
    if mma != "mma" or a.window or target.cc not in (80, 100):
        return None
    if a.causal:  # a fourth block would leave a thread 128 registers, four bytes too few
        return roomy_blocks(32 * warps) if target.cc == 100 and warps == 4 and a.head_dim == 64 else None
    # A float mask with rows for all queries, and a warp that looks at all of a long row by itself.
    masks = [x for x in kernel.arguments[3:] if x.dtype not in ("i1", "i8") and x.shape[-2:] == (a.q_len, a.kv_len)]
    biased = bool(masks) and warps > 1 and target.cc == 80
    return roomy_blocks(32 * warps) if biased or warps == 1 and a.kv_len > 1024 else None


def row_blocks(target: Target, rows: int, warps: int, row_length: int, element: int) -> int | None:
    """`min_blocks` of blocks whose warps hold a whole row of f32 each; None: what ptxas takes does."""
    held = warps > 1 and rows == warps and element == 4 and row_length >= 768
    return roomy_blocks(32 * warps) if held and target.cc < 90 else None


def most_sums(count: int, half: bool, target: Target) -> int:
    """How many sums of `count` products of 16-bit operands a thread has room for beside their epilogue; 0: for all."""
    return 96 if half and count > 1 and target.cc == 100 else 0


def is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0
