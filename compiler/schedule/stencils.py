"""What a map reads of the neighbours of its elements: windows of a pooling or of a depthwise convolution."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.ir.tensors import shape_of
from mlirc.ir.window_sums import window_sum
from mlirc.mlir import ir


@dataclass(frozen=True)
class DepthwiseInfo:
    """A depthwise convolution of 16-bit floats with f32 sums, whose image is stored channels last: taps along rows and
    columns, how far windows are apart, rows and columns of padding in front, and rows and columns of the image."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    low: tuple[int, int]
    image: tuple[int, int]


def depthwise(root: ir.Operation) -> DepthwiseInfo | None:
    """The depthwise convolution that a map has within it; None where there is none."""
    operation = root.operation
    if operation.name != "linalg.generic" or len(operation.results) != 1:
        return None
    found = window_sum(operation)
    if found is None:
        return None
    rows, columns = shape_of(found.image)[-3:-1]
    return DepthwiseInfo(found.kernel, found.strides, found.low, (rows, columns))


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
