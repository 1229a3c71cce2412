"""How a product is cut where its knobs do not say: tiles that were measured, and which of them fits. What is done with
it is in `matmul.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlirc.errors import MlircError
from mlirc.passes.distribute import instructions
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div, power_of_two
from mlirc.scripts import _bytes_tiles, _fp32_tiles, _fp32_warpgroup_tiles
from mlirc.scripts._block_shape import ROW_BYTES, BlockShape, Sizes, element_types, is_fp32, is_short
from mlirc.scripts._held_tiles import held_tile, is_held
from mlirc.scripts._packed_tiles import DIRECT, packed_tile
from mlirc.scripts._registers import most_sums
from mlirc.scripts._split_k_tiles import divided
from mlirc.scripts._stream_tiles import streamed
from mlirc.scripts._swapped_tiles import swapped_tile, swaps
from mlirc.scripts._tensor_copy_tiles import few_rows_tile, tensor_copy_tile, transposed_rows
from mlirc.scripts._warp_tiles import default_tile, warpgroup_tile
from mlirc.targets import Target


def warpgroups_for(kernel: KernelInfo, target: Target) -> str:
    """The instruction of warpgroups that a product gets unless its knobs say otherwise; "" for none. That of 8-bit
    floats keeps 13 bits of a sum of 128 products, which results of 16 bits or less do not miss; and such operands come
    by tensor copies alone."""
    c = kernel.contraction
    assert c is not None
    types = element_types(c)
    if types.half:
        return "wgmma" if target.has_wgmma else ""
    # Few rows wait for the other operand, which `mma8` transposes on its way to registers.
    along_k = all(c.along_k) or Sizes.of(kernel, c).m > 16
    fits = not instructions.refusal("wgmma8", types, target) and c.boxes and along_k and c.casts <= _SIGNED
    return "wgmma8" if fits and (is_short(kernel) or types.sums == "i32") else ""


# What warpgroups do to 8-bit operands themselves.
_SIGNED = frozenset(("arith.extf", "arith.extsi"))


def is_warpgroups(mma: str | None) -> bool:
    """Whether an instruction is one of warpgroups that reads operands as they are."""
    return mma in ("wgmma", "wgmma8", "wgmma8_fast")


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
    """Block columns to visit together: with few block rows a column at a time already shares everything. With many,
    what is left over at the end costs less than to read the left operand again for every column or two."""
    if m_blocks <= 8:
        return 1
    whole = next(g for g in (8, 4, 2, 7, 5, 3, 1) if n_blocks % g == 0)
    return 8 if whole < 4 and m_blocks >= 32 and n_blocks >= 16 else whole


def check_instruction(name: str, c: ContractionInfo, target: Target, mma: str | None) -> None:
    """Raises MlircError for an instruction that this product or target does not have."""
    why = instructions.refusal(mma, element_types(c), target) if mma else ""
    if why:
        raise MlircError(f"kernel '{name}': mma={mma}: {why}")


def by_tensor_copies(kernel: KernelInfo, target: Target, given: Mapping[str, Any]) -> bool:
    """Whether slices of both operands may come by tensor copies: K is long enough that a ring of them pays, or there
    are so many tiles that a ring goes on from one to the next while its results leave."""
    c = kernel.contraction
    assert c is not None
    several, single = is_warpgroups(given["mma"]) or bool(warpgroups_for(kernel, target)), is_fp32(c)
    long = c.k > 128 and (single or c.k * c.element_bytes > 2 * ROW_BYTES) or c.windows is not None
    size = Sizes.of(kernel, c)
    # Of 8 bits half a row, too: [100352, 64] x [256, 64] took 40 us by warps' own copies, and 19 us in bf16 by a ring.
    row = ROW_BYTES if c.element_bytes > 1 else ROW_BYTES // 2
    results = size.batch * size.m * size.n
    many = c.k * c.element_bytes >= row and size.m > 16 and results > target.sms * MANY
    # Of 16 bits rows of any length where results are wide: [6272, 112] x [672, 112] took 18.5 us by warps' own copies
    # and 11.1 by a ring, [25088, 40] x [240, 40] 23.6 and 13.3; [100352, 24] x [72, 24] 16.4 and 18.4.
    many |= c.element_bytes == 2 and size.n >= WIDE and size.m > 16 and results > target.sms * SOME
    if c.narrow:  # rows that warpgroups alone read; they multiply 64 rows at least
        several = several and size.m > 16 and (given["mma"] is None or is_warpgroups(given["mma"]))
        wanted = given["mma"] in TF32_WARPGROUPS or given["mma"] is None and kernel.fp32 in ("tf32x3", "tf32")
        single = single and wanted and _fp32_warpgroup_tiles.pays(size, c, target)
    fits = (several or single) and target.has_wgmma and c.boxes
    return fits and (long or many) and given["copy"] in (None, "tma")


def starting_tile(
    kernel: KernelInfo, size: Sizes, target: Target, given: Mapping[str, Any], tensor_copies: bool
) -> BlockShape:
    """The measured or computed tile that a product starts from: the first case that holds. Knobs that are `given`
    narrow the choice."""
    c = kernel.contraction
    assert c is not None
    half, mma = element_types(c).half, given["mma"]
    several = mma if is_warpgroups(mma) else warpgroups_for(kernel, target) if mma is None else ""
    # FP32, which tensor cores make of TF32 products: each way has tiles of its own.
    fp32 = mma or _fp32_tiles.instruction(size, c, target, kernel.fp32, tensor_copies)
    if fp32 in TF32_WARPGROUPS:
        return _fp32_warpgroup_tiles.tile(size, c, target, tensor_copies, fp32)
    if fp32 in ("tf32", "tf32x3"):
        return _fp32_tiles.tile(size, c, target, tensor_copies, fp32)
    # 8-bit operands that warpgroups do not take, or that no tensor copies bring them.
    if mma == "mma8" or mma is None and not (tensor_copies and several) and _bytes_tiles.takes(kernel, target):
        return _bytes_tiles.tile(size, c, target)
    # Packed weights are unpacked in the fragments of a warp's instructions, which take no other's.
    packed = packed_tile(size, c, target) if c.packed and half and all(c.along_k) and mma in (None, DIRECT) else None
    if packed is not None:
        return packed
    # At most 16 rows of 16 bits: bound by reading the right operand. Warpgroups would multiply 64.
    if tensor_copies and half and size.m <= 16 and mma in (None, "mma") and c.count == 1:
        return few_rows_tile(size, c, target)
    # Warpgroups whose operands another warp copies: by a count of clocks, where a tile has room for all sums.
    if tensor_copies and several and (size.m > 16 or not half or mma is not None):
        all_rows = tuple(m for m in (64, 128, 256) if m < 2 * size.m) or (64,)
        rows = (given["block_m"],) if given["block_m"] else all_rows
        columns = (given["block_n"],) if given["block_n"] else tuple(range(16, 257, 16))
        tile = tensor_copy_tile(size, kernel, target, several, rows, columns)
        if tile is not None:
            return tile
    # Warpgroups that copy ahead themselves, in pipelines of three slices of 64: tiles that were measured as they are.
    if half and several and c.direct and c.k > 128 and all(given[knob] is None for knob in MEASURED):
        tile = warpgroup_tile(size.m, size.n, size.batch, c.count, target.sms)
        if tile is not None:
            return tile
    # All others: a warp's instructions, or scalar FMA.
    return default_tile(size.m, size.n, c.k, size.batch, c.count, half, target.sms, most_sums(c.count, half, target))


MANY = 2 * 128 * 128  # results for each multiprocessor: two large tiles
SOME, WIDE = 64 * 64, 128  # the same of a short K: a small tile; and columns that a ring pays for there
TF32_WARPGROUPS = _fp32_warpgroup_tiles.INSTRUCTIONS
MEASURED = ("block_m", "block_n", "block_k", "warps_m", "warps_n", "stages")


def choose(kernel: KernelInfo, target: Target, given: Mapping[str, Any]) -> BlockShape:
    """How to cut a product: knobs that are `given` (not None) as they are, the others to fit. Raises MlircError for an
    instruction that cannot be."""
    c = kernel.contraction
    assert c is not None
    check_instruction(kernel.name, c, target, given["mma"])
    if is_held(kernel, target, given):
        return held_tile(kernel, Sizes.of(kernel, c), target, given)
    size, tensor_copies = Sizes.of(kernel, c), by_tensor_copies(kernel, target, given)
    if swaps(kernel, size, target, given, tensor_copies):
        start = swapped_tile(kernel, size, target, given, warpgroups_for(kernel, target), tensor_copies)
    else:
        start = starting_tile(kernel, size, target, given, tensor_copies)
        if c.chosen:  # whose K is not divided, also where a tile of its own would have it so
            start = replace(start, parts=1)
        else:
            start = divided(start, kernel, size, c, target, given, tensor_copies)
        start = streamed(start, kernel, size, c, target, given)
    mma = given["mma"] or start.mma
    tile = replace(
        start, mma=mma, block_m=given["block_m"] or start.block_m, block_n=given["block_n"] or start.block_n,
        copy=given["copy"] or (start.copy if mma == start.mma else "cp_async"),
        warps_k=given["warps_k"] or (start.warps_k if (given["warps_m"], given["warps_n"]) == (None, None) else 1),
        parts=given["parts"] or (1 if given["stream"] else start.parts), stream=given["stream"] or start.stream,
        producers=given["producers"] or start.producers,
    )  # fmt: skip
    warps_m, warps_n = fitting_warps(tile, start, c, given["warps_m"] is not None)
    tile = replace(tile, warps_m=given["warps_m"] or warps_m, warps_n=given["warps_n"] or warps_n)
    through = start.through if tile.parts == start.parts else "cluster" if tile.parts in (2, 4, 8) else "memory"
    whole = tile.copy == "tma" and tile.parts == 1 and not tile.swap_operands
    whole = whole and not instructions.all_instructions()[mma].shares_k
    tile = replace(tile, through=given["through"] or through, store=given["store"] or ("tma" if whole else "vector"))
    if tile.swap_operands and given["store"] is None:
        tile = replace(tile, store="rows")
    check_together(kernel.name, tile, given)
    if c.chosen and tile.parts > 1:
        raise MlircError(f"kernel '{kernel.name}': parts={tile.parts}: chosen matrices are not divided: leave it out")
    if c.chosen and tile.stream:
        raise MlircError(f"kernel '{kernel.name}': stream={tile.stream}: chosen matrices are not divided: leave it out")
    block_k, stages = given["block_k"], given["stages"]
    tile = replace(tile, block_k=fitting_slice(tile, c, target) if block_k is None else block_k)
    tile = replace(tile, stages=fitting_stages(tile, c, target) if stages is None else stages)
    if c.chosen:  # each block ends by itself, and shares what its neighbours read only if they have one matrix
        return replace(tile, group=given["group"] or 1, cluster=given["cluster"] or 1, persist=given["persist"] or 0)
    return launched(tile, size, target.sms, given)


def check_together(name: str, tile: BlockShape, given: Mapping[str, Any]) -> None:
    """Raises MlircError for a knob that is `given` and would change nothing."""
    if tile.copy != "tma" and given["producers"] is not None:
        raise MlircError(f"kernel '{name}': producers={given['producers']}: none copy without copy=tma: add that")
    if tile.copy != "tma" and given["store"] == "tma":
        raise MlircError(f"kernel '{name}': store=tma: results leave by tensor copies where copy=tma: add that")
    if tile.warps_k > 1 and not instructions.all_instructions()[tile.mma].shares_k:
        raise MlircError(
            f"kernel '{name}': warps_k={tile.warps_k}: warps of mma={tile.mma} do not share out k: leave it out"
        )
    if tile.stream and tile.parts > 1:
        raise MlircError(f"kernel '{name}': stream={tile.stream}: divides K itself: leave parts out")
    if tile.parts == 1 and given["through"] is not None:
        raise MlircError(f"kernel '{name}': through={given['through']}: K has one part: give parts=2 or more")


def fitting_warps(tile: BlockShape, start: BlockShape, c: ContractionInfo, given: bool) -> tuple[int, int]:
    """(warps_m, warps_n) of a tile that began as `start`; `given`: a knob says the first."""
    instruction = instructions.all_instructions()[tile.mma]
    warps = start.warps_m, start.warps_n
    if instruction.warps == 4 and not given and start.mma != tile.mma:
        return (8 if tile.block_m > 64 else 4), 1
    if (tile.block_m, tile.block_n) == (start.block_m, start.block_n) or tile.mma in TF32_WARPGROUPS:
        return warps
    cores = element_types(c).half or instruction.tile != (1, 1)
    sums = c.count * instruction.accumulators
    if warps_fit(tile.block_m, tile.block_n, warps, sums, cores):
        return warps
    return default_warps(tile.block_m, tile.block_n, sums, cores)


def staged_extents(tile: BlockShape, c: ContractionInfo) -> tuple[int, int]:
    """Rows and columns of a tile in shared memory: those that run along m or n lie in whole panels of 128 bytes."""
    panel = ROW_BYTES // c.element_bytes
    if not instructions.all_instructions()[tile.mma].in_panels(not c.panels and c.boxes, panel):
        return tile.block_m, tile.block_n
    return ceil_div(tile.block_m, panel) * panel, ceil_div(tile.block_n, panel) * panel


def fitting_slice(tile: BlockShape, c: ContractionInfo, target: Target) -> int:
    """The elements of K per step: what the instruction asks for, or the tile's, no longer than K; and two fit."""
    fixed = instructions.all_instructions()[tile.mma].slice_bytes // c.element_bytes
    block_k = fixed or min(tile.block_k, max(16, 1 << (c.k - 1).bit_length()))
    while (
        block_k > 16 and 2 * shared_bytes(*staged_extents(tile, c), block_k, c.count, c.element_bytes) > target.max_smem
    ):
        block_k //= 2
    return block_k


