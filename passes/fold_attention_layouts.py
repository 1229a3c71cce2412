"""`mlirc-fold-attention-layouts`: a transpose of an attention's result becomes the layout that attention writes.

Only when every user of the result is the same transpose. (Transposes of q, k and v fold when kernels are outlined.)
"""

from __future__ import annotations

from mlirc.dialects.mlirc_dialect import ATTENTIONS
from mlirc.mlir import ir
from mlirc.passes import register
from mlirc.passes.graph.outline import graph_functions
from mlirc.passes.graph.space import tensor_type


@register("mlirc-fold-attention-layouts")
def run(module: ir.Module, **options: str) -> None:
    """Rewrites the attention ops of `@main` and of its loops' steps in place; the module needs no form of its own."""
    with ir.Location.unknown(module.context):
        for function in graph_functions(module):
            for op in list(function.regions[0].blocks[0].operations):
                if op.operation.name in ATTENTIONS:
                    _fold(op.operation)


def _fold(op: ir.Operation) -> None:
    users = [use.owner.operation for use in op.results[0].uses]
    permutation = common_permutation(users)
    if permutation is None:
        return
    layouts = [a.value for a in op.attributes["layouts"]]
    shape = list(op.results[0].type.shape)
    layouts[3] = "".join(layouts[3][p] for p in permutation)
    attributes = {name: op.attributes[name] for name in op.attributes}
    attributes["layouts"] = ir.ArrayAttr.get([ir.StringAttr.get(x) for x in layouts])
    type_ = tensor_type([shape[p] for p in permutation], op.results[0].type.element_type)
    with ir.InsertionPoint(op):
        types = [type_, *(r.type for r in list(op.results)[1:])]
        new = ir.Operation.create(op.name, types, list(op.operands), attributes, loc=op.location)
    for user in users:
        user.results[0].replace_all_uses_with(new.results[0])
        user.erase()
    for old, lse in zip(list(op.results)[1:], list(new.results)[1:], strict=True):
        old.replace_all_uses_with(lse)
    op.erase()


def common_permutation(users: list[ir.Operation]) -> list[int] | None:
    """The permutation that all these ops, `linalg.transpose` each, apply; None if there is none."""
    if not users or any(u.name != "linalg.transpose" for u in users):
        return None
    permutations = {tuple(u.attributes["permutation"]) for u in users}
    return list(permutations.pop()) if len(permutations) == 1 else None
