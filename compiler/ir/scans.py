"""Scans in the IR: a `linalg.generic` with the unit attribute `mlirc.scan`.

    %y, %last = linalg.generic {indexing_maps = [(i, j) -> (i, j), (i, j) -> (i, j), (i, j) -> (i)],
                                iterator_types = ["parallel", "reduction"]}
        ins(%x : tensor<4x9xf32>) outs(%empty, %init : tensor<4x9xf32>, tensor<4xf32>) attrs = {mlirc.scan} {
    ^bb0(%x: f32, %unused: f32, %carry: f32):
      %s = arith.addf %carry, %x : f32
      linalg.yield %s, %s : f32, f32
    }

One dimension is a reduction: the one along which it walks, from its first index to the last. So read, as loops, the op
means what it says: each step makes the carries anew, and leaves them in the results, which have all dimensions. Of n
inputs there are n results and n carries, of the same types in this order, and the body is an associative combination of
the carries, which come first, with the inputs: it may be evaluated in any grouping (Blelloch, 1990, "Prefix sums and
their applications").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirc.mlir import ir

SCAN = "mlirc.scan"


def is_scan(op: ir.Operation) -> bool:
    """Whether an op is a scan."""
    op = op.operation
    return op.name == "linalg.generic" and SCAN in op.attributes


@dataclass(frozen=True)
class Scan:
    """What a scan says: `dim`, the dimension of its loops along which it walks, and how many tensors it scans."""

    dim: int
    count: int

    @classmethod
    def of(cls, op: ir.Operation) -> Scan:
        """Reads and checks a scan; raises ValueError naming the broken rule."""
        op = op.operation
        iterators = ["reduction" in str(a) for a in ir.ArrayAttr(op.attributes["iterator_types"])]
        if sum(iterators) != 1:
            raise ValueError("a scan walks along one dimension")
        inputs, outputs = list(op.attributes["operandSegmentSizes"])
        if outputs != 2 * inputs:
            raise ValueError(
                f"a scan of {inputs} tensors has as many results and as many carries, not {outputs} in all"
            )
        scan = cls(iterators.index(True), inputs)
        block = op.regions[0].blocks[0]
        types = [a.type for a in block.arguments]
        if types[:inputs] != types[inputs : 2 * inputs] or types[:inputs] != types[2 * inputs :]:
            raise ValueError("a scan's results and carries have the types of what it scans")
        if any(list(a.uses) for a in list(block.arguments)[inputs : 2 * inputs]):
            raise ValueError("a scan reads its carries, not its results")
        yielded = list(list(block.operations)[-1].operation.operands)
        if yielded[:inputs] != yielded[inputs:]:
            raise ValueError("a scan's results are its carries")
        return scan


def combine(
    op: ir.Operation, left: Sequence[ir.Value], right: Sequence[ir.Value], outer: Callable[[ir.Value], ir.Value]
) -> list[ir.Value]:
    """Builds a scan's combination of carries with what follows them, at the insertion point; `outer` gives what its
    body captures."""
    block = op.operation.regions[0].blocks[0]
    n = len(right)
    arguments = list(block.arguments)
    values = dict(zip(arguments[:n], right, strict=True)) | dict(zip(arguments[2 * n :], left, strict=True))
    for view in list(block.operations)[:-1]:
        inner = view.operation
        attributes = {name: inner.attributes[name] for name in inner.attributes}
        operands = [values[v] if v in values else outer(v) for v in inner.operands]
        made = ir.Operation.create(inner.name, [r.type for r in inner.results], operands, attributes)
        values |= dict(zip(inner.results, made.results, strict=True))
    return [values[v] for v in list(list(block.operations)[-1].operation.operands)[:n]]
