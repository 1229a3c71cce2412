"""`schedule.split_reductions`: long reductions with few results become several short ones, each with many results.

A sum of ten million numbers in one thread would be slow and inexact. It becomes some 65,000 partial sums of about 150
numbers, those become some 2,000, and so on. What is left over where a length has no such factor is added last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.ir.combiners import combining, neutral
from mlirc.mlir import affine, arith, ir, linalg, pass_manager

ENOUGH_RESULTS = 1 << 16  # with so many threads, each may be busy for long
_MOST = 16  # times `length` elements, for one thread


@dataclass
class _Reduction:
    """One op: its loops' extents, which of them reduce, its operands' maps, and how partial results combine."""

    op: ir.Operation
    extents: list[int]
    reduced: list[int]
    maps: list[ir.AffineMap]
    combiner: str

    @property
    def results(self) -> int:
        return prod(n for d, n in enumerate(self.extents) if d not in self.reduced)

    @property
    def length(self) -> int:
        return prod(self.extents[d] for d in self.reduced)


@transform_op("split_reductions", attributes={"length": int}, takes="func.func")
def split_reductions(rewriter, targets, *, length: int) -> None:
    """Splits, in the target functions, every `linalg.generic` that reduces more than four times `length` elements into
    each of few results with one associative operation, after fusing elementwise ops into it. `length` is about how many
    elements one thread takes."""
    if length < 2:
        raise PayloadError(f"length {length}: a thread takes 2 elements or more")
    for target in targets:
        # Before an op's producer gets several users, and what it computes would be stored.
        pass_manager("func.func(linalg-fuse-elementwise-ops)").run(target.operation)
        for view in list(target.operation.regions[0].blocks[0].operations):
            if view.operation.name == "linalg.generic":
                _split(view.operation, length)


def _split(op: ir.Operation, length: int) -> None:
    found = _reduction(op)
    if found is None or found.length <= 4 * length or found.results >= ENOUGH_RESULTS:
        return
    steps = _steps(found.length, found.results, length)
    if len(found.reduced) == 1 and found.length < 2 * steps:
        return
    with op.location, ir.InsertionPoint(op):
        if len(found.reduced) > 1:
            parts = again = _keep_last(found)
        else:
            parts = _split_length(found, steps)
            again = parts[1:]  # the first has as many results as its threads shall have elements
    op.results[0].replace_all_uses_with(parts[-1].results[0])
    op.erase()
    for part in again:
        _split(part, length)


def _steps(extent: int, results: int, length: int) -> int:
    """How many elements a thread takes: enough that the threads are not many more than needed, few enough that a long
    sum stays exact, and a divisor of the extent if one is near."""
    wanted = min(max(length, -(-extent * results // ENOUGH_RESULTS)), _MOST * length)
    near = [n for n in range(max(2, wanted // 2), wanted + wanted // 4 + 1) if extent % n == 0]
    return min(near, key=lambda n: abs(n - wanted), default=wanted)


def _reduction(op: ir.Operation) -> _Reduction | None:
    """What there is to know of an op that reduces with one operation that has a neutral element; None for others."""
    maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    kinds = ["reduction" in str(k) for k in ir.ArrayAttr(op.attributes["iterator_types"])]
    if len(op.results) != 1 or not any(kinds) or any(o.operation.regions for o in op.regions[0].blocks[0].operations):
        return None
    block = op.regions[0].blocks[0]
    body = [o.operation for o in block.operations]
    out = block.arguments[len(block.arguments) - 1]
    last = combining(body[-1].operands[0], out)
    if last is None or neutral(last.name, out.type) is None:
        return None
    extents = [0] * len(kinds)
    for operand, map_ in zip(op.operands, maps, strict=True):
        if not isinstance(operand.type, ir.RankedTensorType):
            continue  # a scalar
        for size, expr in zip(ir.RankedTensorType(operand.type).shape, map_.results, strict=True):
            if isinstance(expr, ir.AffineDimExpr):
                extents[expr.position] = size
    if not all(extents):
        return None
    return _Reduction(op, extents, [d for d, reduces in enumerate(kinds) if reduces], maps, last.name)


def _keep_last(found: _Reduction) -> list[ir.Operation]:
    """Reduces all but the last reduced loop first, so that neighbours are read together."""
    last = found.reduced[-1]
    dims = [ir.AffineExpr.get_dim(d) for d in range(len(found.extents))]
    partial = _partial(found, dims, found.extents, found.reduced[:-1])
    return [partial, _combine(found, partial, [d for d in range(len(dims)) if d not in found.reduced[:-1]], [last])]


def _split_length(found: _Reduction, steps: int) -> list[ir.Operation]:
    """Loop d of extent n becomes loops (d, d + 1) of extents (steps, width): index d * width + d', then the rest."""
    (at,) = found.reduced
    extent = found.extents[at]
    width = extent // steps
    extents = [*found.extents[:at], steps, width, *found.extents[at + 1 :]]
    new = [ir.AffineExpr.get_dim(d) for d in range(len(extents))]
    dims = [*new[:at], new[at] * width + new[at + 1], *new[at + 2 :]]
    partial = _partial(found, dims, extents, [at])
    parts = [partial, _combine(found, partial, [d for d in range(len(extents)) if d != at], [at + 1])]
    rest = extent - steps * width
    if rest:
        dims = [ir.AffineExpr.get_dim(d) for d in range(len(found.extents))]
        dims[at] = dims[at] + steps * width
        extents = [*found.extents[:at], rest, *found.extents[at + 1 :]]
        out = found.maps[-1]
        parts.append(_clone(found, dims, extents, [at], parts[-1].results[0], out))
    return parts


