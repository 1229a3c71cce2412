"""Indices that depend on data: a load takes the nearest element of its buffer, a store outside of it is left out.

PyTorch raises an error for them. A kernel cannot, and must neither read nor write memory that is another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlirc.mlir import arith, ir, scf

ACCESSES = ("memref.load", "memref.store", "memref.subview")
Note = Callable[[ir.Operation, ir.Value, int], None]


def keep_inside(op: ir.Operation, note: Note = lambda op, index, extent: None) -> None:
    """Guards one of ACCESSES, in place. `note` is called for every index that may be outside of its extent, where
    operations can be inserted in front of `op`."""
    inside = None
    for position, value, extent in list(_indices(op)):
        if not _from_data(value) or _clamped(value, extent):
            continue
        with op.location, ir.InsertionPoint(op):
            note(op, value, extent)
            index = ir.IndexType.get()
            if op.name == "memref.store":  # unsigned: a negative index is above every extent
                good = arith.cmpi(arith.CmpIPredicate.ult, value, arith.constant(index, extent))
                inside = good if inside is None else arith.andi(inside, good)
            else:
                zero, last = (arith.constant(index, max(n, 0)) for n in (0, extent - 1))
                op.operands[position] = arith.minsi(arith.maxsi(value, zero), last)
    if inside is not None:
        with op.location, ir.InsertionPoint(op):
            branch = scf.IfOp(inside)
        with op.location, ir.InsertionPoint(branch.then_block):
            end = scf.YieldOp([])
        op.move_before(end.operation)


def _indices(op: ir.Operation) -> Iterator[tuple[int, ir.Value, int]]:
    """(number of the operand, index, extent that it must be below) of a load or store, or of a view's offsets."""
    if op.name == "memref.subview":
        offsets, sizes = (list(op.attributes[f"static_{n}"]) for n in ("offsets", "sizes"))
        dynamic, position = ir.ShapedType.get_dynamic_size(), 1
        for offset, size, extent in zip(offsets, sizes, op.operands[0].type.shape, strict=True):
            if offset == ir.ShapedType.get_dynamic_stride_or_offset():
                if dynamic not in (size, extent):
                    yield position, op.operands[position], extent - size + 1
                position += 1
        return
    first = 1 if op.name == "memref.load" else 2
    shape = op.operands[first - 1].type.shape
    for i, extent in enumerate(shape):
        if extent != ir.ShapedType.get_dynamic_size():
            yield first + i, op.operands[first + i], extent


def _from_data(value: ir.Value) -> bool:
    """Whether an index is computed from a tensor's elements, and not from loops' variables and constants alone."""
    stack, seen = [value], set()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v.owner, ir.Block):
            loop = v.owner.owner
            if loop.name not in ("scf.for", "scf.parallel") or (loop.name == "scf.for" and v.arg_number > 0):
                return True
            continue
        if v.owner.name in ("memref.load", "func.call") or v.owner.name.startswith("scf."):
            return True
        stack.extend(v.owner.operands)
    return False


def _clamped(value: ir.Value, extent: int) -> bool:
    """Whether an index is min(max(x, 0), c) with c below the extent, as the compiler writes it."""
    below = _limit(value, "arith.minsi")
    if below is None or not 0 <= below[1] < extent:
        return False
    above = _limit(below[0], "arith.maxsi")
    return above is not None and above[1] >= 0


def _limit(value: ir.Value, name: str) -> tuple[ir.Value, int] | None:
    """The first operand of such an operation, and its second one, a constant."""
    if isinstance(value.owner, ir.Block) or value.owner.name != name:
        return None
    first, second = value.owner.operands
    constant = second.owner
    if isinstance(constant, ir.Block) or constant.name != "arith.constant":
        return None
    return first, ir.IntegerAttr(constant.attributes["value"]).value
