"""Numbers that say where a cache in pages lies: read from the tensors of a cached attention, and kept inside of what
there is."""

from __future__ import annotations

from mlirc.dialects.mlirc_dialect import Pages
from mlirc.ir.levels import INDEX_BELOW
from mlirc.mlir import arith, ir, tensor


def length_of(lengths: ir.Value, sequence: ir.Value, pages: Pages) -> ir.Value:
    """The length of a sequence (an index), 0 to the most that its pages hold."""
    return _bounded(tensor.ExtractOp(lengths, [sequence]).result, pages.count * pages.size + 1)


def page_of(table: ir.Value, sequence: ir.Value, place: ir.Value, pages: Pages) -> ir.Value:
    """The page of the pool that is number `place` of a sequence (indices)."""
    return _bounded(tensor.ExtractOp(table, [sequence, place]).result, pages.pool)


def _bounded(number: ir.Value, extent: int) -> ir.Value:
    """An index inside of [0, extent), of a number that the model gives."""
    value = arith.IndexCastOp(ir.IndexType.get(), number).result
    for make, limit in ((arith.MaxSIOp, 0), (arith.MinSIOp, extent - 1)):
        value = make(value, arith.ConstantOp(ir.IndexType.get(), limit).result).result
        value.owner.attributes[INDEX_BELOW] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), extent)
    return value
