"""`schedule.skip_hidden_steps`: a loop goes over what is seen, by the limits by position in its body."""

from __future__ import annotations

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._limits import Bounds, read_loop
from mlirc.mlir import affine, ir


def _first_step(bounds: Bounds, limit: int, step: int) -> ir.Value:
    """The step with the first element behind row + limit, in the block's first row."""
    d = ir.AffineExpr.get_dim(0)
    return _build.applied(ir.AffineExpr.get_floor_div(d, step) * step, bounds.row_or_first(limit + 1))


def skip(loop: ir.Operation) -> None:
    """Narrows the loop's bounds; see `skip_hidden_steps`."""
    bounds = read_loop(loop)
    if not bounds.upper and not bounds.lower:
        raise PayloadError("no op of the loop hides elements by their position", loop)
    with ir.InsertionPoint(loop), loop.location:
        step = bounds.step
        if bounds.lower:
            if bounds.start != 0:
                raise PayloadError("the loop does not start at 0", loop)
            loop.operands[0] = _first_step(bounds, min(bounds.lower), step)
        if bounds.upper:
            # the last row sees most
            limit = min(bounds.upper)
            last = [ir.AffineExpr.get_constant(bounds.end), ir.AffineExpr.get_dim(0) + (bounds.rows + limit)]
            loop.operands[1] = affine.AffineMinOp(ir.AffineMap.get(1, 0, last), [bounds.row()]).result


@transform_op("skip_hidden_steps", operands=("loop",), takes="scf.for")
def skip_hidden_steps(rewriter, loops):
    """Gives each loop the bounds between which some row of the block sees something: where the body's elementwise ops
    hide (as -inf before a maximum, as 0 in a sum) what lies behind `row + constant`, or in front of it."""
    for loop in loops:
        skip(loop.operation)
