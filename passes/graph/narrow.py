"""Operands of contractions that are widened numbers of fewer bits: what they were before, of which GEMMs read less.

A value is such where a widening cast made it, and what followed moved its elements and put zeros beside them."""

from __future__ import annotations

from mlirc.ir.tensors import VIEWS, shape_of
from mlirc.mlir import arith, ir, linalg, tensor
from mlirc.passes.graph.channels_last import element_of
from mlirc.passes.graph.emit import make_generic
from mlirc.passes.graph.evaluate import is_move, owner_of, zero_attribute
from mlirc.passes.graph.facts import is_map, is_widening_cast

FP8 = ("f8E4M3FN", "f8E5M2")
HALVES = ("bf16", "f16")
_MOST_MOVES = 64


def is_zero(value: ir.Value) -> bool:
    """Whether a value is zero, or filled with it."""
    op = owner_of(value)
    if op is not None and op.name == "linalg.fill":
        op = owner_of(op.operands[0])
    return (
        op is not None and op.name == "arith.constant" and op.attributes["value"] == zero_attribute(op.results[0].type)
    )


def narrow_types(first: ir.Value, second: ir.Value) -> tuple[ir.Type, ir.Type] | None:
    """The types that two factors were widened from, if tensor cores multiply such as they are: 8-bit floats, halves of
    one type, or bytes. None where a factor is no widened number."""
    types = _source(first), _source(second)
    if types[0] is None or types[1] is None:
        return None
    names = str(types[0]), str(types[1])
    alike = names[0] == names[1] in (*HALVES, "i8") or set(names) <= set(FP8)
    return (types[0], types[1]) if alike else None


def narrowed(value: ir.Value, to: ir.Type) -> ir.Value:
    """The value as it was before it was widened, at the insertion point."""
    while (before := before_cast(value)) is not None and element_of(value) != to:
        value = before
    if element_of(value) == to:
        return value
    rank = len(shape_of(value))  # moves are between: who reads it folds this with the cast
    out = tensor.empty(shape_of(value), to)
    op = make_generic([value], [out], [ir.AffineMap.get_identity(rank)] * 2, ["parallel"] * rank)
    block = op.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        cut = arith.trunci if isinstance(to, ir.IntegerType) else arith.truncf
        linalg.yield_([cut(to, block.arguments[0])])
    return op.results[0]


def before_cast(value: ir.Value) -> ir.Value | None:
    """What a value widens, element by element in one shape; None where it is no such cast."""
    op = owner_of(value)
    if op is None or op.name != "linalg.generic" or not is_widening_cast(op) or _cast_of(op) is None:
        return None
    first, second = op.attributes["indexing_maps"]
    return op.operands[0] if first == second else None


def _cast_of(op: ir.Operation) -> ir.Type | None:
    """The type that a map widens its elements from, keeping their sign; None for another map."""
    cast = op.regions[0].blocks[0].operations[0].operation
    return cast.operands[0].type if cast.name in ("arith.extf", "arith.extsi") else None


def _source(value: ir.Value, moves: int = _MOST_MOVES) -> ir.Type | None:
    """The type of the elements of which a value's are widened ones; None where they are not."""
    op = owner_of(value)
    if op is None or not moves:
        return None
    if op.name == "linalg.generic" and is_widening_cast(op):
        return None if (source := _cast_of(op)) is None else _source(op.operands[0], moves - 1) or source
    sources = _moved(op)
    found = {_source(v, moves - 1) for v in sources}
    return found.pop() if len(found) == 1 else None


def _moved(op: ir.Operation) -> list[ir.Value]:
    """The values whose elements an op moves, putting zeros beside them; none for another op."""
    if op.name in VIEWS:
        return [op.operands[0]]
    if op.name == "linalg.generic" and is_map(op) and len(op.results) == 1:
        (result,) = op.regions[0].blocks[0].operations[-1].operands
        if isinstance(result.owner, ir.Block):
            number = ir.BlockArgument(result).arg_number
            return [op.operands[number]] if number < len(op.operands) - 1 else []
        return [result.owner.operands[0]] if result.owner.name == "tensor.extract" else []
    if not is_move(op):
        return []
    if op.name == "tensor.pad":
        fill = op.regions[0].blocks[0].operations[0].operands[0]
        return [op.operands[0]] if is_zero(fill) else []
    if op.name == "tensor.concat":
        return list(op.operands)
    return list(op.operands)[: 2 if op.name == "tensor.insert_slice" else 1]
