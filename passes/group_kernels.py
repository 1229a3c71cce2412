"""`mlirc-group-kernels`: marks each op of `@main`, and of the steps of its loops, with the kernels that compute it.

`mlirc.kernels = array<i64>` lists an op's kernels; `mlirc.root = N` marks the op whose results kernel N writes;
`mlirc.kept = N` one whose result it writes beside them, as it computes with it. An op
without `mlirc.kernels` is dead, or costs nothing (views, constants). Options, each `true` or `false`:

    epilogue    maps after a contraction join its kernel
    siblings    two contractions of one left operand that meet in a map share a kernel (needs epilogue)
    reductions  reductions join the kernel of their only user
    maps        maps and data movement join the kernels of their users
    unpack_rows a number: of GEMMs with packed weights that warpgroups can unpack on their way to registers, the most
                rows of those that do; for more rows a launch unpacks the weight (default: 0, none)
"""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir, tensor
from mlirc.passes import register
from mlirc.passes.graph.concats import part_concats
from mlirc.passes.graph.grouping import Grouping, Options
from mlirc.passes.graph.outline import KEPT, KERNELS, ROOT, graph_functions
from mlirc.passes.graph.results import part_results
from mlirc.passes.graph.weights import permuted_weights
from mlirc.passes.graph.widened import part_casts


@register("mlirc-group-kernels")
def run(module: ir.Module, **options: str) -> None:
    """Computes the grouping and writes it as attributes. Raises MlircError for an unknown option."""
    rows = int(options.pop("unpack_rows", "0"))
    chosen = {name: _boolean(name, value) for name, value in options.items()}
    unknown = set(chosen) - set(Options.__dataclass_fields__)
    if unknown:
        raise MlircError(f"mlirc-group-kernels: unknown option '{min(unknown)}'")
    with ir.Location.unknown(module.context):
        for function in graph_functions(module):
            _group(function.regions[0].blocks[0], Options(**chosen, unpack_rows=rows))


def _group(block: ir.Block, options: Options) -> None:
    _drop_empty(block)
    part_results(block)
    part_casts(block)
    apart = part_concats(block) | permuted_weights(block)
    ops = [op.operation for op in block.operations]
    grouping = Grouping(ops, options, apart)
    while grouping.stranded:
        apart |= grouping.stranded
        grouping = Grouping(ops, options, apart)
    i64 = ir.IntegerType.get_signless(64)
    for op, kernels in grouping.kernels_of.items():
        op.attributes[KERNELS] = ir.DenseI64ArrayAttr.get(sorted(k.number for k in kernels))
    for op, kernel in grouping.root_of.items():
        op.attributes[ROOT] = ir.IntegerAttr.get(i64, kernel.number)
    for op, kernel in grouping.kept_by.items():
        op.attributes[KEPT] = ir.IntegerAttr.get(i64, kernel.number)
    for op in [op for op in grouping.root_of if len(ir.DenseI64ArrayAttr(op.attributes[KERNELS])) > 1]:
        _repeat(op)


def _repeat(root: ir.Operation) -> None:
    """Gives the kernels that compute another kernel's root again an op of their own."""
    own = ir.IntegerAttr(root.attributes[ROOT]).value
    again = set(ir.DenseI64ArrayAttr(root.attributes[KERNELS])) - {own}
    root.attributes[KERNELS] = ir.DenseI64ArrayAttr.get([own])
    users = {use.owner.operation for use in root.results[0].uses}
    users = {u for u in users if KERNELS in u.attributes and set(ir.DenseI64ArrayAttr(u.attributes[KERNELS])) <= again}
    if not users:
        return
    copy = root.clone(ir.InsertionPoint.after(root)).operation
    copy.attributes[KERNELS] = ir.DenseI64ArrayAttr.get(sorted(again))
    del copy.attributes[ROOT]
    for user in list(users):
        for i, operand in enumerate(user.operands):
            if operand == root.results[0]:
                user.operands[i] = copy.results[0]


def _drop_empty(block: ir.Block) -> None:
    """Tensors without elements need no computing, and a fold over none of them is its initial value."""
    for op in [op.operation for op in block.operations]:
        tensors = [r for r in op.results if isinstance(r.type, ir.RankedTensorType)]
        if not tensors or op.name in ("tensor.empty", "arith.constant"):
            continue
        for result in tensors:
            if 0 in result.type.shape:
                with ir.InsertionPoint(op):
                    result.replace_all_uses_with(tensor.empty(list(result.type.shape), result.type.element_type))
        operands = list(op.operands)
        if op.name.startswith("linalg.") and len(op.results) == 1 and 0 not in tensors[0].type.shape:
            if any(0 in v.type.shape for v in operands if isinstance(v.type, ir.RankedTensorType)):
                tensors[0].replace_all_uses_with(operands[-1])


def _boolean(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise MlircError(f"mlirc-group-kernels: option {name} is true or false, not '{value}'")
    return value == "true"
