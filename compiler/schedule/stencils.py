"""What a map reads of the neighbours of its elements: windows of a pooling or of a depthwise convolution."""

from __future__ import annotations

from mlirc.mlir import ir


def neighbors(root: ir.Operation) -> int:
    """How many elements a map reads at places that depend on its last loop but one, and lie along its last loop as its
    own elements do: what threads with several neighbours along the former share. 0 where others lie beside them."""
    rank = len(list(ir.ArrayAttr(root.operation.attributes["iterator_types"])))
    loops: dict[ir.Value, frozenset[int]] = {}
    count = 0
    for op in [o.operation for o in root.operation.regions[0].blocks[0].operations]:
        if op.name == "linalg.index":
            found = frozenset([ir.IntegerAttr(op.attributes["dim"]).value])
        else:
            found = frozenset().union(*(loops.get(v, frozenset()) for v in op.operands))
        if op.name == "tensor.extract":
            *others, last = list(op.operands)[1:] or [None]
            along = last is not None and last.owner.name == "linalg.index" and loops.get(last) == {rank - 1}
            if not along and last is not None and rank - 1 in loops.get(last, ()):
                return 0
            count += along and any(rank - 2 in loops.get(v, ()) for v in others)
        loops |= {result: found for result in op.results}
    return count
