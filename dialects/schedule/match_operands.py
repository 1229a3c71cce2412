"""`schedule.match_operands`: what makes the tiles that products read as one of their operands."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import contraction, is_structured
from mlirc.mlir import ir


@transform_op("match_operands", results=("slices",), attributes={"number": int}, modifies=False)
def match_operands(rewriter, targets, number):
    """For each product the op beside it that makes its operand `number` (0: the first): a tensor.extract_slice, or the
    linalg.generic that computes it of one; an error where another op makes it."""
    found = []
    for op in targets:
        if not is_structured(op) or contraction(op) is None:
            raise PayloadError("takes products", op)
        if not 0 <= number < 2:
            raise PayloadError(f"a product reads operands 0 and 1, not {number}", op)
        owner = op.operation.operands[number].owner
        beside = not isinstance(owner, ir.Block) and owner.operation.block == op.operation.block
        if not beside or owner.name not in ("tensor.extract_slice", "linalg.generic"):
            what = "neither a slice beside it nor computed there: tile the loop first (tile_reduction)"
            raise PayloadError(f"operand {number} is {what}", op)
        found.append(owner.operation)
    return [found]
