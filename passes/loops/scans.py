"""Scans from the last element to the first as flips around scans from the first one on, which loops compute."""

from __future__ import annotations

from mlirc.ir.scans import SCAN, Scan, is_scan
from mlirc.ir.tensors import shape_of
from mlirc.mlir import arith, ir, linalg, nested, tensor

_PARALLEL = "#linalg.iterator_type<parallel>"


def expand_scans(module: ir.Module) -> None:
    """Replaces every scan with `mlirc.scan = "reverse"`; others mean what they say as loops."""
    for op in [op for op in nested(module.operation) if is_scan(op) and Scan.of(op).reverse]:
        about = Scan.of(op)
        maps = [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
        result = op.results[0]
        with ir.InsertionPoint(op), op.location:
            op.operands[0] = _flipped(op.operands[0], _place(maps[0], about.dim))
        op.attributes[SCAN] = ir.UnitAttr.get()
        with ir.InsertionPoint.after(op), op.location:
            made = _flipped(result, _place(maps[1], about.dim))
        result.replace_all_uses_except(made, _readers(result, made))


def _place(map_: ir.AffineMap, dim: int) -> int:
    """Which dimension of a tensor is a dimension of the loops."""
    return [isinstance(e, ir.AffineDimExpr) and e.position == dim for e in map_.results].index(True)


def _flipped(value: ir.Value, dim: int) -> ir.Value:
    """A tensor with one dimension from its end to its beginning."""
    type_, rank = ir.RankedTensorType(value.type), len(shape_of(value))
    extents = [
        tensor.DimOp(value, arith.constant(ir.IndexType.get(), d)).result if type_.is_dynamic_dim(d) else n
        for d, n in enumerate(type_.shape)
    ]
    last = extents[dim]
    last = last if isinstance(last, ir.Value) else arith.constant(ir.IndexType.get(), last)
    last = arith.subi(last, arith.constant(ir.IndexType.get(), 1))
    init = tensor.empty(extents, type_.element_type)
    maps = ir.ArrayAttr.get([ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))])
    made = linalg.GenericOp([init.type], [], [init], maps, ir.ArrayAttr.get([ir.Attribute.parse(_PARALLEL)] * rank))
    block = made.regions[0].blocks.append(type_.element_type, arg_locs=[ir.Location.current])
    with ir.InsertionPoint(block):
        at: list[ir.Value] = [linalg.IndexOp(d).result for d in range(rank)]
        at[dim] = arith.subi(last, at[dim])
        linalg.YieldOp([tensor.extract(value, at)])
    return made.results[0]


def _readers(value: ir.Value, made: ir.Value) -> list[ir.Operation]:
    """What reads a tensor to flip it: the map's body, and the operations that ask for its extents."""
    inside = nested(made.owner.operation)
    return [*inside, *(use.owner.operation for use in value.uses if use.owner.operation.name == "tensor.dim")]
