"""`mlirc-outline-kernels`: every op of `@main` that computes becomes a kernel function and a call."""

from __future__ import annotations

from mlirc.mlir import func, ir, run_passes
from mlirc.passes import register
from mlirc.passes.graph.classify import kind_of
from mlirc.passes.graph.outline import VIEW_OPS, Outliner, is_contiguous_slice, is_recomputed


@register("mlirc-outline-kernels")
def run(module: ir.Module, **options: str) -> None:
    """Turns a `linalg`-level module into a `kernels`-level one, in place.

    Free views stay in `@main`. A constant, empty or filled tensor that a view or the return needs is a kernel too.
    """
    with ir.Location.unknown(module.context):
        outliner = Outliner(module)
        for op in list(outliner.body.operations):
            op = op.operation
            if _stays_in_main(op):
                _materialise_operands(op, outliner)
            elif not is_recomputed(op):
                for old, new in zip(op.results, outliner.outline([op], kind_of(op), list(op.results)), strict=True):
                    old.replace_all_uses_with(new)
        outliner.finish()
        _erase_dead(outliner.body)
    run_passes(module, "canonicalize,cse")


def _stays_in_main(op: ir.Operation) -> bool:
    if op.name == "tensor.extract_slice":
        return is_contiguous_slice(op)
    return op.name in (*VIEW_OPS, "func.return", "func.call")


def _materialise_operands(op: ir.Operation, outliner: Outliner) -> None:
    for i, value in enumerate(op.operands):
        owner = value.owner
        if not isinstance(owner, ir.Block) and is_recomputed(owner):
            (result,) = outliner.outline([owner], "elementwise", [value])
            op.operands[i] = result


def _erase_dead(block: ir.Block) -> None:
    for op in reversed(list(block.operations)):
        if not isinstance(op, func.ReturnOp | func.CallOp) and not any(list(r.uses) for r in op.operation.results):
            op.operation.erase()
