"""Concatenations of many tensors, computed a few at a time.

A kernel that reads a concatenation asks, for each element, which part it lies in: with fifty parts that is code for
every one of them, in every kernel that reads it. Beyond a few parts they are put together in kernels of their own, in
groups that begin at the first part, so that the growing concatenations of a dense block share theirs.
"""

from __future__ import annotations

from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir, tensor
from mlirc.passes.graph.space import tensor_type

MAX_PARTS = 8

_Known = dict[tuple[int, tuple[ir.Value, ...]], ir.Value]


def part_concats(block: ir.Block) -> set[ir.Operation]:
    """Gives every concatenation of the block at most MAX_PARTS parts, and returns those that were made for that: each
    is to be a kernel of its own."""
    known: _Known = {}
    made: set[ir.Operation] = set()
    for op in [o.operation for o in block.operations]:
        if op.name == "tensor.concat" and len(op.operands) > MAX_PARTS:
            axis, parts = ir.IntegerAttr(op.attributes["dim"]).value, list(op.operands)
            with op.location, ir.InsertionPoint(op):
                while len(parts) > MAX_PARTS:
                    parts = _grouped(axis, parts, known)
                whole = _concat(axis, parts)
            made |= {value.owner.operation for value in known.values()}
            op.results[0].replace_all_uses_with(whole)
            op.erase()
    return made


def _grouped(axis: int, parts: list[ir.Value], known: _Known) -> list[ir.Value]:
    """The parts with every MAX_PARTS of them made one; what is left over stays."""
    whole = len(parts) - len(parts) % MAX_PARTS
    found = []
    for i in range(0, whole, MAX_PARTS):
        group = parts[i : i + MAX_PARTS]
        key = (axis, tuple(group))
        if key not in known:
            known[key] = _concat(axis, group)
        found.append(known[key])
    return found + parts[whole:]


def _concat(axis: int, parts: list[ir.Value]) -> ir.Value:
    shape = list(shape_of(parts[0]))
    shape[axis] = sum(shape_of(p)[axis] for p in parts)
    return tensor.ConcatOp(tensor_type(shape, parts[0].type.element_type), axis, parts).result
