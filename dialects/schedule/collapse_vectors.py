"""`schedule.collapse_vectors`: `schedule.collapse_dims` that takes a one-row product's row for a unit dimension, too.

`[1,K] x [N,K]` loses its m, `[M,K] x [1,K]` its n: what is left is a reduction of the matrix's rows.
"""

from __future__ import annotations

from mlirc.dialects.schedule._base import transform_op
from mlirc.dialects.schedule.collapse_dims import collapse


@transform_op("collapse_vectors", takes="func.func")
def collapse_vectors(rewriter, targets):
    """Collapses the dimensions of each target function, and drops what of its contractions' m and n is 1."""
    for function in targets:
        collapse(function.operation, rewriter.erase_op, vectors=True)
