"""`mlirc-branch-loads`: of several elements in memory of which a thread takes one, it loads that one alone.

The results of a transposed convolution's phases, and of concatenations, are read by selections among elements of all of
them: `select(c, load a, select(d, load b, load c))`. From `least` loads on such a tree becomes branches, in which the
loads stand. Its conditions are mostly those of rows, and the same for all threads of a warp.

    least   loads of a tree (default: 4)
"""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import find, ir, scf
from mlirc.passes import register

LEAST = 4
_LOADS = ("memref.load", "vector.load")
_QUIET = ("arith", "math", "affine", "vector", "gpu.thread_id", "gpu.block_id", "memref.load", "vector.load")


def _owner(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _is_load(op: ir.Operation) -> bool:
    """Whether an op loads from memory that is a kernel's argument."""
    return op.name in _LOADS and isinstance(op.operands[0].owner, ir.Block)


def _loads(op: ir.Operation | None, block: ir.Block, found: list[ir.Operation], top: bool = False) -> bool:
    """Collects a tree's ops that stand in a block; False where it has a leaf that is no constant, nor a load of its
    own."""
    if op is not None and op.name == "arith.constant":
        return True
    if op is None or op.block != block or not top and len(list(op.results[0].uses)) != 1:
        return False
    found.append(op)
    if _is_load(op):
        return True
    if op.name != "arith.select" or isinstance(op.operands[0].type, ir.VectorType):
        return False
    return all(_loads(_owner(v), block, found) for v in list(op.operands)[1:])


def _writes_between(firsts: set[ir.Operation], last: ir.Operation) -> bool:
    """Whether an op of a block, from the first one of several to another, may do more than compute and load."""
    started = False
    for op in (view.operation for view in last.block.operations):
        if op == last:
            break
        started = started or op in firsts
        if started and not (op.name in _QUIET or op.name.split(".")[0] in _QUIET):
            return True
    return False


def _built(op: ir.Operation) -> ir.Value:
    if op.name == "arith.constant":
        return op.results[0]
    if op.name != "arith.select":
        return op.clone().results[0]
    condition, *values = op.operands
    branch = scf.IfOp(condition, [op.results[0].type], has_else=True)
    for block, value in zip((branch.then_block, branch.else_block), values, strict=True):
        with ir.InsertionPoint(block):
            scf.YieldOp([_built(_owner(value))])  # type: ignore[arg-type]
    return branch.results[0]


def branch_loads(top: ir.Operation, least: int = LEAST) -> None:
    """Rewrites the selections among loads nested in an operation, in place."""
    trees: list[list[ir.Operation]] = []
    inside: set[ir.Operation] = set()
    for op in reversed(find(top, "arith.select")):  # a tree's top comes first
        tree: list[ir.Operation] = []
        if op not in inside and _loads(op, op.block, tree, top=True) and sum(map(_is_load, tree)) >= least:
            inside.update(tree)
            trees.append(tree)
    for tree in trees:
        op = tree[0]
        if _writes_between(set(tree), op):
            continue
        with op.location, ir.InsertionPoint(op):
            op.results[0].replace_all_uses_with(_built(op))
        for dead in tree:
            dead.erase()


@register("mlirc-branch-loads")
def run(module: ir.Module, least: str = str(LEAST)) -> None:
    """Makes branches of selections among loads; see the file's head."""
    if not least.isdigit():
        raise MlircError("mlirc-branch-loads: least: a number")
    with ir.Location.unknown(module.context):
        branch_loads(module.operation, int(least))
