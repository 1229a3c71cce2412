"""`mlirc::gather_matrices` and `mlirc::put_rows` as MLIR. The ops themselves (`gather_matrices.py`, `row_writes.py`)
run in PyTorch where there is no MLIR, as where packed experts are measured."""

from __future__ import annotations

from mlirc.dialects.mlirc_dialect import GATHER_MATRICES
from mlirc.frontend.amax import builtin_tensor
from mlirc.frontend.scatter_lowering import reshaped, scatter_slices
from mlirc.mlir import arith, ir, linalg, tensor

GATHERED, PUT = "torch.mlirc.gather_matrices", "torch.mlirc.put_rows"


def lower_gather_matrices(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name `GATHERED`, whose shapes are static."""
    dim, start, size, may_miss = (op.operands[i].owner.attributes["value"].value for i in (2, 3, 4, 5))
    with op.location, ir.InsertionPoint(op):
        matrices, which = (builtin_tensor(v) for v in op.operands[:2])
        element, shape = matrices.type.element_type, [which.type.shape[0], *matrices.type.shape[1:]]
        shape[dim] = size
        init = tensor.empty(shape, element)
        maps = [ir.AffineMap.get(3, 0, [ir.AffineDimExpr.get(0)]), ir.AffineMap.get_identity(3)]
        generic = linalg.GenericOp(
            [init.type],
            [which],
            [init],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * 3),
        )
        generic.operation.attributes[GATHER_MATRICES] = ir.UnitAttr.get()
        block = generic.regions[0].blocks.append(which.type.element_type, element)
        with ir.InsertionPoint(block):
            linalg.YieldOp([_element(matrices, block.arguments[0], dim, start, bool(may_miss))])
        made = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [generic.results[0]])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _element(matrices: ir.Value, number: ir.Value, dim: int, start: int, may_miss: bool) -> ir.Value:
    """What the body of the map yields; `number` is the group's."""
    zero = arith.constant(number.type, 0)
    matrix = arith.index_cast(ir.IndexType.get(), arith.maxsi(number, zero) if may_miss else number)
    at = [matrix, linalg.IndexOp(1).result, linalg.IndexOp(2).result]
    if start:
        at[dim] = arith.addi(at[dim], arith.constant(ir.IndexType.get(), start))
    found = tensor.extract(matrices, at)
    if not may_miss:
        return found
    negative = arith.cmpi(arith.CmpIPredicate.slt, number, zero)
    return arith.select(negative, arith.constant(found.type, 0.0), found)


def lower_put_rows(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name `PUT`, whose shapes are static."""
    with op.location, ir.InsertionPoint(op):
        pool, rows, places = (builtin_tensor(v) for v in op.operands)
        count, width = rows.type.shape
        indices = reshaped(places, [count, 1])
        made = scatter_slices(pool, rows, indices, [0], unique=True) if count and width else pool
        result = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [made])
    op.results[0].replace_all_uses_with(result.results[0])
    op.erase()
