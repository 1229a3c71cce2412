"""`mlirc.sort` by counting: an element's place is the number of elements that come before it.

It takes as many comparisons as there are pairs, but is two `linalg.generic`s, which run on a CPU as they are, and with
one thread per element: what checks the launches of `mlirc-sort`, and what computes where these are not asked for.
"""

from __future__ import annotations

from mlirc.dialects.sort import SortInfo
from mlirc.mlir import arith, ir, linalg, tensor

_ULT, _EQ = arith.CmpIPredicate.ult, arith.CmpIPredicate.eq


def expand_sort(op: ir.Operation) -> None:
    """Replaces a `mlirc.sort` by two linalg.generics: the places, then the elements in their places."""
    info = SortInfo.of(op)
    with op.location, ir.InsertionPoint(op):
        places = _count(op.operands[0], info)
        results = _collect(op.operands[0], places, info)
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _map(*dims: int) -> ir.AffineMapAttr:
    """A map of three loops to some of them."""
    return ir.AffineMapAttr.get(ir.AffineMap.get(3, 0, [ir.AffineDimExpr.get(d) for d in dims]))


def _generic(inputs: list[ir.Value], outs: list[ir.Value], maps: list[ir.AffineMapAttr]) -> linalg.GenericOp:
    """Over rows, elements of the result, and elements that are reduced."""
    kinds = ["parallel", "parallel", "reduction"]
    iterators = ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{k}>") for k in kinds])
    made = linalg.GenericOp([v.type for v in outs], inputs, outs, ir.ArrayAttr.get(maps), iterators)
    elements = [ir.RankedTensorType(v.type).element_type for v in (*inputs, *outs)]
    made.regions[0].blocks.append(*elements, arg_locs=[ir.Location.current] * len(elements))
    return made


def _index(dim: int) -> ir.Value:
    return linalg.IndexOp(ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)).result


def _count(x: ir.Value, info: SortInfo) -> ir.Value:
    """For each element the number of elements of its row that come before it, as i32."""
    i32 = ir.IntegerType.get_signless(32)
    start = linalg.fill(arith.constant(i32, 0), outs=[tensor.empty([info.rows, info.length], i32)])
    generic = _generic([x, x], [start], [_map(0, 1), _map(0, 2), _map(0, 1)])
    mine, other, count = generic.regions[0].blocks[0].arguments
    with ir.InsertionPoint(generic.regions[0].blocks[0]):
        first = arith.CmpIOp(_ULT, _index(2), _index(1)).result  # the other one stands in front
        least, most = (other, mine) if not info.descending else (mine, other)
        before, after = _less(least, most), _less(most, least)
        # equal ones keep their order
        true = arith.constant(first.type, 1)
        stays = arith.AndIOp(first, arith.XOrIOp(after, true).result).result
        comes = arith.OrIOp(before, stays).result
        linalg.yield_([arith.AddIOp(count, arith.ExtUIOp(i32, comes).result).result])
    return generic.results[0]


def _less(a: ir.Value, b: ir.Value) -> ir.Value:
    """Whether one element is less than another one; NaN is the largest, and equal to NaN."""
    if isinstance(a.type, ir.IntegerType):
        return arith.CmpIOp(arith.CmpIPredicate.slt, a, b).result
    number = arith.CmpFOp(arith.CmpFPredicate.ORD, a, a).result
    below = arith.CmpFOp(arith.CmpFPredicate.ULT, a, b).result  # or one of them is NaN
    return arith.AndIOp(number, below).result


def _collect(x: ir.Value, places: ir.Value, info: SortInfo) -> list[ir.Value]:
    """The elements in their places, and where they are in their rows."""
    i64 = ir.IntegerType.get_signless(64)
    zero = ir.FloatAttr.get(info.element, 0.0) if isinstance(info.element, ir.FloatType) else None
    zero = arith.ConstantOp(info.element, zero or ir.IntegerAttr.get(info.element, 0)).result
    shape = [info.rows, info.count]
    outs = [
        linalg.fill(zero, outs=[tensor.empty(shape, info.element)]),
        linalg.fill(arith.constant(i64, 0), outs=[tensor.empty(shape, i64)]),
    ]
    generic = _generic([x, places], outs, [_map(0, 2), _map(0, 2), _map(0, 1), _map(0, 1)])
    value, place, *kept = generic.regions[0].blocks[0].arguments
    with ir.InsertionPoint(generic.regions[0].blocks[0]):
        here = arith.IndexCastOp(place.type, _index(1)).result
        hit = arith.CmpIOp(_EQ, place, here).result
        found = [value, arith.IndexCastOp(i64, _index(2)).result]
        linalg.yield_([arith.SelectOp(hit, a, b).result for a, b in zip(found, kept, strict=True)])
    return list(generic.results)
