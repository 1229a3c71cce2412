"""`tm_tensor.scatter` with `unique_indices(true)` as a parallel loop over the elements of its rows.

No two rows are for one place, and a row whose index is negative is for none. What a map computes for the rows alone is
computed where each element is written, and not stored before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mlirc.ir.tensors import VIEWS
from mlirc.mlir import arith, ir, memref, nested, scf, tensor
from mlirc.passes.graph.classify import is_map_generic, maps

SCATTER = "tm_tensor.scatter"
_Element = Callable[[Sequence[ir.Value], Sequence[ir.Value]], ir.Value]


def is_row_write(op: ir.Operation) -> bool:
    """Whether an op writes rows, each to a place of its own: a scatter of whole rows along the first dimension that
    replaces what is there."""
    if op.name != SCATTER or not ir.BoolAttr(op.attributes["unique_indices"]).value:
        return False
    rows, indices, pool = (v.type for v in op.operands)
    first = op.regions[0].blocks[0].operations[0].operation
    replaces = first.name == "tm_tensor.yield" and ir.BlockArgument(first.operands[0]).arg_number == 0
    shapes = rows.shape[0] == indices.shape[0] and list(rows.shape[1:]) == list(pool.shape[1:])
    return replaces and shapes and indices.shape[1] == 1 and list(op.attributes["dimension_map"]) == [0]


def expand_row_write(op: ir.Operation) -> None:
    """Replaces one such scatter, on buffers that `tm-tensor-bufferize` made of tensors, in place."""
    rows, indices, pool = op.operands
    source = rows.owner.operands[0] if _owner_name(rows) == "bufferization.to_buffer" else rows
    shape = list(rows.type.shape)
    loops, element = _elements(source, shape)
    with op.location, ir.InsertionPoint(op):
        zero, one = _index(0), _index(1)
        ends = [_index(n) for n in loops]
        nest = ir.Operation.create(
            "scf.parallel",
            [],
            [*([zero] * len(loops)), *ends, *([one] * len(loops))],
            {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(loops)] * 3 + [0])},
            regions=1,
        )
        body = nest.regions[0].blocks.append(*([ir.IndexType.get()] * len(loops)))
        with ir.InsertionPoint(body):
            ivs = list(body.arguments)
            where = _split(_linear(ivs, loops), shape)
            index = memref.LoadOp(indices, [where[0], zero]).result
            place = index if isinstance(index.type, ir.IndexType) else arith.index_cast(ir.IndexType.get(), index)
            branch = scf.IfOp(arith.cmpi(arith.CmpIPredicate.sge, place, zero))
            with ir.InsertionPoint(branch.then_block):
                memref.StoreOp(element(ivs, where), pool, [place, *where[1:]])
                scf.YieldOp([])
            ir.Operation.create("scf.reduce", regions=0)
    op.erase()


def _owner_name(value: ir.Value) -> str:
    return "" if isinstance(value.owner, ir.Block) else value.owner.name


def _elements(source: ir.Value, shape: list[int]) -> tuple[list[int], _Element]:
    """The loops over all elements of the rows, and what computes one at the loops' variables and its indices."""
    made = source
    while _owner_name(made) in VIEWS and len(list(made.uses)) == 1:
        made = made.owner.operands[0]
    if isinstance(made.type, ir.RankedTensorType) and _is_own_map(made):
        op = made.owner.operation
        return list(made.type.shape), lambda ivs, where: _computed(op, ivs)
    if isinstance(source.type, ir.MemRefType):
        return shape, lambda ivs, where: memref.LoadOp(source, where).result
    return shape, lambda ivs, where: tensor.extract(source, where)


def _is_own_map(value: ir.Value) -> bool:
    """Whether a tensor is computed by a map of one result, whose loops are its dimensions, and read once."""
    op = value.owner
    if isinstance(op, ir.Block) or not is_map_generic(op) or len(op.results) != 1 or len(list(value.uses)) != 1:
        return False
    return maps(op)[-1] == ir.AffineMap.get_identity(len(value.type.shape))


def _computed(op: ir.Operation, ivs: Sequence[ir.Value]) -> ir.Value:
    """A map's element at its loops' variables."""
    block = op.regions[0].blocks[0]
    inputs = list(op.operands)[:-1]
    places: dict[ir.Value, ir.Value] = {}
    for value, map_, argument in zip(inputs, maps(op), block.arguments, strict=False):
        read = value
        if isinstance(value.type, ir.RankedTensorType):
            read = tensor.extract(value, [_applied(e, ivs) for e in map_.results])
        places[argument] = read
    for inner in block.operations:
        if inner.operation.name == "linalg.yield":
            result = inner.operation.operands[0]
            return places.get(result, result)
        if inner.operation.name == "linalg.index":
            places[inner.operation.results[0]] = ivs[ir.IntegerAttr(inner.operation.attributes["dim"]).value]
            continue
        clone = inner.operation.clone()
        for each in (clone, *nested(clone)):
            for i, operand in enumerate(each.operands):
                if operand in places:
                    each.operands[i] = places[operand]
        places.update(zip(inner.operation.results, clone.results, strict=True))
    raise AssertionError("a linalg body ends in a yield")


def _applied(expr: ir.AffineExpr, ivs: Sequence[ir.Value]) -> ir.Value:
    """An expression of an indexing map as a value."""
    if isinstance(expr, ir.AffineDimExpr):
        return ivs[expr.position]
    if isinstance(expr, ir.AffineConstantExpr):
        return _index(expr.value)
    left, right = _applied(expr.lhs, ivs), _applied(expr.rhs, ivs)
    make = {
        ir.AffineAddExpr: arith.addi, ir.AffineMulExpr: arith.muli, ir.AffineModExpr: arith.remui,
        ir.AffineFloorDivExpr: arith.divui, ir.AffineCeilDivExpr: arith.ceildivui,
    }[type(expr)]  # fmt: skip
    return make(left, right)


def _linear(ivs: Sequence[ir.Value], sizes: Sequence[int]) -> ir.Value:
    """The row-major number of a point."""
    total = ivs[0]
    for iv, size in zip(ivs[1:], sizes[1:], strict=True):
        total = arith.addi(arith.muli(total, _index(size)), iv)
    return total


def _split(number: ir.Value, shape: Sequence[int]) -> list[ir.Value]:
    """The indices of the element of that row-major number."""
    found: list[ir.Value] = []
    for i, size in enumerate(shape):
        rest = prod(shape[i + 1 :])
        part = arith.divui(number, _index(rest)) if rest > 1 else number
        found.append(arith.remui(part, _index(size)) if i else part)
    return found


def _index(number: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), number)
