"""Reads of single elements at indices that depend on data, as of the row of a log-softmax at its label.

Where an index of such a read is data, its place has an atom ("s", (value of the index, loops of its reader)), and is as
usual elsewhere. So a map that is read at one place of each row is computed there alone, in its reader's kernel: its
whole result is no tensor in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir
from mlirc.passes.graph.classify import body
from mlirc.passes.graph.demands import Kernel
from mlirc.passes.graph.evaluate import Indices, loop_indices, sources
from mlirc.passes.graph.facts import dims_in, owner_through_views
from mlirc.passes.graph.index import Index

FEWER = 16  # times fewer elements are read so than a map has: few enough to compute them where they are read


def reads(op: ir.Operation, indices: Indices, result: int = 0) -> list[tuple[ir.Value, Indices | None]]:
    """`sources`, with what is known of reads at indices that depend on data; None where that is nothing."""
    if op.name != "linalg.generic":
        return sources(op, indices, result)
    loops = loop_indices(op, result, indices)
    extracts = [inner for inner in body(op) if inner.name == "tensor.extract"]
    plain = sources(op, indices, result)
    return [*plain[: len(plain) - len(extracts)], *((inner.operands[0], _place(inner, loops)) for inner in extracts)]


def _place(extract: ir.Operation, loops: list[Index]) -> Indices | None:
    place = []
    for value in list(extract.operands)[1:]:
        owner = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if owner is not None and owner.name == "linalg.index":
            place.append(loops[ir.IntegerAttr(owner.attributes["dim"]).value])
        else:
            place.append(Index(0, {("s", (value, _loops(loops))): 1}))
    return tuple(place) if dims_in(place) else None


def _loops(indices: Iterable[Index]) -> frozenset[tuple[int, int]]:
    """(number, size) of the loops in some indices, those of the data among them included."""
    atoms = {atom for index in indices for atom in index.atoms()}
    plain = {(a[1], a[2]) for a in atoms if a[0] == "d"}
    return frozenset(plain.union(*(a[1][1] for a in atoms if a[0] == "s")))


def is_gathered(read: Indices) -> bool:
    """Whether a read is at indices that depend on data."""
    return any(atom[0] == "s" for index in read for atom in index.atoms())


def gathers_from(op: ir.Operation) -> list[ir.Operation]:
    """The ops that make what a map reads at indices that depend on data."""
    tensors = [inner.operands[0] for inner in body(op) if inner.name == "tensor.extract"]
    return [maker for maker in map(owner_through_views, tensors) if maker is not None]


def computes_there(
    op: ir.Operation,
    kernel: Kernel,
    places: Iterable[Indices],
    reductions: Callable[[ir.Operation], list[ir.Operation]],
) -> bool:
    """Whether a kernel computes a map at these places alone: they are few, and each in a row of its own of those that
    the `reductions` before the map reduce, if there are any."""
    if kernel.contractions:
        return False
    before = [prod(shape_of(r.results[0])) for r in reductions(op)]
    for place in places:
        rows = dims_in(place)
        count = prod(size for _, size in _loops(place))
        if FEWER * count > prod(shape_of(op.results[0])):
            return False
        if before and (any(n != count for n in before) or kernel.rows not in (None, rows)):
            return False
    return True
