"""`schedule.read_first`: a block program begins with all that it reads of the kernel's arguments.

A tile is loaded where its slice stands. What a block computes in front of a product, and the barriers of that, then
run while the product's operands are on their way."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.mlir import ir

_INDICES = ("affine", "arith")


def slices_of(forall: ir.Operation) -> list[ir.Operation]:
    """The slices of what stands in front of the block program, and the numbers that they need, in order."""
    body = forall.regions[0].blocks[0]
    inside = {r: op.operation for op in body.operations for r in op.operation.results}
    found: set[ir.Operation] = set()
    for op in inside.values():
        if op.name == "tensor.extract_slice" and (needed := _needed(op, inside)) is not None:
            found.update(needed)
    return [op.operation for op in body.operations if op.operation in found]


def _needed(op: ir.Operation, inside: dict[ir.Value, ir.Operation]) -> list[ir.Operation] | None:
    """The op and what of the block program it is computed of; None where that is more than numbers."""
    found, rest = [op], [v for v in op.operands if v in inside]
    while rest:
        maker = inside[rest.pop()]
        if maker.name.split(".")[0] not in _INDICES or maker.regions:
            return None
        found.append(maker)
        rest += [v for v in maker.operands if v in inside]
    return found


@transform_op("read_first", operands=("forall",), takes="scf.forall")
def read_first(rewriter, foralls):
    """Moves the slices of arguments, in their order, to the beginning of each block program: their loads are issued
    there, in front of all that it computes and waits for."""
    for forall in foralls:
        moved = slices_of(forall.operation)
        if not moved:
            raise PayloadError("the block program reads no slice of an argument", forall)
        first = forall.operation.regions[0].blocks[0].operations[0].operation
        for op in moved:
            if op == first:
                first = _next(first)
            else:
                op.move_before(first)


def _next(op: ir.Operation) -> ir.Operation:
    listed = [o.operation for o in op.block.operations]
    return listed[listed.index(op) + 1]
