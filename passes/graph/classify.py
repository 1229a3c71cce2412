"""What an op of the `linalg` level is, seen from the kernels: a map, a reduction, a contraction, ..."""

from __future__ import annotations

from functools import cache

from mlirc.dialects.mlirc_dialect import ATTENTIONS
from mlirc.ir.combiners import COMBINERS
from mlirc.ir.contractions import multiply_accumulate
from mlirc.ir.scans import is_scan
from mlirc.mlir import ir

CONTRACTIONS = (
    "linalg.matmul",
    "linalg.batch_matmul",
    "linalg.matvec",
    "linalg.vecmat",
    "linalg.batch_matvec",
    "linalg.batch_vecmat",
    "linalg.dot",
    "linalg.contract",
)


def iterators(op: ir.Operation) -> list[str]:
    """The iterator types of a `linalg.generic`, as `parallel` or `reduction`."""
    return list(_iterators(op.operation.attributes["iterator_types"]))


def maps(op: ir.Operation) -> list[ir.AffineMap]:
    """The indexing maps of a `linalg.generic`, inputs first."""
    return list(_maps(op.operation.attributes["indexing_maps"]))


# By attribute, of which the context has one for equal ones: a graph's thousands of ops have some dozens.
@cache
def _iterators(types: ir.Attribute) -> tuple[str, ...]:
    return tuple(str(a).split("<")[1].rstrip(">") for a in types)


@cache
def _maps(indexing_maps: ir.Attribute) -> tuple[ir.AffineMap, ...]:
    return tuple(a.value for a in indexing_maps)


def body(op: ir.Operation) -> list[ir.Operation]:
    """The ops of the body of a `linalg.generic`, the yield last."""
    return [o.operation for o in op.operation.regions[0].blocks[0].operations]


def generic_inits(op: ir.Operation) -> int:
    """How many init operands a linalg op has."""
    return list(op.operation.attributes["operandSegmentSizes"])[1]


def is_map_generic(op: ir.Operation) -> bool:
    """Whether a `linalg.generic` computes each result element alone: all parallel, permuted results, init not read."""
    op = op.operation
    if op.name != "linalg.generic" or "reduction" in iterators(op):
        return False
    inits = generic_inits(op)
    arguments = list(op.regions[0].blocks[0].arguments)
    reads_init = any(list(a.uses) for a in arguments[len(arguments) - inits :])
    return not reads_init and all(m.is_permutation for m in maps(op)[-inits:])


def is_reduction_generic(op: ir.Operation) -> bool:
    """Whether a `linalg.generic` with one result folds one input into its init by a known associative operation."""
    op = op.operation
    if op.name != "linalg.generic" or "reduction" not in iterators(op) or len(op.results) != 1 or len(op.operands) != 2:
        return False
    ops = body(op)
    block = op.regions[0].blocks[0]
    return (
        len(ops) == 2
        and ops[0].name in COMBINERS
        and set(ops[0].operands) == set(block.arguments)
        and maps(op)[0].is_permutation
    )


def is_contraction(op: ir.Operation) -> bool:
    """Whether an op is a matmul of any kind: named, or a generic that adds the product of two inputs to its init."""
    op = op.operation
    if op.name in CONTRACTIONS:
        return True
    if op.name != "linalg.generic" or "reduction" not in iterators(op) or len(op.operands) != 3:
        return False
    return all(m.is_projected_permutation for m in maps(op)) and multiply_accumulate(op) is not None


def kind_of(op: ir.Operation) -> str:
    """The kind of the kernel that computes just this op: `elementwise`, `reduction`, `scan`, `matmul`, `attention`,
    `gather` (a map that reads a table at loaded indices) or `generic`."""
    op = op.operation
    if op.name in ATTENTIONS:
        return "attention"
    if is_scan(op):
        return "scan"
    if is_contraction(op):
        return "matmul"
    if is_map_generic(op):
        return "gather" if any(o.name == "tensor.extract" for o in body(op)) else "elementwise"
    return "reduction" if is_reduction_generic(op) else "generic"