def fitting_stages(tile: BlockShape, c: ContractionInfo, target: Target) -> int:
    """The depth of the copy pipeline: as many slices as fit beside what else is in shared memory, or the tile's."""
    rows, columns = staged_extents(tile, c)
    # Two panels of sixteen rows of 128 bytes of each warp leave by tensor copies.
    others = 2048 + tile.warps_m * tile.warps_n * 4096 if tile.store == "tma" else 1024
    others += 4 * tile.block_m * tile.block_n * c.count * tile.warps_k if tile.warps_k > 1 else 0
    others += 8 * rows * tile.block_k if tile.mma == "wgmma_tf32x3" else 0  # rests of two slices
    others += 4 * (tile.block_m + 8) * (tile.block_n + 8) * c.count if tile.store == "rows" else 0  # on their way
    anew = transposed_rows(c, rows, columns) if is_warpgroups(tile.mma) else 0
    if anew:
        rows, columns = (ceil_div(x, ROW_BYTES) * ROW_BYTES for x in (rows, columns))
        others += 2 * ROW_BYTES * anew  # two transposed slices
    room = (target.max_smem - others) // shared_bytes(rows, columns, tile.block_k, c.count, c.element_bytes)
    # A producer's ring has two slots at least, also where a part of K is but one slice.
    least = 3 if instructions.all_instructions()[tile.mma].asynchronous else 2 if tile.copy == "tma" else 1
    stages = max(min(tile.stages, room, ceil_div(ceil_div(c.k, tile.block_k), tile.parts)), least)
    if tile.mma in TF32_WARPGROUPS and tile.copy == "tma" and stages > 3:
        return 1 << (stages.bit_length() - 1)  # slots are numbered by a mask then, not by a division
    return stages


