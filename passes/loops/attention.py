"""torch-mlir's tm_tensor.attention as `mlirc.attention`: upstream's loops for it add up a row's weights in parallel."""

from __future__ import annotations

import math

from mlirc.dialects.mlirc_dialect import attention
from mlirc.errors import MlircError
from mlirc.mlir import ir, tensor

_RANK = 4  # batch, heads, sequence, head dimension


def _with_rank_4(value: ir.Value) -> ir.Value:
    """Adds dimensions of size 1 after the first, which is the batch."""
    type_ = ir.RankedTensorType(value.type)
    missing = _RANK - type_.rank
    if missing == 0:
        return value
    shape = [type_.shape[0], *[1] * missing, *type_.shape[1:]]
    groups = [list(range(missing + 1)), *[[i + missing] for i in range(1, type_.rank)]]
    result = ir.RankedTensorType.get(shape, type_.element_type)
    return tensor.expand_shape(result, value, groups, [], shape)


def expand_attention(op: ir.Operation) -> None:
    """Replaces a tm_tensor.attention of rank 3 or 4; raises MlircError for another rank."""
    inputs = list(op.operands)[: list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))[0]]
    ranks = {ir.RankedTensorType(v.type).rank for v in inputs}
    if ranks not in ({3}, {4}):
        raise MlircError(f"{op.name} at {op.location}: its operands have ranks {sorted(ranks)}; 3 or 4 are supported")
    scale = 1.0 / math.sqrt(ir.RankedTensorType(inputs[0].type).shape[-1])
    with op.location, ir.InsertionPoint(op):
        q, k, v, *mask = (_with_rank_4(x) for x in inputs)
        result = attention(q, k, v, mask[0] if mask else None, scale=scale)
        type_ = ir.RankedTensorType(op.results[0].type)
        if type_.rank < _RANK:
            groups = [[0, 1], [2], [3]]
            result = tensor.collapse_shape(type_, result, groups)
    op.results[0].replace_all_uses_with(result)
    op.erase()
