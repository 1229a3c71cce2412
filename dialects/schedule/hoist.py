"""`schedule.hoist`: numbers that the ops of a loop read from tensors for each element alike are read once, in front."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import body_of, structured_ops
from mlirc.mlir import ir, nested

_FREE = ("arith.constant",)


def alike(op: ir.Operation, loop: ir.Operation) -> list[ir.Operation]:
    """The ops of a linalg op's body that compute the same for each element in each step, and need a number of a tensor
    for it, in order; with the constants that they take."""
    inside = set(nested(loop)) | {loop}
    known: dict[ir.Operation, bool] = {}  # whether it needs a number of a tensor
    for inner in (o.operation for o in body_of(op).operations):
        numbers = not any(isinstance(r.type, ir.RankedTensorType) for r in inner.results)
        if not numbers or inner.name != "tensor.extract" and not inner.name.startswith("arith."):
            continue
        makers = [v.owner.owner if isinstance(v.owner, ir.Block) else v.owner for v in inner.operands]
        makers = [m.operation for m in makers]
        if all(m in known or m not in inside for m in makers):
            known[inner] = inner.name == "tensor.extract" or any(known.get(m, False) for m in makers)
    wanted = {o for o, reads in known.items() if reads}
    for inner in reversed(list(known)):
        if inner in wanted:
            wanted |= {v.owner.operation for v in inner.operands if not isinstance(v.owner, ir.Block)} & set(known)
    return [o for o in known if o in wanted]


def hoist_from(loop: ir.Operation) -> int:
    """Moves them in front of the loop; returns how many ops that were."""
    count = 0
    for op in structured_ops(loop.regions[0].blocks[0]):
        if op.name != "linalg.generic":
            continue
        values: dict[ir.Value, ir.Value] = {}
        found = alike(op, loop)
        for inner in found:
            with ir.InsertionPoint(loop), inner.location:
                copy = inner.clone().operation
            for i, v in enumerate(copy.operands):
                copy.operands[i] = values.get(v, v)
            values |= dict(zip(inner.results, copy.results, strict=True))
        for inner in reversed(found):
            for old in inner.results:
                old.replace_all_uses_with(values[old])
            inner.erase()
        count += len(found)
    return count


@transform_op("hoist", operands=("loop",), takes="scf.for")
def hoist(rewriter, loops):
    """Moves in front of each loop what the linalg ops of its body read from tensors (`tensor.extract`), or compute of
    that, for each of their elements and in each step alike: a number that all of a block has in common."""
    for loop in loops:
        if not hoist_from(loop.operation):
            raise PayloadError("no op of the loop reads a number that is the same for all of its elements", loop)
