"""What products by wgmma, which run while the warps go on, need of the code around them."""

from __future__ import annotations

from mlirc.ir.contractions import multiply_accumulate
from mlirc.mlir import ir, nested, nvvm

AT_ONCE, AT_END, LATER = "at once", "at the end", "later"


def proxy_fence() -> None:
    """Makes this thread's writes to shared memory visible to wgmma and to tensor copies, which read through another
    proxy."""
    parse = ir.Attribute.parse
    nvvm.FenceProxyOp(parse("#nvvm.proxy_kind<async.shared>"), space=parse("#nvvm.shared_space<cta>"))


def carried(op: ir.Operation) -> ir.Value | None:
    """What a product's result is in the loop's next iteration, where only the loop takes it; else None."""
    result = op.results[0]
    while True:
        uses = list(result.uses)
        if len(uses) != 1:
            return None
        user = uses[0].owner.operation
        if user.name == "scf.yield" and user.parent.name == "scf.for":
            return op.block.arguments[1 + uses[0].operand_number]
        if user.name != "tensor.insert_slice" or uses[0].operand_number != 0 or user.block != op.block:
            return None
        result = user.results[0]


def reads(op: ir.Operation, value: ir.Value) -> bool:
    """Whether an op, or one in it, reads a value."""
    return any(v == value for o in (op, *nested(op)) for v in o.operands)


def first_reader(op: ir.Operation) -> ir.Operation | None:
    """The op in front of a product that looks at its result of the iteration before."""
    value = carried(op)
    if value is None:
        return None
    return next((o for o in _until(op) if reads(o, value)), None)


def _until(op: ir.Operation) -> list[ir.Operation]:
    ops = [o.operation for o in op.block.operations]
    return ops[: ops.index(op)]


def _overtaken(op: ir.Operation, reader: ir.Operation) -> bool:
    """Whether a product of an iteration that nobody has read yet stands in front of what looks at another one's sums of
    the iteration before: a wait there would be one for both."""
    ops = _until(reader)
    for number, other in enumerate(ops):
        if other == op or other.name != "linalg.generic" or multiply_accumulate(other) is None or carried(other):
            continue
        if not any(reads(o, other.results[0]) for o in ops[number + 1 :]):
            return True
    return False


def finish(op: ir.Operation) -> str:
    """When a product that stands in a loop is waited for: `LATER`, in the next iteration, where only the loop takes its
    result, in front of what looks at it there (or at the end, if only the product itself does); `AT_END` of its
    iteration, where others behind it still look at what the iteration before gave, or where another product of the next
    one would be under way by then; else `AT_ONCE`."""
    value = carried(op)
    if value is None:
        return AT_ONCE
    behind = [o.operation for o in op.block.operations][len(_until(op)) + 1 :]
    reader = first_reader(op)
    early = reader is not None and _overtaken(op, reader)
    return AT_END if early or any(reads(o, value) for o in behind) else LATER
