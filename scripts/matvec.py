"""Matrix-vector products, and products with one row or one column: reductions of the matrix's rows."""

from __future__ import annotations

from math import gcd
from typing import Literal

from mlirc.dialects.schedule.split_k import NUMBERS, NUMBERS_OF_WARP
from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo, MatvecInfo
from mlirc.schedule.verbs import (
    annotate,
    ceil_div,
    collapse_vectors,
    generalize,
    last_block,
    match_contractions,
    match_root,
    power_of_two,
    product,
    read_matrices,
    script,
    split_k,
    tidy,
    tile_reduction,
    tile_to_blocks,
)
from mlirc.scripts.reduction import MAX_ROW, load_width, rows_and_warps_once, sizes_of_rows, whole_rows
from mlirc.targets import Target

MOST, LEAST = 16 * 1024, 2 * 1024  # elements of a part of a long row
LONG, LANE_BYTES = 4608, 1184  # elements of a row that one warp takes, and bytes of it that a lane may
MANY, SHORT_BYTES, BLOCK_ROWS = 32000, 4096, 8  # so many rows, of so few bytes, are read by eight to a block


def is_matvec(kernel: KernelInfo) -> bool:
    """Products with a vector along the rows of matrices."""
    found = kernel.matvec
    if found is None or all(d.whole for d in found.dims):
        return False
    if kernel.obstacle and not (found.reduces or kernel.places or kernel.partial):
        return False
    whole = found.row_length <= MAX_ROW
    return whole or not kernel.places and kernel.contraction is not None and kernel.contraction.k > 0


@register(matches=is_matvec, priority=30)
def matvec(
    kernel: KernelInfo,
    target: Target,
    *,
    rows: int | None = None,
    warps: int | None = None,
    vector: int | None = None,
    min_blocks: int | None = None,
    part: int | None = None,
    combine: Literal["last", "launch"] | None = None,
) -> ir.Module:
    """Each block multiplies `rows` rows of the matrix by the vector, or a part of a row that is long. Bound by reading
    the matrix.

    Knobs:
      rows: rows of the matrix of a block.
      warps: warps of a block.
      vector: elements of a thread along the row.
      min_blocks: blocks that a multiprocessor should hold.
      part: elements of a row of a block, where a row is divided (split-K).
      combine: who adds the parts of a row: the `last` block done, or a second `launch`.
    """
    found = kernel.matvec
    assert found is not None
    extents = [d.extent for d in found.dims if not d.whole]
    vector = vector or load_width(found.matrix_bytes, found.row_length)
    total = product(extents)
    if part or found.row_length > MAX_ROW:
        part = part or part_of_row(found.row_length, total, target.sms)
        default_rows, default_warps = rows_and_warps_once(part, found.matrix_bytes, vector, total * 64, target.sms)
    else:
        default_rows, default_warps = rows_and_warps(found, vector, total, target.sms)
    if kernel.places:
        default_rows = gcd(default_rows, kernel.places)
    if kernel.partial:
        # A block has whole parts of its result, each warp a row of the matrix.
        default_rows = default_warps = kernel.partial
    rows = rows or min(default_rows, extents[-1])
    warps = warps or default_warps
    if kernel.places and part and part < found.row_length:
        raise MlircError(f"kernel '{kernel.name}': part={part}: blocks that write rows to their places have whole ones")
    if kernel.partial and (rows % kernel.partial or part and part < found.row_length):
        raise MlircError(f"kernel '{kernel.name}': its blocks have a multiple of {kernel.partial} rows, whole ones")
    if part and part < found.row_length:
        return parts_of_rows(
            found, rows=rows, warps=warps, vector=vector, part=part, combine=combine, min_blocks=min_blocks
        )
    if combine:
        raise MlircError(f"kernel '{kernel.name}': combine={combine}: rows are whole: give part, less than a row")
    return whole_rows(
        found.dims,
        collapse_vectors,
        rows=rows,
        warps=warps,
        vector=vector,
        min_blocks=min_blocks,
        chosen=found.chosen,
        read=True,
        places=kernel.places > 0,
        partial=kernel.partial > 0,
        parts=found.parts,
    )


def rows_and_warps(found: MatvecInfo, vector: int, rows: int, sms: int) -> tuple[int, int]:
    """(rows per block, warps per block) of rows that are read whole. On an H200, in chains of a layer's products: where
    a block computes a norm first, four warps to a row at most (0.7 us a launch less than eight); a long row is one
    warp's, as long as its lanes hold it: that needs no barriers (0.2 to 2.2 us less than five to eleven). Of many short
    rows, a head's, a block takes eight, two to a warp: starting a block for each 4 KB costs more than reading them (40
    of the 156 us of 128,256 rows, 9 of 40 of 32,000)."""
    norm = found.reduces and not found.parts
    longest = found.row_length * found.matrix_bytes <= 32 * LANE_BYTES
    if found.row_length >= LONG and longest and not (norm or found.chosen):
        return 1, 1
    block_rows, warps = rows_and_warps_once(found.row_length, found.matrix_bytes, vector, rows, sms)
    short = found.row_length * found.matrix_bytes <= SHORT_BYTES and not found.chosen
    if rows >= MANY and short and block_rows < BLOCK_ROWS:
        return BLOCK_ROWS, 4
    return (1, 4) if norm and block_rows == 1 and warps == 8 else (block_rows, warps)


def part_of_row(length: int, rows: int, sms: int) -> int:
    """Elements of a part: as many as leave eight blocks to each multiprocessor, within bounds."""
    return min(max(power_of_two(length * rows // (8 * sms)), LEAST), MOST)


def parts_of_rows(
    found: MatvecInfo, *, rows: int, warps: int, vector: int, part: int, combine: str | None,
    min_blocks: int | None,
) -> ir.Module:  # fmt: skip
    """The script of blocks that take a part of `rows` rows each, and of what adds the parts."""
    sizes, innermost = sizes_of_rows(found.dims, rows)
    chosen = dict(rows=rows, warps=warps, vector=vector, part=part, combine=combine, min_blocks=min_blocks)
    with script(**chosen) as (module, function):
        generalize(function)
        collapse_vectors(function)
        forall = tile_to_blocks(match_root(function), sizes=sizes, keep=[innermost], order=[])
        if found.chosen:
            read_matrices(forall)
        tiled, loop = tile_reduction(match_contractions(forall), size=part)
        annotate(tiled, vector=vector)
        numbers = NUMBERS_OF_WARP * warps if combine == "last" else NUMBERS
        launches = split_k(loop, parts=ceil_div(found.row_length, part), through="memory", numbers=numbers)
        if combine == "last":
            last_block(launches[1], warps=warps)
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, *launches)
    return module
