"""Tensors to buffers to parallel loops, for the generic path."""

from __future__ import annotations

from mlirc.dialects.sort import SORT
from mlirc.errors import MlircError
from mlirc.mlir import bufferization, ir, linalg, run_passes
from mlirc.passes.loops.attention import expand_attention
from mlirc.passes.loops.nests import walk
from mlirc.passes.loops.pads import expand_pad
from mlirc.passes.loops.row_writes import SCATTER, expand_row_write, is_row_write
from mlirc.passes.loops.scans import expand_scans
from mlirc.passes.loops.sorts import expand_sort
from mlirc.passes.loops.windows import expand_im2col

# Concatenations become copies into slices; a chain of elementwise ops becomes one.
_NORMALIZE = (
    "func.func(linalg-generalize-named-ops,refback-generalize-tensor-concat,linalg-fuse-elementwise-ops),"
    "canonicalize,cse"
)
_BUFFERIZE = (
    "eliminate-empty-tensors,empty-tensor-to-alloc-tensor,"
    "one-shot-bufferize{bufferize-function-boundaries=1 function-boundary-type-conversion=identity-layout-map "
    "allow-unknown-ops=1},"
    "buffer-results-to-out-params{hoist-static-allocs=1 modify-public-functions=1},"
    "func.func(tm-tensor-to-loops),canonicalize,cse"
)
_PARALLEL = "func.func(convert-linalg-to-parallel-loops,scf-forall-to-parallel,lower-affine),canonicalize,cse"


def _walk(module: ir.Module, name: str) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == name:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def bufferize(module: ir.Module) -> None:
    """Gives every function memref arguments of identity layout: its own, then one per result."""
    from mlirc.passes import get_pass

    expand_attentions(module)
    get_pass("mlirc-decompose-attention")(module)
    for function in _walk(module, "func.func"):
        _protect_arguments(function)
    expand_sorts(module)
    run_passes(module, _NORMALIZE)
    expand_im2col(module)
    expand_scans(module)
    expand_pads(module)
    run_passes(module, "func.func(tm-tensor-bufferize)")
    separate_results(module)
    expand_row_writes(module)
    vouch_for_buffers(module)
    run_passes(module, _BUFFERIZE)
    _check_buffers(module)


def vouch_for_buffers(module: ir.Module) -> None:
    """tm-tensor-bufferize reads its operands' buffers and writes fresh ones; the analysis has to be told so.

    A buffer is asked for right before each op that reads it: what writes to the tensor's buffer in between counts as a
    conflict only then.
    """
    for op in _walk(module, "bufferization.to_tensor"):
        op.attributes["restrict"] = ir.UnitAttr.get()
    for op in _walk(module, "bufferization.to_buffer"):
        op.attributes["read_only"] = ir.UnitAttr.get()
        for use in list(op.results[0].uses):
            reader = use.owner.operation
            with ir.InsertionPoint(reader):
                reader.operands[use.operand_number] = op.clone().operation.results[0]
        op.erase()


def expand_attentions(module: ir.Module) -> None:
    """Replaces every tm_tensor.attention by a `mlirc.attention`; see `expand_attention`."""
    for op in _walk(module, "tm_tensor.attention"):
        expand_attention(op)


def expand_sorts(module: ir.Module) -> None:
    """Replaces every mlirc.sort by linalg.generics; see `expand_sort`."""
    for op in _walk(module, SORT):
        expand_sort(op)


def expand_pads(module: ir.Module) -> None:
    """Replaces every tensor.pad by a linalg.generic; see `expand_pad`."""
    for op in _walk(module, "tensor.pad"):
        expand_pad(op)


def expand_row_writes(module: ir.Module) -> None:
    """Replaces every scatter of rows to places of their own by a parallel loop; see `expand_row_write`."""
    for op in _walk(module, SCATTER):
        if is_row_write(op):
            expand_row_write(op)


