"""Maps whose result a kernel that computes with it writes, too: the sum in front of a norm, which later layers add to.

Such a map would else have a kernel of its own, which writes what the next one reads at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir
from mlirc.passes.graph.demands import Demand, Kernel
from mlirc.passes.graph.epilogue import Uses
from mlirc.passes.graph.facts import (
    is_dequantization,
    is_gather_of_matrices,
    is_map,
    is_plain_copy,
    reads_many,
)
from mlirc.passes.graph.index import dim, linearize
from mlirc.passes.graph.windows import is_windows

KernelsOf = Mapping[ir.Operation, Collection[Kernel]]


def may_be_kept(op: ir.Operation) -> bool:
    """Whether an op is a map that a kernel may compute beside its own result."""
    if not is_map(op) or len(op.results) != 1 or is_plain_copy(op) or is_windows(op):
        return False
    return not (reads_many(op) or is_dequantization(op) or is_gather_of_matrices(op))


def keeper(op: ir.Operation, demand: Demand, uses: Uses, kernels_of: KernelsOf) -> Kernel | None:
    """The first kernel that reads a map's result, if it may write that, too.

    It reduces rows of it, or rows of what it was reduced from, and reads it element by element in the order of its own
    result. Nobody else reads it before
    the kernel's root: so nothing that reads the result elsewhere is read by the kernel.
    """
    kernels = sorted(demand.indices, key=lambda k: uses.order[k.root])
    if not kernels or not _reads_alike(op, kernels[0], demand):
        return None
    first = kernels[0]
    end = uses.order[first.root]
    for user in uses.of(op.results[0]):
        roots = [k.root for k in kernels_of.get(user, ()) if k is not first]
        if not roots and user not in kernels_of:
            roots = [user]
        if any(uses.order[r] <= end for r in roots):
            return None
    return first


def _reads_alike(op: ir.Operation, kernel: Kernel, demand: Demand) -> bool:
    reads = demand.indices[kernel]
    if kernel.opaque or kernel.contractions or kernel.rows is None or kernel in demand.plain:
        return False
    if len(reads) != 1 or None in reads or not kernel.reduction_sizes:
        return False
    if kernel.row_count == 1:  # a GEMV computes the norm of one row itself
        return False
    shape, root = shape_of(op.results[0]), shape_of(kernel.root.results[0])
    if prod(shape) != prod(root) or prod(shape) not in (kernel.size, kernel.row_count):
        return False
    (read,) = reads
    return linearize(read, shape) == linearize([dim(i, n) for i, n in enumerate(root)], root)  # type: ignore[arg-type]
