"""`schedule.change_score`: attention with another function of its scores."""

from __future__ import annotations

from mlirc.dialects import score_functions
from mlirc.dialects.mlirc_dialect import ATTENTION, AttentionInfo, attention
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.mlir import ir


@transform_op(
    "change_score",
    operands=("attention",),
    consumes=("attention",),
    results=("changed",),
    attributes={"lines": str, "softmax": bool},
    takes=ATTENTION,
)
def change_score(rewriter, targets, lines, softmax):
    """Puts the function that `lines` are (`score_functions.py`) between the scores, scaled and capped, and the softmax,
    or without `softmax` in its place. The attention has neither a mask nor a function, which would be lost."""
    made = []
    for target in targets:
        op = target.operation
        info = AttentionInfo.of(op)
        if len(op.operands) > 3 or info.score:
            raise PayloadError("the attention has a mask or a function of its scores already, which would be lost", op)
        if info.lse and not softmax:
            raise PayloadError("a log-sum-exp of the attention is read, which weights without a softmax have not", op)
        try:
            score_functions.parse(tuple(lines.split("\n")), info.sum_type)
        except ValueError as e:
            raise PayloadError(str(e), op) from e
        with ir.InsertionPoint(op), op.location:
            new = attention(
                *op.operands, scale=info.scale, causal=info.causal, window=info.window, softcap=info.softcap,
                layouts=info.layouts, nan_rows=info.nan_rows, score=lines.split("\n"), softmax=softmax,
                lse=info.lse,
            )  # fmt: skip
        for old, result in zip(op.results, new.owner.results, strict=True):
            old.replace_all_uses_with(result)
        rewriter.erase_op(op)
        made.append(new.owner)
    return [made]
