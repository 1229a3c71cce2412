"""tm_tensor.sort by counting: an element's place is the number of elements that come before it.

Upstream's loops sort each row in one thread by exchanging neighbours. Counting takes as many comparisons, but has one
thread per element. Equal elements keep their order, whether the comparison is strict or not.
"""

from __future__ import annotations

from mlirc.mlir import arith, ir, linalg, tensor


def expand_sort(op: ir.Operation) -> None:
    """Replaces a tm_tensor.sort by two linalg.generics: the places, then the elements in their places."""
    dim = ir.IntegerAttr(op.attributes["dimension"]).value
    sorted_values = list(op.operands)
    with op.location, ir.InsertionPoint(op):
        places = _count(op, sorted_values, dim)
        results = _collect(places, sorted_values, dim)
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _maps(rank: int, dim: int) -> tuple[ir.AffineMapAttr, ir.AffineMapAttr]:
    """Over the tensor's loops and one more along `dim`: the element here, and the element at the extra loop."""
    here = [ir.AffineDimExpr.get(d) for d in range(rank)]
    there = [ir.AffineDimExpr.get(rank if d == dim else d) for d in range(rank)]
    return tuple(ir.AffineMapAttr.get(ir.AffineMap.get(rank + 1, 0, e)) for e in (here, there))  # type: ignore


def _iterators(rank: int) -> ir.ArrayAttr:
    kinds = ["parallel"] * rank + ["reduction"]
    return ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{k}>") for k in kinds])


def _index(dim: int) -> ir.Value:
    return linalg.IndexOp(ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)).result


def _count(op: ir.Operation, values: list[ir.Value], dim: int) -> ir.Value:
    """For each element the number of elements of its row that come before it, as i32."""
    type_ = ir.RankedTensorType(values[0].type)
    rank, i32 = type_.rank, ir.IntegerType.get_signless(32)
    here, there = _maps(rank, dim)
    zero = arith.ConstantOp(i32, ir.IntegerAttr.get(i32, 0)).result
    start = linalg.fill(zero, outs=[tensor.empty(type_.shape, i32)])
    inputs = [v for value in values for v in (value, value)]
    maps = ir.ArrayAttr.get([here, there] * len(values) + [here])
    generic = linalg.GenericOp([start.type], inputs, [start], maps, _iterators(rank))
    elements = [ir.RankedTensorType(v.type).element_type for v in inputs]
    block = generic.regions[0].blocks.append(*elements, i32)
    *pairs, count = block.arguments
    with ir.InsertionPoint(block):
        mine, other = _index(dim), _index(rank)
        other_first = arith.CmpIOp(6, other, mine).result  # unsigned less than
        firsts, seconds = [], []
        for x, y in zip(pairs[::2], pairs[1::2], strict=True):
            firsts.append(arith.SelectOp(other_first, y, x).result)
            seconds.append(arith.SelectOp(other_first, x, y).result)
        # The one that stands first stays first unless only the reverse order is accepted.
        accepted = _compare(op, [v for pair in zip(firsts, seconds, strict=True) for v in pair])
        reverse = _compare(op, [v for pair in zip(seconds, firsts, strict=True) for v in pair])
        true = arith.ConstantOp(reverse.type, ir.IntegerAttr.get(reverse.type, 1)).result
        stay = arith.OrIOp(accepted, arith.XOrIOp(reverse, true).result).result
        before = arith.CmpIOp(0, stay, other_first).result
        before = arith.AndIOp(before, arith.CmpIOp(1, mine, other).result).result
        linalg.yield_([arith.AddIOp(count, arith.ExtUIOp(i32, before).result).result])
    return generic.results[0]


def _compare(op: ir.Operation, arguments: list[ir.Value]) -> ir.Value:
    """The sort's comparison, cloned to the insertion point."""
    body = op.regions[0].blocks[0]
    places = dict(zip(body.arguments, arguments, strict=True))
    operations = [o.operation for o in body.operations]
    for inner in operations[:-1]:
        copy = inner.clone().operation
        for i, operand in enumerate(copy.operands):
            if operand in places:
                copy.operands[i] = places[operand]
        places |= dict(zip(inner.results, copy.results, strict=True))
    result = operations[-1].operands[0]
    return places.get(result, result)


def _collect(places: ir.Value, values: list[ir.Value], dim: int) -> list[ir.Value]:
    """The elements in their places; a place that NaNs left without an element keeps the one that was there."""
    rank, i32 = ir.RankedTensorType(places.type).rank, ir.IntegerType.get_signless(32)
    here, there = _maps(rank, dim)
    maps = ir.ArrayAttr.get([there] * (1 + len(values)) + [here] * len(values))
    types = [v.type for v in values]
    generic = linalg.GenericOp(types, [places, *values], values, maps, _iterators(rank))
    elements = [ir.RankedTensorType(t).element_type for t in types]
    block = generic.regions[0].blocks.append(i32, *elements, *elements)
    place, *rest = block.arguments
    with ir.InsertionPoint(block):
        mine = arith.IndexCastOp(i32, _index(dim)).result
        hit = arith.CmpIOp(0, place, mine).result
        found, kept = rest[: len(values)], rest[len(values) :]
        linalg.yield_([arith.SelectOp(hit, x, y).result for x, y in zip(found, kept, strict=True)])
    return list(generic.results)
