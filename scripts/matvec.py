"""Matrix-vector products, and products with one row or one column: reductions of the matrix's rows."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div, collapse_vectors, power_of_two, product
from mlirc.scripts.reduction import MAX_ROW, whole_rows
from mlirc.targets import Target


MAX_ELEMENTS = 64  # of a row that one thread holds


def is_matvec(kernel: KernelInfo) -> bool:
    """Products with a vector along the rows of matrices, which fit one block."""
    found = kernel.matvec
    if kernel.obstacle or found is None or found.row_length > MAX_ROW:
        return False
    return any(not d.whole for d in found.dims)


def rows_and_warps(length: int, vector: int, rows: int, sms: int) -> tuple[int, int]:
    """(rows per block, warps per block) for rows of `length` elements, of which a thread loads `vector` at a time.

    A row is divided among the warps that leave the fewest lanes idle, each lane with two loads under way or more: on an
    H200 that reads [N, 2048..18944] of 16 and of 32 bits within 2 us of the memory's speed, and more rows per warp or a
    load per lane do not. Of short rows a block takes several.
    """
    loads = ceil_div(length, 32 * vector)  # of a row's lanes, were they one warp's
    least = ceil_div(length, 32 * MAX_ELEMENTS)

    def idle(warps: int) -> float:
        return ceil_div(loads, warps) * warps / loads

    fitting = range(max(least, 1), max(min(loads // 2, 12), least, 1) + 1)
    best = min(idle(w) for w in fitting)
    warps = max(w for w in fitting if idle(w) <= best + 0.02)
    lanes = 1 << max(ceil_div(length, vector) - 1, 0).bit_length()
    block_rows = max(32 // lanes, 1) * max(power_of_two(4 // warps), 1)
    while block_rows > 1 and ceil_div(rows, block_rows) < 2 * sms:
        block_rows //= 2
    return block_rows, warps * max(block_rows * lanes // 32, 1) if lanes < 32 else warps * block_rows


@register(matches=is_matvec, priority=30)
def matvec(
    kernel: KernelInfo,
    target: Target,
    *,
    rows: int | None = None,
    warps: int | None = None,
    vector: int | None = None,
    min_blocks: int | None = None,
) -> ir.Module:
    """Each block multiplies `rows` rows of the matrix by the vector. Bound by reading the matrix.

    Knobs: `rows` and `warps` per block, `vector` elements per thread along the row; `min_blocks` that a multiprocessor
    should hold.
    """
    found = kernel.matvec
    assert found is not None
    extents = [d.extent for d in found.dims if not d.whole]
    if vector is None:
        vector = max(16 // found.matrix_bytes, 1)
        while found.row_length % vector:
            vector //= 2
    default_rows, default_warps = rows_and_warps(found.row_length, vector, product(extents), target.sms)
    rows = rows or min(default_rows, extents[-1])
    warps = warps or default_warps
    return whole_rows(found.dims, collapse_vectors, rows=rows, warps=warps, vector=vector, min_blocks=min_blocks)