def separate_results(module: ir.Module) -> None:
    """Gives each result a buffer of its own, where one value is returned twice: upstream's conversion of results to
    arguments crashes there."""
    for op in _walk(module, "func.return"):
        for i, value in enumerate(op.operands):
            if isinstance(value.type, ir.RankedTensorType) and value in list(op.operands)[:i]:
                with op.location, ir.InsertionPoint(op):
                    op.operands[i] = bufferization.AllocTensorOp(value.type, [], copy=value).result


def _check_buffers(module: ir.Module) -> None:
    for view in module.body.operations:
        for op in walk(view.operation):
            if op.name.split(".")[0] in ("tensor", "tm_tensor", "bufferization", "mlirc"):
                raise MlircError(f"mlirc-loops: {op.name} at {op.location} has no generic lowering")


def _protect_arguments(function: ir.Operation) -> None:
    """Tells bufferization not to compute in the kernel's inputs."""
    count = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)
    if not count:
        return
    known = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else [{}] * count
    attrs = []
    for old in known:
        kept = {n.name: n.attr for n in ir.DictAttr(old)} if old else {}
        kept["bufferization.writable"] = ir.BoolAttr.get(False)
        attrs.append(ir.DictAttr.get(kept))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(attrs)


def to_parallel_loops(module: ir.Module) -> None:
    """Turns linalg ops on buffers into scf.parallel over their parallel dimensions, with reductions inside."""
    for op in _walk(module, "memref.copy"):
        if not is_start(op):
            _copy_to_generic(op)
    run_passes(module, "func.func(linalg-generalize-named-ops)")
    for op in _walk(module, "linalg.generic"):
        _move_reductions_inside(op)
    run_passes(module, _PARALLEL)


def is_start(op: ir.Operation) -> bool:
    """Whether an op copies a whole argument of a kernel, which nothing else uses, to a result, before anything touches
    that: it stays a copy, which who calls the kernel leaves out where both may lie in one place."""
    if op.name != "memref.copy" or op.parent.name != "func.func":
        return False
    source, target = op.operands
    block = op.parent.regions[0].blocks[0]
    mine = [v for v in (source, target) if isinstance(v.owner, ir.Block) and v.owner == block]
    used = [len(list(v.uses)) for v in mine]
    if len(mine) != 2 or source == target or source.type != target.type or used[0] != 1 or used[1] == 1:
        return False
    for other in block.operations:
        if other.operation == op:
            return True
        if any(target in inner.operands for inner in walk(other.operation)):
            return False
    return False


def _copy_to_generic(op: ir.Operation) -> None:
    with op.location, ir.InsertionPoint(op):
        linalg.copy(op.operands[0], outs=[op.operands[1]])
    op.erase()


def _move_reductions_inside(op: ir.Operation) -> None:
    """Permutes a generic's loops: parallel dimensions first, each group in its old order."""
    iterators = list(ir.ArrayAttr(op.attributes["iterator_types"]))
    inner = ["parallel" not in str(i) for i in iterators]
    order = [d for d, i in enumerate(inner) if not i] + [d for d, i in enumerate(inner) if i]
    if order == sorted(order):
        return
    place = {d: i for i, d in enumerate(order)}
    rank = len(order)
    replacements = [ir.AffineDimExpr.get(place[d]) for d in range(rank)]
    permutation = ir.AffineMap.get(rank, 0, replacements)
    maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    composed = [ir.AffineMap.get(rank, 0, [ir.AffineExpr.compose(e, permutation) for e in m.results]) for m in maps]
    op.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in composed])
    op.attributes["iterator_types"] = ir.ArrayAttr.get([iterators[d] for d in order])
    for view in op.regions[0].blocks[0].operations:
        if view.operation.name == "linalg.index":
            old = ir.IntegerAttr(view.operation.attributes["dim"])
            view.operation.attributes["dim"] = ir.IntegerAttr.get(old.type, place[old.value])
