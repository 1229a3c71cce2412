"""What a kernel's text at the `kernels` level says about its arguments: which are indices, and what values matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlirc.dialects.mlirc_dialect import ATTENTIONS, CACHED_ATTENTION, DEQUANTIZE, AttentionInfo, scores_operands
from mlirc.dialects.sort import SORT
from mlirc.ir import levels
from mlirc.mlir import ir, nested
from mlirc.passes.loops.row_writes import SCATTER

_DIVISIONS = ("arith.divs", "arith.divu", "arith.rem", "arith.ceildiv", "arith.floordiv")
_EXTREMES = ("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf", "arith.maxsi", "arith.minsi",
             "arith.maxui", "arith.minui", "arith.cmpf", "arith.cmpi")  # fmt: skip
_DECIDES = (*_EXTREMES[:4], "arith.cmpf", "arith.fptosi", "arith.fptoui", "math.floor", "math.ceil", "math.round",
            "math.roundeven", "math.trunc", SORT)  # fmt: skip
_ELEMENTWISE = ("linalg.generic", "linalg.fill", "linalg.map", "linalg.copy", "linalg.transpose", "linalg.broadcast",
                "linalg.index", "linalg.yield", "linalg.pack", "linalg.unpack")  # fmt: skip


@dataclass(frozen=True)
class Traits:
    """`limits`: the arguments that are indices, by number, and the extent of the dimension (the smallest of several);
    `distinct`: those of them that are places to write, which are different ones or negative; `divides`: integers are
    divided, and so must not be 0; `reduces`: elements are summed or compared along a dimension; `decides`: floats are
    rounded or compared; `weighs`: attention, whose weights are rounded to 16 bits; `axes`: the dimension along which
    tensors of a shape are searched for an extreme; `scales`: arguments that unpack quantized weights, by which a kernel
    multiplies sums, so that an infinite one gives other infinities than the weights' own."""

    limits: Mapping[int, int] = field(default_factory=dict)
    distinct: frozenset[int] = frozenset()
    divides: bool = False
    reduces: bool = True
    decides: bool = True
    weighs: bool = False
    axes: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    scales: frozenset[int] = frozenset()

    @staticmethod
    def of(function: ir.OpView) -> Traits:
        """For a function at the `kernels` level."""
        limits, distinct = _indices(function)
        ops = list(nested(function.operation))
        return Traits(
            limits, distinct,
            divides=any(op.name.startswith(_DIVISIONS) for op in ops),
            reduces=any(_reduces(op) for op in ops),
            decides=any(op.name in _DECIDES for op in ops),
            weighs=any(_weighs(op) for op in ops),
            axes={shape: axis for op in ops for shape, axis in _axes(op)},
            scales=frozenset(i for op in ops if DEQUANTIZE in op.attributes for i in _read(op)),
        )  # fmt: skip


def _read(op: ir.Operation) -> set[int]:
    """The numbers of the function's arguments that an operation takes, or reads in its body."""
    values = [v for inner in (op, *nested(op)) for v in inner.operands]
    return {_argument(v) for v in values} - {-1}


def _argument(value: ir.Value) -> int:
    """The number of the function's argument that a value is, reshaped or cut; -1 where it is none."""
    while not isinstance(value.owner, ir.Block):
        if not value.owner.name.startswith("tensor.") or not value.owner.operands:
            return -1
        value = value.owner.operands[0]
    return value.arg_number if value.owner.owner.operation.name == "func.func" else -1


def _reductions(op: ir.Operation) -> list[int]:
    """The loops of a linalg.generic that are reductions."""
    kinds = ir.ArrayAttr(op.attributes["iterator_types"]) if "iterator_types" in op.attributes else []
    return [i for i, kind in enumerate(kinds) if "reduction" in str(kind)]


def _reduces(op: ir.Operation) -> bool:
    if op.name == "linalg.generic":
        return bool(_reductions(op))
    return op.name.startswith(("linalg.", "tm_tensor.", "mlirc.")) and op.name not in _ELEMENTWISE


def _weighs(op: ir.Operation) -> bool:
    """Whether an operation is an attention over values of 16 bits."""
    values = [v for v in op.operands if isinstance(v.type, ir.RankedTensorType)] if op.name in ATTENTIONS else []
    return any(str(ir.RankedTensorType(v.type).element_type) in ("f16", "bf16") for v in values[2:3])


def _axes(op: ir.Operation) -> list[tuple[tuple[int, ...], int]]:
    """For each operand of an operation that looks for an extreme along a dimension: its shape and that dimension."""
    if op.name == SORT:
        return [(tuple(ir.RankedTensorType(v.type).shape), 1) for v in op.operands]
    if op.name != "linalg.generic" or not any(
        o.operation.name in _EXTREMES for o in op.regions[0].blocks[0].operations
    ):
        return []
    loops, found = _reductions(op), []
    for value, map_ in zip(op.operands, ir.ArrayAttr(op.attributes["indexing_maps"]), strict=True):
        results = ir.AffineMapAttr(map_).value.results if isinstance(value.type, ir.RankedTensorType) else []
        dims = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in results]
        found += [(tuple(value.type.shape), dims.index(i)) for i in loops if i in dims]
    return found


def _indices(function: ir.OpView) -> tuple[dict[int, int], frozenset[int]]:
    """Which integer arguments are indices, with the extents of their tables, and which of them are to differ."""
    limits: dict[int, int] = {}
    distinct: frozenset[int] = frozenset()
    sources: dict[ir.Value, frozenset[int]] = {
        value: frozenset([i]) for i, value in enumerate(function.regions[0].blocks[0].arguments)
    }
    for op in nested(function.operation):
        if op.name.startswith("linalg.") and op.regions and op.regions[0].blocks:
            for inner, outer in zip(op.regions[0].blocks[0].arguments, op.operands, strict=False):
                sources[inner] = sources.get(outer, frozenset())
        found = frozenset().union(*(sources.get(v, frozenset()) for v in op.operands))
        if op.name == "tensor.extract":
            table = ir.RankedTensorType(op.operands[0].type)
            for index, extent in zip(list(op.operands)[1:], table.shape, strict=True):
                _limit(limits, sources.get(index, frozenset()), extent)
        elif op.name == CACHED_ATTENTION:
            a = AttentionInfo.of(op)
            assert a.pages is not None
            for index, extent in zip(scores_operands(op), (a.pages.pool, a.kv_len + 1), strict=True):
                _limit(limits, sources.get(index, frozenset()), extent)
        elif op.name == SCATTER:
            places, table = sources.get(op.operands[1], frozenset()), ir.RankedTensorType(op.operands[2].type)
            _limit(limits, places, min(table.shape[d] for d in op.attributes["dimension_map"]))
            distinct |= places if ir.BoolAttr(op.attributes["unique_indices"]).value else frozenset()
        elif levels.INDEX_BELOW in op.attributes:
            _limit(limits, found, ir.IntegerAttr(op.attributes[levels.INDEX_BELOW]).value)
        for result in op.results:
            sources[result] = found | _inner(op, sources)
    return limits, distinct


def _inner(op: ir.Operation, sources: Mapping[ir.Value, frozenset[int]]) -> frozenset[int]:
    """What a region's result is made of; its operations come before this one is asked for."""
    found: frozenset[int] = frozenset()
    for region in op.regions:
        for block in region.blocks:
            for inside in block.operations:
                for value in inside.operation.operands:
                    found |= sources.get(value, frozenset())
    return found


def _limit(limits: dict[int, int], arguments: frozenset[int], extent: int) -> None:
    for i in arguments:
        limits[i] = min(limits.get(i, extent), extent)
