"""`schedule.split_scans`: a long running sum of few rows becomes many short ones.

A running sum of two million numbers in one thread takes seconds. It is cut into chunks: each is scanned by a thread of
its own, the chunks' totals are scanned in turn, and what comes before a chunk is added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.mlir import arith, ir, linalg, tensor

ENOUGH_ROWS = 1 << 13  # with so many rows, a thread for each will do
# Not products: those of a chunk can overflow where the whole running product is finite.
_NEUTRAL = {"arith.addf": -0.0, "arith.maximumf": float("-inf"), "arith.minimumf": float("inf"), "arith.addi": 0}


@transform_op("split_scans", attributes={"length": int}, takes="func.func")
def split_scans(rewriter, targets, *, length: int) -> None:
    """Splits, in the target functions, every inclusive `tm_tensor.scan` of few rows over more than four times `length`
    elements; `length` is about how many one thread takes."""
    if length < 2:
        raise PayloadError(f"length {length}: a thread takes 2 elements or more")
    for target in targets:
        for view in list(target.operation.regions[0].blocks[0].operations):
            if view.operation.name == "tm_tensor.scan":
                _split(view.operation, length)


@dataclass
class _Scan:
    """One op: its input, the dimension that it scans, and the operation that it repeats."""

    op: ir.Operation
    input: ir.Value
    at: int
    combiner: str

    @property
    def shape(self) -> list[int]:
        return list(ir.RankedTensorType(self.input.type).shape)

    @property
    def element(self) -> ir.Type:
        return ir.RankedTensorType(self.input.type).element_type


def _scan(op: ir.Operation) -> _Scan | None:
    """What there is to know of an inclusive scan with an operation that has a neutral element; None for others."""
    block = op.regions[0].blocks[0]
    body = [o.operation for o in block.operations]
    plain = len(op.operands) == 3 and len(body) == 2 and body[0].name in _NEUTRAL
    if not plain or set(body[0].operands) != set(block.arguments) or body[1].operands[0] != body[0].results[0]:
        return None
    found = _Scan(op, op.operands[0], ir.IntegerAttr(op.attributes["dimension"]).value, body[0].name)
    if not ir.BoolAttr(op.attributes["inclusive"]).value or op.results[0].type != found.input.type:
        return None
    return found


def _split(op: ir.Operation, length: int) -> None:
    found = _scan(op)
    if found is None:
        return
    extent = found.shape[found.at]
    if extent <= 4 * length or prod(found.shape) // extent >= ENOUGH_ROWS:
        return
    near = [n for n in range(max(2, length // 2), 2 * length + 1) if extent % n == 0]
    steps = min(near, key=lambda n: abs(n - length), default=length)
    with op.location, ir.InsertionPoint(op):
        chunks, totals = _within_chunks(found, steps)
        before, again = _before(found, totals)
        result = _added(found, chunks, before)
        last = [0] * len(found.shape)
        last[found.at] = extent - 1
        sizes = [1 if d == found.at else n for d, n in enumerate(found.shape)]
        total = _build.extract_slice(result, last, sizes, [found.at])
    op.results[0].replace_all_uses_with(result)
    op.results[1].replace_all_uses_with(total)
    op.erase()
    _split(again, length)


def _neutral(found: _Scan, shape: Sequence[int]) -> ir.Value:
    """A tensor of the operation's neutral element."""
    value = arith.ConstantOp(found.element, _NEUTRAL[found.combiner]).result
    return linalg.fill(value, outs=[_build.empty(shape, found.element)])


def _within_chunks(found: _Scan, steps: int) -> tuple[ir.Value, ir.Value]:
    """The running results within each chunk, [..., chunks, steps, ...], and the chunks' totals, [..., chunks, ...]."""
    at, shape = found.at, found.shape
    count = -(-shape[at] // steps)
    padded = [*shape[:at], count * steps, *shape[at + 1 :]]
    source = found.input
    if padded != shape:
        zero, one = [0] * len(shape), [1] * len(shape)
        filled = _neutral(found, padded)
        source = tensor.InsertSliceOp(source, filled, [], [], [], zero, shape, one).result
    split = [*shape[:at], count, steps, *shape[at + 1 :]]
    type_ = ir.RankedTensorType.get(split, found.element)
    source = tensor.ExpandShapeOp(type_, source, _groups(len(shape), at), [], split).result
    scan = _new_scan(found, source, at + 1)
    return scan.results[0], scan.results[1]


def _groups(rank: int, at: int) -> list[list[int]]:
    """The reassociation that has dimension `at` twice."""
    return [[d] if d < at else [d, d + 1] if d == at else [d + 1] for d in range(rank)]


def _new_scan(found: _Scan, source: ir.Value, at: int) -> ir.Operation:
    shape = list(ir.RankedTensorType(source.type).shape)
    outs = [_build.empty(shape, found.element), _neutral(found, [*shape[:at], *shape[at + 1 :]])]
    attributes = {name: found.op.attributes[name] for name in ("inclusive", "operandSegmentSizes")}
    attributes["dimension"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), at)
    new = ir.Operation.create("tm_tensor.scan", [o.type for o in outs], [source, *outs], attributes, regions=1)
    block = new.regions[0].blocks.append(found.element, found.element)
    with ir.InsertionPoint(block):
        ir.Operation.create("tm_tensor.yield", operands=[_combined(found, *block.arguments)])
    return new


def _combined(found: _Scan, first: ir.Value, second: ir.Value) -> ir.Value:
    return ir.Operation.create(found.combiner, results=[found.element], operands=[first, second]).results[0]


def _before(found: _Scan, totals: ir.Value) -> tuple[ir.Value, ir.Operation]:
    """What comes before each chunk, and the scan of the totals that it is made of."""
    shape, at = list(ir.RankedTensorType(totals.type).shape), found.at
    scan = _new_scan(found, totals, at)
    shorter = [n - 1 if d == at else n for d, n in enumerate(shape)]
    zero, one = [0] * len(shape), [1] * len(shape)
    kept = _build.extract_slice(scan.results[0], zero, shorter)
    offsets = [1 if d == at else 0 for d in range(len(shape))]
    return tensor.InsertSliceOp(kept, _neutral(found, shape), [], [], [], offsets, shorter, one).result, scan


def _added(found: _Scan, chunks: ir.Value, before: ir.Value) -> ir.Value:
    """Each chunk with what comes before it, in the shape of the scan's result."""
    shape, rank = list(ir.RankedTensorType(chunks.type).shape), len(found.shape) + 1
    maps = [[d for d in range(rank) if d != found.at + 1], list(range(rank)), list(range(rank))]
    new = _build.generic([before, chunks], [_build.empty(shape, found.element)], maps, [True] * rank)
    block = new.regions[0].blocks.append(*[found.element] * 3)
    with ir.InsertionPoint(block):
        linalg.yield_([_combined(found, block.arguments[0], block.arguments[1])])
    padded = [*shape[: found.at], shape[found.at] * shape[found.at + 1], *shape[found.at + 2 :]]
    type_ = ir.RankedTensorType.get(padded, found.element)
    whole = tensor.CollapseShapeOp(type_, new.results[0], _groups(len(found.shape), found.at)).result
    if padded == found.shape:
        return whole
    return _build.extract_slice(whole, [0] * len(padded), found.shape)
