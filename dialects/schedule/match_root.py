"""`schedule.match_root`: the op of a kernel whose iteration space the others are fused into."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import structure, structured_ops
from mlirc.mlir import ir


def root_of(function: ir.Operation) -> ir.Operation:
    """The last linalg op that has the most parallel dimensions; raises PayloadError when there is no linalg op."""
    ops = structured_ops(function.regions[0].blocks[0])
    if not ops:
        raise PayloadError("no linalg.generic or linalg.fill in the kernel", function)
    return max(reversed(ops), key=lambda op: sum(structure(op).parallel))


@transform_op("match_root", results=("root",), modifies=False, takes="func.func")
def match_root(rewriter, targets):
    """The root op of each target function."""
    return [[root_of(t.operation) for t in targets]]
