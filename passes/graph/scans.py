"""Which kernels compute a scan with their own ops, and which elements it reads there."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from mlirc.ir.scans import Scan, neutral_of
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir
from mlirc.passes.graph import classify
from mlirc.passes.graph.demands import Kernel
from mlirc.passes.graph.evaluate import Evaluator, Indices, loop_indices, map_results
from mlirc.passes.graph.facts import dims_in, kind
from mlirc.passes.graph.index import Index, dim, mirrored
from mlirc.passes.graph.scalar import Scalars

Reads = Collection[Indices | None]


def may_scan(op: ir.Operation, kernel: Kernel, reads: Reads) -> bool:
    """Whether a kernel, which reads a scan's results at `reads`, is of maps that read its elements in the kernel's
    loops, and of at most one reduction, along another dimension than the scan."""
    if kernel.scan or kernel.contractions or kind(kernel.root) not in ("map", "move", "reduction"):
        return False
    if sum(map(classify.is_reduction_generic, kernel.members)) > 1:
        return False
    found = _known(op, kernel, reads)
    if len(found) != 1:
        return False
    read, along = list(next(iter(found))), Scan.of(op).dim
    if kernel.rows is not None and not dims_in(read[along : along + 1]) <= kernel.rows:
        return False
    backwards = mirrored(read[along])
    if backwards is not None and neutral_of(op) is not None:
        read[along] = backwards  # from the last element to the first
    terms = [i for i in read if i != Index()]
    return len(terms) == len(kernel.dims) and set(terms) == set(kernel.dims)


def reads_of_scan(op: ir.Operation, kernel: Kernel, reads: Reads) -> Iterator[tuple[ir.Value, Indices]]:
    """The tensors that a scan reads in a kernel of `may_scan`, and where."""
    scan, maps = Scan.of(op), classify.maps(op)
    loops = loop_indices(op, 0, next(iter(_known(op, kernel, reads))))
    operands = list(zip(op.operands, maps, strict=True))
    for value, affine_map in [*operands[: scan.inputs], *operands[-scan.count :]]:
        yield value, tuple(f(loops) for f in map_results(affine_map))


def _known(op: ir.Operation, kernel: Kernel, reads: Reads) -> set[Indices]:
    """At which indices a kernel reads a scan's results: those of flips, which a map's body computes, are known, too."""
    known = {r for r in reads if r is not None}
    if len(known) == len(reads) == 1 or op is kernel.root:
        return known
    if len(kernel.root.results) != 1 or kernel.rows is not None:
        return set()
    value = kernel.root.results[0]
    evaluator = Evaluator(Scalars(), kernel.members.__contains__)
    node = evaluator.element(value, [dim(i, n) for i, n in enumerate(shape_of(value))])
    return {n.data[1] for n in node.walk() if n.kind in ("load", "scanned") and n.data[0] in list(op.results)}
