"""`schedule.reduce_together`: reductions that do not need each other's results stand together.

Where a row is shared by blocks, all reductions under way share a meeting, which is where somebody reads one of them."""

from __future__ import annotations

from mlirc.dialects.schedule._base import transform_op
from mlirc.mlir import ir, nested


def _reduces(op: ir.Operation) -> bool:
    return op.name == "linalg.generic" and any("reduction" in str(t) for t in op.attributes["iterator_types"])


def meetings(ops: list[ir.Operation]) -> list[int]:
    """How many reductions of a block's operations stand behind each other, at most, in front of each of them: what it
    reads, or what a loop's body does, is made by so many."""
    depth: dict[ir.Value, int] = {}
    found = []
    for op in ops:
        number = max((depth.get(v, 0) for inner in (op, *nested(op)) for v in inner.operands), default=0)
        found.append(number)
        depth |= dict.fromkeys(op.results, number + _reduces(op))
    return found


def _order(block: ir.Block) -> None:
    *ops, last = [op.operation for op in block.operations]
    behind = dict(zip(ops, meetings(ops), strict=True))
    for op in sorted(ops, key=behind.__getitem__):  # stable
        op.move_before(last)
    for op in ops:
        if op.name == "scf.for":
            _order(op.regions[0].blocks[0])


@transform_op("reduce_together", operands=("forall",), takes="scf.forall")
def reduce_together(rewriter, foralls):
    """Orders the operations of each block program, and of its loops, by how many reductions they have to wait for: what
    reads a result comes behind all reductions, and loads, that do not."""
    for forall in foralls:
        _order(forall.operation.regions[0].blocks[0])