def _partial(found: _Reduction, dims: Sequence, extents: Sequence[int], reduced: Sequence[int]) -> ir.Operation:
    """The op over new loops, into a fresh tensor with one dimension per loop that is not reduced."""
    kept = [d for d in range(len(extents)) if d not in reduced]
    element = ir.RankedTensorType(found.op.results[0].type).element_type
    start = arith.ConstantOp(element, neutral(found.combiner, element)).result
    empty = _build.empty([extents[d] for d in kept], element)
    init = linalg.fill(start, outs=[empty])
    out = ir.AffineMap.get(len(extents), 0, [ir.AffineExpr.get_dim(d) for d in kept])
    return _clone(found, dims, extents, reduced, init, out)


def _clone(
    found: _Reduction, dims: Sequence, extents: Sequence[int], reduced: Sequence[int], init: ir.Value, out: ir.AffineMap
) -> ir.Operation:
    """The op over new loops; `dims` are its old loops' indices in terms of the new ones."""
    count = len(extents)
    inputs = list(found.op.operands)[:-1]
    maps = [ir.AffineMap.get(count, 0, [e.compose(ir.AffineMap.get(count, 0, list(dims))) for e in m.results])
            for m in found.maps[:-1]]  # fmt: skip
    # A loop whose index stands nowhere alone gets its extent from an operand that nobody reads.
    plain = {e.position for m in [*maps, out] for e in m.results if isinstance(e, ir.AffineDimExpr)}
    element = ir.RankedTensorType(init.type).element_type
    hidden = [d for d in range(count) if d not in plain]
    shapes = [_build.empty([extents[d]], element) for d in hidden]
    maps += [ir.AffineMap.get(count, 0, [ir.AffineExpr.get_dim(d)]) for d in hidden]
    new = _generic(inputs + shapes, init, [*maps, out], count, reduced)
    old, block = found.op.regions[0].blocks[0], new.regions[0].blocks[0]
    arguments = list(block.arguments)
    with ir.InsertionPoint(block):
        _clone_body(old, [*arguments[: len(inputs)], arguments[-1]], dims, count)
    return new


def _clone_body(old: ir.Block, arguments: Sequence[ir.Value], dims: Sequence, count: int) -> None:
    mapping = dict(zip(old.arguments, arguments, strict=True))
    for view in old.operations:
        inner = view.operation
        if inner.name == "linalg.index":
            at = dims[ir.IntegerAttr(inner.attributes["dim"]).value]
            loops = [linalg.IndexOp(d).result for d in range(count)]
            mapping[inner.results[0]] = affine.AffineApplyOp(ir.AffineMap.get(count, 0, [at]), loops).result
            continue
        clone = inner.clone()
        for i, value in enumerate(clone.operands):
            clone.operands[i] = mapping.get(value, value)
        mapping |= dict(zip(inner.results, clone.results, strict=True))


def _combine(found: _Reduction, partial: ir.Operation, kept: Sequence[int], reduced: Sequence[int]) -> ir.Operation:
    """Reduces partial results, whose dimensions are the loops `kept`, into the op's own result."""
    loops = {d: i for i, d in enumerate(kept)}
    extents = ir.RankedTensorType(partial.results[0].type).shape
    dims = [ir.AffineExpr.get_dim(i) for i in range(len(extents))]
    rows = [loops[d] for d in kept if d not in reduced]
    # The op's result in terms of its parallel loops, which are the kept ones but for the reduced one, in order.
    parallel = [d for d in range(len(found.extents)) if d not in found.reduced]
    old = [ir.AffineExpr.get_constant(0)] * len(found.extents)
    for d, row in zip(parallel, rows, strict=True):
        old[d] = dims[row]
    substitution = ir.AffineMap.get(len(dims), 0, old)
    out = ir.AffineMap.get(len(dims), 0, [e.compose(substitution) for e in found.maps[-1].results])
    init = found.op.operands[len(found.op.operands) - 1]
    identity = ir.AffineMap.get_identity(len(dims))
    new = _generic([partial.results[0]], init, [identity, out], len(dims), [loops[d] for d in reduced])
    block = new.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        value = ir.Operation.create(
            found.combiner, results=[block.arguments[0].type], operands=list(block.arguments)
        ).results[0]
        linalg.yield_([value])
    return new


def _generic(
    inputs: Sequence[ir.Value], init: ir.Value, maps: Sequence[ir.AffineMap], count: int, reduced: Sequence[int]
) -> ir.Operation:
    """A generic with one result and an empty block of the right arguments."""
    kinds = ["reduction" if d in reduced else "parallel" for d in range(count)]
    op = linalg.GenericOp(
        [init.type],
        list(inputs),
        [init],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{k}>") for k in kinds]),
    ).operation
    types = [x.type for x in (*inputs, init)]
    op.regions[0].blocks.append(*[t.element_type if isinstance(t, ir.RankedTensorType) else t for t in types])
    return op
