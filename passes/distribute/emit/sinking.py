"""Computes what is stored in parts right in front of each part, not in front of all: ptxas would compute the parts
side by side, and spill registers."""

from __future__ import annotations

from mlirc.mlir import ir

_PURE = ("arith", "math", "vector")


def _position(op: ir.Operation, block: ir.Block) -> ir.Operation | None:
    """The operation of a block that is `op`, or has it nested inside; None if there is none."""
    while op is not None and op.block != block:
        parent = op.block.owner
        op = parent.operation if parent is not None else None
    return op


def sink_to_parts(block: ir.Block, first: ir.Operation, marks: list[ir.Operation]) -> None:
    """Moves pure operations of `block` that stand between `first` and the first of `marks`, and whose results are used
    behind a mark alone, to the last mark in front of their first use. `marks`: operations of the block, in order."""
    order: dict[ir.Operation, int] = {}
    before: list[ir.Operation] = []
    started, part = False, 0
    for view in block.operations:
        op = view.operation
        while part < len(marks) and op == marks[part]:
            part += 1
        if part:
            order[op] = part
        elif started:
            before.append(op)
        started = started or op == first
    places = list(marks)  # of each part, where the next one is moved to: operations are met from the last one on
    for op in reversed(before):
        if op.name.split(".")[0] not in _PURE or op.name == "arith.constant" or op.regions:
            continue
        users = [order.get(_position(use.owner.operation, block), 0) for r in op.results for use in r.uses]
        if not users or 0 in users:
            continue
        part = min(users)
        op.move_before(places[part - 1])
        places[part - 1] = op
        order[op] = part
