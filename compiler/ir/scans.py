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

With `mlirc.scan = "reverse"` it walks from the last index to the first (on the CPU: flips around a scan), and its
body is one operation with a neutral element. With `mlirc.scan = "linear"` it is the recurrence h = a h + b of two
inputs, a and b, with one result and one carry, and is evaluated in its order: pairs (a, b) would combine, but their
products overflow where no step does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirc.ir.combiners import neutral
from mlirc.mlir import ir

SCAN = "mlirc.scan"


def is_scan(op: ir.Operation) -> bool:
    """Whether an op is a scan."""
    op = op.operation
    return op.name == "linalg.generic" and SCAN in op.attributes


@dataclass(frozen=True)
class Scan:
    """What a scan says: `dim`, the dimension of its loops along which it walks, how many `inputs` it has, and how many
    results, which is how many carries (`count`)."""

    dim: int
    inputs: int
    count: int
    reverse: bool = False

    @property
    def linear(self) -> bool:
        """Whether it is a linear recurrence."""
        return self.inputs > self.count

    @classmethod
    def of(cls, op: ir.Operation) -> Scan:
        """Reads and checks a scan; raises ValueError naming the broken rule."""
        op = op.operation
        iterators = ["reduction" in str(a) for a in ir.ArrayAttr(op.attributes["iterator_types"])]
        if sum(iterators) != 1:
            raise ValueError("a scan walks along one dimension")
        inputs, outputs = list(op.attributes["operandSegmentSizes"])
        kind = op.attributes[SCAN].value if isinstance(op.attributes[SCAN], ir.StringAttr) else ""
        count = 1 if kind == "linear" else inputs
        if outputs != 2 * count or count < inputs != 2:
            raise ValueError(
                f"a scan of {inputs} tensors has as many results and as many carries, not {outputs} in all"
            )
        block = op.regions[0].blocks[0]
        arguments = list(block.arguments)
        results, carries = arguments[inputs : inputs + count], arguments[inputs + count :]
        types = [a.type for a in arguments[:inputs]]
        if any([a.type for a in found] != types[inputs - count :] for found in (results, carries)):
            raise ValueError("a scan's results and carries have the types of what it scans")
        if any(list(a.uses) for a in results):
            raise ValueError("a scan reads its carries, not its results")
        yielded = list(list(block.operations)[-1].operation.operands)
        if yielded[:count] != yielded[count:]:
            raise ValueError("a scan's results are its carries")
        if kind == "reverse" and neutral_of(op) is None:
            raise ValueError("a scan from the last element to the first is of one operation with a neutral element")
        return cls(iterators.index(True), inputs, count, kind == "reverse")


def neutral_of(op: ir.Operation) -> ir.Attribute | None:
    """The neutral element of a scan of one tensor by one operation; None for another one."""
    operations = [o.operation for o in op.operation.regions[0].blocks[0].operations]
    if len(operations) != 2 or list(op.operation.attributes["operandSegmentSizes"])[0] != 1:
        return None
    return neutral(operations[0].name, operations[0].results[0].type)


def combine(
    op: ir.Operation, left: Sequence[ir.Value], right: Sequence[ir.Value], outer: Callable[[ir.Value], ir.Value]
) -> list[ir.Value]:
    """Builds what a scan makes of its carries, `left`, and of an element of each input, at the insertion point; `outer`
    gives what its body captures."""
    block = op.operation.regions[0].blocks[0]
    n = len(left)
    arguments = list(block.arguments)
    values = dict(zip(arguments[: len(right)], right, strict=True)) | dict(zip(arguments[-n:], left, strict=True))
    for view in list(block.operations)[:-1]:
        inner = view.operation
        attributes = {name: inner.attributes[name] for name in inner.attributes}
        operands = [values[v] if v in values else outer(v) for v in inner.operands]
        made = ir.Operation.create(inner.name, [r.type for r in inner.results], operands, attributes)
        values |= dict(zip(inner.results, made.results, strict=True))
    return [values[v] for v in list(list(block.operations)[-1].operation.operands)[:n]]
