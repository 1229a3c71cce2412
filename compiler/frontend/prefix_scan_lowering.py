"""`mlirc::prefix_scan`, `mlirc::prefix_extremum` and `mlirc::linear_scan` as MLIR: scans (`mlirc.ir.scans`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirc.frontend.amax import builtin_tensor
from mlirc.ir.scans import SCAN
from mlirc.mlir import arith, ir, linalg, math, tensor

SCANNED, EXTREMUM = "torch.mlirc.prefix_scan", "torch.mlirc.prefix_extremum"
LINEAR = "torch.mlirc.linear_scan"
_PARALLEL, _REDUCTION = (f"#linalg.iterator_type<{kind}>" for kind in ("parallel", "reduction"))

Combination = Callable[[Sequence[ir.Value], Sequence[ir.Value]], list[ir.Value]]


def lower_prefix_scan(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name SCANNED, whose shapes are static and not empty."""
    dim = op.operands[1].owner.attributes["value"].value
    combine = ir.StringAttr(op.operands[2].owner.attributes["value"]).value
    with op.location, ir.InsertionPoint(op):
        x = builtin_tensor(op.operands[0])
        element = x.type.element_type
        if combine == "logaddexp":
            return _replace(op, [_log_sums(x, dim % x.type.rank)])
        start = _scalar(element, {"add": 0, "mul": 1}[combine])
        if str(op.operands[3].type) != "!torch.none":
            start = builtin_tensor(op.operands[3])
        made = scan([x], [start], dim % x.type.rank, _combination(combine, element))
        _replace(op, made)


def lower_prefix_extremum(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name EXTREMUM, whose shapes are static and not empty."""
    dim, largest = (op.operands[i].owner.attributes["value"].value for i in (1, 2))
    with op.location, ir.InsertionPoint(op):
        x = builtin_tensor(op.operands[0])
        dim, element = dim % x.type.rank, x.type.element_type
        i64 = ir.IntegerType.get_signless(64)
        places = _places(x.type.shape[dim], i64)
        starts = [_scalar(element, _least(element, bool(largest))), _scalar(i64, 0)]
        _replace(op, scan([x, places], starts, dim, _extremum(bool(largest))))


def lower_linear_scan(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name LINEAR, whose shapes are static and not empty."""
    dim = op.operands[3].owner.attributes["value"].value
    with op.location, ir.InsertionPoint(op):
        a, b, start = (builtin_tensor(v) for v in list(op.operands)[:3])
        _replace(op, scan([a, b], [start], dim % a.type.rank, _linear, ir.StringAttr.get("linear")))


def _linear(left: Sequence[ir.Value], right: Sequence[ir.Value]) -> list[ir.Value]:
    return [arith.addf(arith.mulf(right[0], left[0]), right[1])]


def _replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    for result, value in zip(op.results, values, strict=True):
        made = ir.Operation.create("torch_c.from_builtin_tensor", [result.type], [value])
        result.replace_all_uses_with(made.results[0])
    op.erase()


def scan(
    inputs: Sequence[ir.Value], starts: Sequence[ir.Value], dim: int, combine: Combination,
    kind: ir.Attribute | None = None,
) -> list[ir.Value]:  # fmt: skip
    """The results of a scan along `dim` of tensors of the first one's shape, or of rank 1 along `dim`, from scalars,
    or from tensors without that dimension."""
    shape = list(inputs[0].type.shape)
    rows, rank = [n for d, n in enumerate(shape) if d != dim], len(shape)
    elements, n = [x.type.element_type for x in inputs], len(starts)
    scanned = elements[-n:]
    results = [tensor.empty(shape, e) for e in scanned]
    carries = [_filled(s, rows, e) for s, e in zip(starts, scanned, strict=True)]
    every = [ir.AffineDimExpr.get(d) for d in range(rank)]
    along = [every if x.type.rank == rank else [every[dim]] for x in inputs]
    left = [e for d, e in enumerate(every) if d != dim]
    maps = [ir.AffineMap.get(rank, 0, m) for m in (*along, *[every] * n, *[left] * n)]
    outs = [*results, *carries]
    generic = ir.Operation.create(
        "linalg.generic",
        [v.type for v in outs],
        [*inputs, *outs],
        {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            "iterator_types": ir.ArrayAttr.get(
                [ir.Attribute.parse(_REDUCTION if d == dim else _PARALLEL) for d in range(rank)]
            ),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(inputs), len(outs)]),
            SCAN: kind or ir.UnitAttr.get(),
        },
        regions=1,
    )
    types = [*elements, *scanned, *scanned]
    block = generic.regions[0].blocks.append(*types, arg_locs=[ir.Location.current] * len(types))
    with ir.InsertionPoint(block):
        made = combine(list(block.arguments)[-n:], list(block.arguments)[: len(inputs)])
        linalg.YieldOp([*made, *made])
    return list(generic.results)[:n]


