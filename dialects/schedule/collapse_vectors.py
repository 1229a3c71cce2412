"""`schedule.collapse_vectors`: `schedule.collapse_dims` that leaves matrix-vector products of one row or column.

A product `[1,K] x [N,K]` keeps neither its m nor, of `[M,K] x [1,K]`, its n: it becomes a reduction of the matrix's rows.
"""

from __future__ import annotations

from mlirc.dialects.schedule._base import transform_op
from mlirc.dialects.schedule.collapse_dims import collapse


@transform_op("collapse_vectors", takes="func.func")
def collapse_vectors(rewriter, targets):
    """Collapses the dimensions of each target function, and drops what of its contractions' m and n is 1."""
    for function in targets:
        collapse(function.operation, rewriter.erase_op, vectors=True)
