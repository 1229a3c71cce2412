"""Matrix-vector products, and products with one row or one column: reductions of the matrix's rows."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import collapse_vectors, product
from mlirc.scripts.reduction import MAX_ROW, load_width, rows_and_warps_once, whole_rows
from mlirc.targets import Target


def is_matvec(kernel: KernelInfo) -> bool:
    """Products with a vector along the rows of matrices, which fit one block."""
    found = kernel.matvec
    if kernel.obstacle or found is None or found.row_length > MAX_ROW:
        return False
    return any(not d.whole for d in found.dims)


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
    vector = vector or load_width(found.matrix_bytes, found.row_length)
    default_rows, default_warps = rows_and_warps_once(
        found.row_length, found.matrix_bytes, vector, product(extents), target.sms
    )
    rows = rows or min(default_rows, extents[-1])
    warps = warps or default_warps
    return whole_rows(found.dims, collapse_vectors, rows=rows, warps=warps, vector=vector, min_blocks=min_blocks)
