"""`schedule.state_reference`: what a kernel that computes something else on purpose is judged by."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.ir.levels import REFERENCE
from mlirc.mlir import ir
from mlirc.schedule.stated import state


@transform_op(
    "state_reference",
    operands=("function",),
    attributes={"tolerance": str, "by": str},
    takes="func.func",
    modifies=True,
)
def state_reference(rewriter, functions, tolerance, by):
    """Keeps the kernel as it is now, beside it, as its reference, in the place of the `kernels` level; results may have
    the relative error `tolerance` (a number), as `by` states."""
    for function in functions:
        op = function.operation
        beside = [o.operation for o in op.block.operations if REFERENCE in o.operation.attributes]
        if any(o.attributes[REFERENCE] == op.attributes["sym_name"] for o in beside):
            raise PayloadError("its reference is stated already", op)
        copied = op.clone(ip=ir.InsertionPoint.after(op)).operation
        copied.attributes["sym_name"] = ir.StringAttr.get(f"{ir.StringAttr(op.attributes['sym_name']).value}.reference")
        copied.attributes["sym_visibility"] = ir.StringAttr.get("private")
        copied.attributes[REFERENCE] = op.attributes["sym_name"]
        for name in ("mlirc.kernel", "mlirc.origin"):
            if name in copied.attributes:
                del copied.attributes[name]
        state(op, by, tolerance=float(tolerance))
    return []
