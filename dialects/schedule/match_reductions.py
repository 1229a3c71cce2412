"""`schedule.match_reductions`: the reductions of a block program that are no contractions."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import contraction, structure, structured_ops


@transform_op("match_reductions", results=("reductions",), modifies=False, takes="scf.forall")
def match_reductions(rewriter, foralls):
    """The linalg ops of each block program, those in its loops aside, that reduce a dimension and are no contractions;
    an error when there is none."""
    found = []
    for forall in foralls:
        for op in structured_ops(forall.operation.regions[0].blocks[0]):
            if op.name == "linalg.generic" and not all(structure(op).parallel) and contraction(op) is None:
                found.append(op)
    if not found:
        raise PayloadError("found no reduction", foralls[0] if foralls else None)
    return [found]