def _filled(start: ir.Value, rows: Sequence[int], element: ir.Type) -> ir.Value:
    if isinstance(start.type, ir.RankedTensorType):
        return start
    return linalg.fill(start, outs=[tensor.empty(rows, element)])


def _scalar(element: ir.Type, value: float) -> ir.Value:
    return arith.constant(element, float(value) if isinstance(element, ir.FloatType) else int(value))


def _least(element: ir.Type, largest: bool) -> float:
    """What every element is at least as large (or small) as."""
    if isinstance(element, ir.FloatType):
        return float("-inf") if largest else float("inf")
    width = ir.IntegerType(element).width
    return -(1 << (width - 1)) if largest else (1 << (width - 1)) - 1


def _places(count: int, element: ir.Type) -> ir.Value:
    """0, 1, 2, ..."""
    init = tensor.empty([count], element)
    maps = ir.ArrayAttr.get([ir.AffineMapAttr.get(ir.AffineMap.get_identity(1))])
    made = linalg.GenericOp([init.type], [], [init], maps, ir.ArrayAttr.get([ir.Attribute.parse(_PARALLEL)]))
    block = made.regions[0].blocks.append(element, arg_locs=[ir.Location.current])
    with ir.InsertionPoint(block):
        linalg.YieldOp([arith.index_cast(element, linalg.IndexOp(0).result)])
    return made.results[0]


def _combination(combine: str, element: ir.Type) -> Combination:
    floats = isinstance(element, ir.FloatType)
    one = {"add": (arith.addi, arith.addf), "mul": (arith.muli, arith.mulf)}[combine][floats]
    return lambda left, right: [one(left[0], right[0])]


def _log_sums(x: ir.Value, dim: int) -> ir.Value:
    """log of the sums of exp(x): with the largest element so far goes the sum of exp(x - largest), as in an online
    softmax."""
    element = x.type.element_type
    ones = linalg.fill(_scalar(element, 1), outs=[tensor.empty([x.type.shape[dim]], element)])
    starts = [_scalar(element, float("-inf")), _scalar(element, 0)]
    most, total = scan([x, ones], starts, dim, _sum_of_exponentials)
    maps = [ir.AffineMapAttr.get(ir.AffineMap.get_identity(x.type.rank))] * 3
    iterators = ir.ArrayAttr.get([ir.Attribute.parse(_PARALLEL)] * x.type.rank)
    init = tensor.empty(list(x.type.shape), element)
    made = linalg.GenericOp([init.type], [most, total], [init], ir.ArrayAttr.get(maps), iterators)
    block = made.regions[0].blocks.append(element, element, element, arg_locs=[ir.Location.current] * 3)
    with ir.InsertionPoint(block):
        linalg.YieldOp([arith.addf(block.arguments[0], math.log(block.arguments[1]))])
    return made.results[0]


def _sum_of_exponentials(left: Sequence[ir.Value], right: Sequence[ir.Value]) -> list[ir.Value]:
    """Of two (largest, sum): equal infinities differ by nothing."""
    (a, sum_a), (b, sum_b) = left, right
    most, least = arith.maximumf(a, b), arith.minimumf(a, b)
    equal = arith.cmpf(arith.CmpFPredicate.OEQ, most, least)
    weight = math.exp(arith.select(equal, arith.constant(a.type, 0.0), arith.subf(least, most)))
    first = arith.cmpf(arith.CmpFPredicate.OGE, a, b)
    larger, smaller = arith.select(first, sum_a, sum_b), arith.select(first, sum_b, sum_a)
    return [most, arith.addf(larger, arith.mulf(smaller, weight))]


def _extremum(largest: bool) -> Combination:
    """The later of two (value, place) where its value is at least as large (small), or NaN."""

    def combine(left: Sequence[ir.Value], right: Sequence[ir.Value]) -> list[ir.Value]:
        a, b = left[0], right[0]
        if isinstance(a.type, ir.FloatType):
            # unordered: not less, or one is a NaN; of an earlier NaN and a later number the NaN stays
            order = arith.CmpFPredicate.UGE if largest else arith.CmpFPredicate.ULE
            later = arith.cmpf(order, b, a)
            number = arith.cmpf(arith.CmpFPredicate.ORD, a, a)
            later = arith.andi(later, arith.ori(number, arith.cmpf(arith.CmpFPredicate.UNO, b, b)))
        else:
            later = arith.cmpi(arith.CmpIPredicate.sge if largest else arith.CmpIPredicate.sle, b, a)
        return [arith.select(later, r, l) for l, r in zip(left, right, strict=True)]

    return combine
