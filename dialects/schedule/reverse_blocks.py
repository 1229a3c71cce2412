"""`schedule.reverse_blocks`: a loop of a block program counts down."""

from __future__ import annotations

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.mlir import ir


@transform_op("reverse_blocks", operands=("forall",), attributes={"loop": int}, takes="scf.forall")
def reverse_blocks(rewriter, foralls, loop):
    """Numbers the steps of the forall's loop number `loop` (from the outermost, or -1 for the innermost) from the last
    one: blocks with most to do start first."""
    for forall in foralls:
        op = forall.operation
        bounds = list(ir.DenseI64ArrayAttr(op.attributes["staticUpperBound"]))
        if not -len(bounds) <= loop < len(bounds):
            raise PayloadError(f"loop {loop}: the forall has {len(bounds)}", op)
        number = loop % len(bounds)
        block = op.regions[0].blocks[0]
        iv = block.arguments[number]
        with ir.InsertionPoint.at_block_begin(block), op.location:
            made = _build.applied((bounds[number] - 1) - ir.AffineExpr.get_dim(0), iv)
        iv.replace_all_uses_except(made, made.owner.operation)