def launched(tile: BlockShape, size: Sizes, sms: int, given: Mapping[str, Any]) -> BlockShape:
    """The tile with how its blocks are visited, how many are launched (0: one per tile), and how many form a cluster:
    with producer warps, two that follow each other where there are many tiles; a block then takes several."""
    blocks = ceil_div(size.m, tile.block_m), ceil_div(size.n, tile.block_n)
    group = given["group"] or (default_group(*blocks) if tile.through == "cluster" else 1)
    cluster, persist = given["cluster"] or 1, given["persist"] or 0
    if tile.copy == "tma" and tile.parts == 1:
        tiles = blocks[0] * blocks[1] * size.batch
        run = math.gcd(group, blocks[1]) if group > 1 else blocks[0]
        # Neighbours meet in L2 anyway, unless there are many tiles. Halves of what they share are whole groups of rows.
        covered = (min(tile.block_m, ceil_div(size.m, 8) * 8), min(tile.block_n, ceil_div(size.n, 8) * 8))
        halves = all(extent % 16 == 0 for extent in covered)
        cluster = given["cluster"] or (2 if run % 2 == 0 and tiles > 8 * sms and halves else 1)
        persist = given["persist"] or (sms // cluster * cluster if tiles > sms else 0)
    if tile.stream:
        persist = persist or sms // cluster * cluster
    return replace(tile, group=group, cluster=cluster, persist=persist)
