"""`mlirc-outline-kernels`: makes a kernel function of every group that `mlirc-group-kernels` marked, and calls it."""

from __future__ import annotations

from mlirc.dialects.mlirc_dialect import ATTENTIONS
from mlirc.dialects.sort import SORT
from mlirc.ir.scans import is_scan
from mlirc.mlir import func, ir, run_passes
from mlirc.passes import register
from mlirc.passes.graph.classify import is_contraction
from mlirc.passes.graph.emit import reshape
from mlirc.passes.graph.evaluate import VIEWS
from mlirc.passes.graph.facts import kind
from mlirc.passes.graph.kernels import KernelBuilder
from mlirc.passes.graph.outline import (
    KEPT,
    KERNELS,
    ROOT,
    Outliner,
    graph_functions,
    is_contiguous_slice,
    is_recomputed,
    origins,
    summarize_origins,
)


@register("mlirc-outline-kernels")
def run(module: ir.Module, **options: str) -> None:
    """Turns a marked `linalg`-level module into a `kernels`-level one, in place.

    Free views stay in `@main`. A constant, empty or filled tensor that a view or the return needs is a kernel too.
    """
    with ir.Location.unknown(module.context):
        outliner = Outliner(module)
        for function in graph_functions(module):
            outliner.body = function.regions[0].blocks[0]
            _outline_all(outliner)
        outliner.finish()
    run_passes(module, "canonicalize,cse")
    if _drop_copies(module):
        run_passes(module, "canonicalize,cse")


def _drop_copies(module: ir.Module) -> bool:
    """Erases the kernels that return what they are given, as a transpose of single rows does, where nothing but other
    kernels reads the results; returns whether there were any. What a function returns lies in a place of its own."""
    copies = {}
    for op in module.body.operations:
        if isinstance(op, func.FuncOp) and "mlirc.kernel" in op.attributes:
            first = op.regions[0].blocks[0].operations[0].operation
            if first.name == "func.return":
                copies[op.name.value] = (op, [ir.BlockArgument(v).arg_number for v in first.operands])
    needed, dropped = set(), False
    for function in graph_functions(module) if copies else ():
        for call in [o for o in function.regions[0].blocks[0].operations if isinstance(o, func.CallOp)]:
            name = call.callee.value
            if name not in copies:
                continue
            if any(_is_returned(result) for result in call.results):
                needed.add(name)
                continue
            for result, place in zip(call.results, copies[name][1], strict=True):
                result.replace_all_uses_with(call.operands[place])
            call.operation.erase()
            dropped = True
    for name, (kernel, _) in copies.items():
        if name not in needed:
            kernel.operation.erase()
    return dropped


def _is_returned(value: ir.Value) -> bool:
    """Whether a function returns a tensor or a view of it."""
    users = [use.owner.operation for use in value.uses]
    return any(u.name == "func.return" or (u.name != "func.call" and any(map(_is_returned, u.results))) for u in users)


def _outline_all(outliner: Outliner) -> None:
    """Makes the kernels of one function."""
    ops = [op.operation for op in outliner.body.operations]
    members: dict[int, list[ir.Operation]] = {}
    for op in ops:
        for number in op.attributes[KERNELS] if KERNELS in op.attributes else ():
            members.setdefault(number, []).append(op)
    for op in ops:
        if op.name in (*VIEWS, "tensor.cast", "func.return", "func.call") or _is_view_slice(op):
            _materialise_operands(op, outliner)
        elif ROOT in op.attributes:
            _outline(op, members[op.attributes[ROOT].value], outliner)
    _erase_dead(outliner.body)


def _outline(root: ir.Operation, members: list[ir.Operation], outliner: Outliner) -> None:
    if kind(root) == "generic":
        if root.name == SORT:
            _materialise_constants(root, set(), outliner)
        for result, new in zip(
            root.results, outliner.outline([root], _opaque_kind(root), list(root.results)), strict=True
        ):
            result.replace_all_uses_with(new)
        return
    inside = set(members)
    for op in members:
        if is_contraction(op) or op.name in ATTENTIONS:
            _materialise_constants(op, inside, outliner)
    inside = set(members)  # again: an operation's hash depends on its operands
    names: dict[str, None] = {}
    for op in members:
        origins(op.location, names)
    kept = [op.results[0] for op in members if KEPT in op.attributes]
    builder = KernelBuilder(outliner.module.body, root, lambda op: op in inside, kept, any(map(is_scan, inside)))
    with ir.Location.name(", ".join(summarize_origins(list(names)))) if names else root.location:
        built = builder.build()
    results = outliner.call(built.function, built.kind, built.arguments, names, root)
    for old, new, shape in zip(builder.outputs, results, built.shapes, strict=True):
        with ir.InsertionPoint(root), root.location:
            seen = reshape(new, shape)
        old.replace_all_uses_with(seen)


def _materialise_constants(op: ir.Operation, inside: set[ir.Operation], outliner: Outliner) -> None:
    """Contractions, attention and sorts read tensors in memory: a filled one that they read gets its own kernel."""
    inits = 1 if op.name.startswith("linalg.") else 0
    for i, value in enumerate(list(op.operands)[: len(op.operands) - inits]):
        owner = value.owner
        if isinstance(owner, ir.Block):
            continue
        owner = owner.operation
        if owner in inside or owner.name in VIEWS:
            _materialise_constants(owner, inside, outliner)
        elif is_recomputed(owner) and isinstance(value.type, ir.RankedTensorType):
            (op.operands[i],) = outliner.outline([owner], "elementwise", [value])


def _is_view_slice(op: ir.Operation) -> bool:
    """Whether a slice that must exist is a free view of a tensor that exists."""
    if ROOT not in op.attributes or not is_contiguous_slice(op):
        return False
    owner = op.operands[0].owner
    while not isinstance(owner, ir.Block) and owner.operation.name in VIEWS:
        owner = owner.operation.operands[0].owner
    return isinstance(owner, ir.Block) or owner.operation.name == "func.call"


def _materialise_operands(op: ir.Operation, outliner: Outliner) -> None:
    if op.name != "func.return" and not any(list(r.uses) for r in op.results):
        return
    for i, value in enumerate(op.operands):
        owner = value.owner
        if not isinstance(owner, ir.Block) and is_recomputed(owner):
            (result,) = outliner.outline([owner], "elementwise", [value])
            op.operands[i] = result


def _erase_dead(block: ir.Block) -> None:
    for op in reversed(list(block.operations)):
        if not isinstance(op, func.ReturnOp) and not any(list(r.uses) for r in op.operation.results):
            op.operation.erase()


def _opaque_kind(root: ir.Operation) -> str:
    """The kind of a kernel that is one op as it was."""
    return "sort" if root.name == SORT else "generic"
