"""`schedule.generalize`: named linalg ops become generics, so that schedules see one form. Fills stay."""

from __future__ import annotations

from mlirc.dialects.schedule._base import transform_op
from mlirc.mlir import ir, linalg, pass_manager


def generalize_all(function: ir.Operation) -> None:
    """Generalizes every named linalg op of the function except fill, in place."""
    block = function.regions[0].blocks[0]
    names = {o.operation.name for o in block.operations}
    if not any(n.startswith("linalg.") and n not in ("linalg.generic", "linalg.fill") for n in names):
        return
    pass_manager("any(linalg-generalize-named-ops)").run(function)
    for op in list(block.operations):
        op = op.operation
        if op.name == "linalg.generic" and _is_fill(op):
            with ir.InsertionPoint(op), op.location:
                new = linalg.fill(op.operands[0], outs=[op.operands[1]])
            op.results[0].replace_all_uses_with(new)
            op.erase()


def _is_fill(op: ir.Operation) -> bool:
    """The generic that the pass makes of a linalg.fill: yields its one scalar input."""
    body = op.regions[0].blocks[0]
    ops = list(body.operations)
    scalar = len(op.operands) == 2 and not isinstance(op.operands[0].type, ir.RankedTensorType)
    return scalar and len(ops) == 1 and ops[0].operation.operands[0] == body.arguments[0]


@transform_op("generalize", takes="func.func")
def generalize(rewriter, targets):
    """Generalizes the named linalg ops of each target function."""
    for function in targets:
        generalize_all(function.operation)
