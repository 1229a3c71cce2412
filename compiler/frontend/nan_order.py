"""Where NaN stands in the orders of the linalg level: PyTorch's argmax and argmin find the first one; torch-mlir's
comparisons are false for it."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.mlir import arith, ir

_OGT, _OLT, _ORD = 2, 4, 7  # of arith.cmpf
_UGT, _ULT = 9, 11


def order_nans(generics: Sequence[ir.Operation]) -> None:
    """Rewrites the comparisons of reductions that track an index, in place."""
    for op in generics:
        if len(op.results) > 1:
            _first_nan_wins(op)


def _comparisons(block: ir.Block) -> list[ir.Operation]:
    return [op.operation for op in block.operations if op.operation.name == "arith.cmpf"]


def _predicate(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes["predicate"]).value


def _first_nan_wins(op: ir.Operation) -> None:
    """A new element replaces the best one so far where that is no NaN, and it is better or a NaN."""
    block = op.regions[0].blocks[0]
    best = list(block.arguments)[-len(op.results) :]
    for compare in _comparisons(block):
        new, old = compare.operands
        if old in best and _predicate(compare) in (_OGT, _OLT):
            with compare.location, ir.InsertionPoint(compare):
                better = arith.CmpFOp(_UGT if _predicate(compare) == _OGT else _ULT, new, old).result
                replaced = arith.AndIOp(better, arith.CmpFOp(_ORD, old, old).result).result
            compare.results[0].replace_all_uses_with(replaced)
            compare.erase()
