"""`schedule.match_contractions`: the multiply-accumulate ops inside an op."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import contraction, is_structured
from mlirc.mlir import ir


def contractions_in(op: ir.Operation) -> list[ir.Operation]:
    """Contractions nested in the op, in program order."""
    found: list[ir.Operation] = []

    def visit(o: ir.Operation) -> ir.WalkResult:
        if is_structured(o) and contraction(o):
            found.append(o)
        return ir.WalkResult.ADVANCE

    op.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


@transform_op("match_contractions", results=("contractions",), modifies=False)
def match_contractions(rewriter, targets):
    """All contractions nested in the targets; an error when there is none."""
    found = [c for t in targets for c in contractions_in(t)]
    if not found:
        raise PayloadError("found no contraction", targets[0] if targets else None)
    return [found]
