"""What of a loop's body stays where it is, when all the rest is computed some iterations ahead (`schedule.rotate`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirc.dialects.schedule._base import PayloadError
from mlirc.dialects.schedule._dims import contraction, is_structured, producer
from mlirc.mlir import ir, nested


def reads(op: ir.Operation) -> list[ir.Value]:
    """The values that an op and what is nested in it read."""
    return [v for o in (op, *nested(op)) for v in o.operands]


def is_product(op: ir.Operation) -> bool:
    """Whether an op multiplies tiles."""
    return is_structured(op) and contraction(op) is not None


@dataclass(frozen=True)
class Behind:
    """What of a loop stays where it is when all the rest runs ahead. `ops`: what reads the results of some of it, in
    order; `ahead`: the ops of the rest whose results these read; `carried`: the numbers of what the loop carries that
    the rest computes."""

    ops: list[ir.Operation]
    ahead: list[ir.Operation]
    carried: set[int]


def behind_of(loop: ir.Operation, ops: Sequence[ir.Operation]) -> Behind:
    """Divides a loop's body by what depends on `ops`, in this iteration or in a later one; raises PayloadError where
    nothing is left that could run ahead."""
    body = loop.regions[0].blocks[0]
    carried, (*order, end) = list(body.arguments)[1:], [o.operation for o in body.operations]
    late, values, size = set(ops), list[ir.Value](), -1
    while len(late) > size:
        size = len(late)
        values = [r for op in late for r in op.results]
        values += [a for a, v in zip(carried, end.operands, strict=True) if v in values]
        late |= {op for op in order if any(v in values for v in reads(op))}
    kept = {n for n, v in enumerate(end.operands) if v not in values and v != carried[n]}
    early = [carried[n] for n in kept]  # and what is made of that, or by a product
    for op in order:
        if op not in late and (is_product(op) or any(v in early for v in reads(op))):
            early += list(op.results)
    ahead = [producer(end.operands[n]) for n in sorted(kept)]
    for value in (v for op in order if op in late for v in reads(op)):
        if value in carried and value in early:
            what = f"what the loop carries (number {carried.index(value)}) is computed ahead of what stays behind"
            raise PayloadError(f"{what}, which reads it as it was before: compute of it first what is to be read", loop)
        ahead += [producer(value)] if value in early else []
    if not ahead:
        raise PayloadError("all of the loop depends on it: there is nothing to compute ahead", ops[0])
    return Behind([op for op in order if op in late], [op for op in order if op in ahead], kept)
