"""Turns `mlirc.attention` and `mlirc.cached_attention` into linalg ops: for the CPU, for the generic GPU path, and as
the ops' exact meaning (`Decomposer` in `dialects/schedule/decompose_attention.py`).

The scores are materialized (f32, or f64 for f64 inputs). Heads are kept as two dimensions, key head and group, so that
grouped-query attention needs no copies of k and v: every indexing map stays a projected permutation.
"""

from __future__ import annotations

from mlirc.dialects.mlirc_dialect import ATTENTIONS, GATHER_PAGES, AttentionInfo, GatherInfo
from mlirc.dialects.pages import length_of, page_of
from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule.decompose_attention import exact_attention
from mlirc.mlir import arith, ir, linalg, nested, tensor
from mlirc.passes import register


@register("mlirc-decompose-attention")
def run(module: ir.Module, wide_f32: str = "0") -> None:
    """Replaces every attention and gather of pages of the module, or with `wide_f32` the attentions of several queries
    whose heads have more elements of f32 than that: their results do not fit registers. A query row that sees no key
    gives 0."""
    for op in [op for op in nested(module.operation) if op.name in ATTENTIONS]:
        if wide_f32 == "0" or _is_wide(AttentionInfo.of(op), int(wide_f32)):
            with module.context, op.location, ir.InsertionPoint(op):
                _replace(op, *exact_attention(op))
    for op in [op for op in nested(module.operation) if op.name == GATHER_PAGES]:
        with module.context, op.location, ir.InsertionPoint(op):
            _replace(op, _gathered(op))


def _replace(op: ir.Operation, *values: ir.Value) -> None:
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _is_wide(info: AttentionInfo, limit: int) -> bool:
    return str(info.element_type) == "f32" and info.q_len > 1 and max(info.head_dim, info.value_dim) > limit


def _gathered(op: ir.Operation) -> ir.Value:
    """A gather of pages, as the gather of each element: zero behind each sequence's length."""
    info, type_ = GatherInfo.of(op), ir.RankedTensorType(op.results[0].type)
    pool, pages, lengths = op.operands
    out = _build.empty(list(type_.shape), type_.element_type)
    made = _build.generic([], [out], [[0, 1, 2, 3]], [True] * 4)
    block = made.regions[0].blocks.append(type_.element_type)
    with ir.InsertionPoint(block):
        b, h, j, d = (linalg.IndexOp(n).result for n in range(4))
        size = _build.index(info.pages.size)
        page = page_of(pages, b, arith.DivUIOp(j, size).result, info.pages)
        at = {"b": page, "h": h, "s": arith.RemUIOp(j, size).result, "d": d}
        inside = arith.CmpIOp(arith.CmpIPredicate.slt, j, length_of(lengths, b, info.pages)).result
        found = tensor.ExtractOp(pool, [at[c] for c in info.layout]).result
        found = arith.ExtFOp(type_.element_type, found).result if found.type != type_.element_type else found
        zero = arith.ConstantOp(type_.element_type, 0.0).result
        linalg.YieldOp([arith.SelectOp(inside, found, zero).result])
    return made.results[0]
