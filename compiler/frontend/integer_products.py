"""Sums of integer products in the width of their result: torch-mlir sums 32-bit products in 64 bits and drops the upper
half, which sums in 32 bits never make."""

from __future__ import annotations

from collections.abc import Iterable

from mlirc.mlir import arith, ir, linalg, tensor

PRODUCTS = ("linalg.matmul", "linalg.batch_matmul", "linalg.matvec", "linalg.vecmat", "linalg.dot")


def narrow_sums(products: Iterable[ir.Operation]) -> None:
    """Makes products of i32 with sums of i64, from zero, whose only uses cut these to i32, ones with sums of i32."""
    for op in products:
        result, i32 = op.results[0], ir.IntegerType.get_signless(32)
        cuts = [use.owner.operation for use in result.uses]
        if str(ir.RankedTensorType(result.type).element_type) != "i64" or not cuts or not all(map(_cuts, cuts)):
            continue
        if any(ir.RankedTensorType(v.type).element_type != i32 for v in list(op.operands)[:2]) or not _from_zero(op):
            continue
        with op.location, ir.InsertionPoint(op):
            zeros = linalg.fill(arith.constant(i32, 0), outs=[tensor.empty(list(result.type.shape), i32)])
            new = getattr(linalg, op.name.removeprefix("linalg."))(*list(op.operands)[:2], outs=[zeros])
        for cut in cuts:
            cut.results[0].replace_all_uses_with(new)
            cut.erase()
        op.erase()


def _cuts(op: ir.Operation) -> bool:
    """Whether a map does nothing but cut its operand's elements to i32."""
    if op.name != "linalg.generic" or len(op.operands) != 2:
        return False
    first, second = op.attributes["indexing_maps"]
    ops = [o.operation for o in op.regions[0].blocks[0].operations]
    cut = len(ops) == 2 and ops[0].name == "arith.trunci" and str(ops[0].results[0].type) == "i32"
    return cut and first == second


def _from_zero(op: ir.Operation) -> bool:
    fill = op.operands[2].owner
    if isinstance(fill, ir.Block) or fill.name != "linalg.fill":
        return False
    number = fill.operands[0].owner
    constant = not isinstance(number, ir.Block) and number.name == "arith.constant"
    return constant and number.attributes["value"].value == 0
