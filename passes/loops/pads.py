"""tensor.pad as one linalg.generic that reads the source where there is one: one launch; padding may be negative."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import arith, ir, linalg, tensor


def expand_pad(op: ir.Operation) -> None:
    """Replaces a tensor.pad; raises MlircError for a dynamic shape and for computed padding values."""
    type_ = ir.RankedTensorType(op.results[0].type)
    source = op.operands[0]
    low = list(ir.DenseI64ArrayAttr(op.attributes["static_low"]))
    dynamic = ir.ShapedType.get_dynamic_size()
    if not type_.has_static_shape or dynamic in low or not ir.RankedTensorType(source.type).has_static_shape:
        raise MlircError(f"tensor.pad at {op.location}: its shape is dynamic: kernels are compiled for fixed shapes")
    with op.location, ir.InsertionPoint(op):
        value = _padding_value(op)
        empty = tensor.empty(type_.shape, type_.element_type)
        identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(type_.rank))
        parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
        generic = linalg.GenericOp(
            [type_], [], [empty], ir.ArrayAttr.get([identity]), ir.ArrayAttr.get([parallel] * type_.rank)
        )
        with ir.InsertionPoint(generic.regions[0].blocks.append(type_.element_type)):
            linalg.yield_([_element(source, low, value)])
    op.results[0].replace_all_uses_with(generic.results[0])
    op.erase()


def _padding_value(op: ir.Operation) -> ir.Value:
    block = op.regions[0].blocks[0]
    body = [o.operation for o in block.operations]
    for inner in body[:-1]:
        if inner.name != "arith.constant":
            raise MlircError(f"tensor.pad at {op.location}: it pads with a computed value ({inner.name})")
        inner.move_before(op)
    value = body[-1].operands[0]
    if value in list(block.arguments):
        raise MlircError(f"tensor.pad at {op.location}: it pads with an index, not a constant")
    return value


def _element(source: ir.Value, low: list[int], value: ir.Value) -> ir.Value:
    """The padded tensor's element at this point of the generic."""
    shape = ir.RankedTensorType(source.type).shape
    if 0 in shape:
        return value
    index = ir.IndexType.get()

    def number(n: int) -> ir.Value:
        return arith.ConstantOp(index, ir.IntegerAttr.get(index, n)).result

    inside: ir.Value | None = None
    places = []
    for dim, (extent, before) in enumerate(zip(shape, low, strict=True)):
        place = linalg.IndexOp(ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)).result
        if before:
            place = arith.SubIOp(place, number(before)).result
        # Unsigned: a negative place is a large one.
        fits = arith.CmpIOp(6, place, number(extent)).result
        inside = fits if inside is None else arith.AndIOp(inside, fits).result
        places.append(arith.SelectOp(fits, place, number(0)).result)
    element = tensor.ExtractOp(source, places).result
    return element if inside is None else arith.SelectOp(inside, element, value).result
