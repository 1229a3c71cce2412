"""Reductions of what is stored with other dimensions between, or behind, those that they reduce: of images whose
channels are last.

The kernels that reduce with many threads take rows. Where one thread would have to add too many elements, what it
reduces is put in a row: a move, which joins the reduction's kernel. The row is in the order of memory, so that threads
that follow each other read what lies together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir, linalg, tensor
from mlirc.passes.graph.classify import is_reduction_generic, iterators
from mlirc.passes.graph.emit import make_generic, reshape
from mlirc.passes.graph.space import affine_map

MOST_ALONE = 64  # elements that a thread reduces alone: then neighbours read neighbours, of other rows


def by_rows(
    op: ir.Operation, stored: ir.Value, in_map: ir.AffineMap, out: ir.Value, out_map: ir.AffineMap
) -> ir.Operation | None:
    """A reduction of the stored input, of which `in_map` says the loops, as one of the last dimension, without a body.

    None where it is one, or short enough, or no reduction. Its loops are the parallel ones, in order, and the reduced
    one.
    """
    if not is_reduction_generic(op):
        return None
    kinds = iterators(op)
    loops = [e.position for e in in_map.results]
    shape = shape_of(stored)
    reduced = [i for i, loop in enumerate(loops) if kinds[loop] == "reduction"]
    length = prod(shape[i] for i in reduced)
    wide = [i for i, n in enumerate(shape) if n != 1]
    last = wide[-1:] == reduced[-1:] and wide[-len(reduced) :] == [i for i in reduced if i in wide]
    if length <= MOST_ALONE or last:
        return None
    rows = [i for i in range(len(loops)) if i not in reduced]
    moved = _transposed(stored, [*rows, *reduced])
    moved = reshape(moved, [*(shape[i] for i in rows), length])
    parallel = [loop for loop, kind in enumerate(kinds) if kind == "parallel"]
    number = {loop: i for i, loop in enumerate(parallel)}
    count = len(parallel) + 1
    results = [number[e.position] if isinstance(e, ir.AffineDimExpr) else None for e in out_map.results]
    maps = [affine_map(range(count), [*(number[loops[i]] for i in rows), count - 1]), affine_map(range(count), results)]
    return make_generic([moved], [out], maps, ["parallel"] * len(parallel) + ["reduction"])


def _transposed(value: ir.Value, order: Sequence[int]) -> ir.Value:
    type_ = ir.RankedTensorType(value.type)
    out = tensor.empty([type_.shape[i] for i in order], type_.element_type)
    return linalg.transpose(value, outs=[out], permutation=list(order)).operation.results[0]
