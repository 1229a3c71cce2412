"""Which results of kernels a launch plan has written over something that nobody reads any more.

- A kernel that begins with a copy of an argument to a result (a scatter into a cache) may have both in one place, where
  the argument is used by nobody from then on: the copy is left out.
- The new value of a state, or of an input that the model changes, may be made where the old one lies, where that is
  used by nobody from then on.

All is told by `@main`: values, the views of them, and at which operation each is used last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlirc.backend.kernel import CompiledKernel, Copy
from mlirc.ir.levels import WRITES
from mlirc.mlir import ir

_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast", "tensor.extract_slice")
Made = tuple[ir.Operation, int]  # a call, and which of its results


def starts(kernel: CompiledKernel, inputs: int) -> dict[int, int]:
    """For each result that a kernel begins as a copy of an argument, and of nothing else, that argument, which it does
    not use otherwise: both by their numbers, `inputs` being how many arguments come before the results."""
    found: dict[int, int] = {}
    touched: set[int] = set()
    uses = [x for launch in kernel.launches for x in _buffers(launch)]
    for launch in kernel.launches:
        if isinstance(launch, Copy) and launch.source < inputs <= launch.target and launch.target not in touched:
            if not launch.source_offset and not launch.target_offset and uses.count(launch.source) == 1:
                found[launch.target - inputs] = launch.source
        touched.update(_buffers(launch))
    return found


def _buffers(launch) -> list[int]:
    return [launch.source, launch.target] if isinstance(launch, Copy) else [buffer for buffer, _ in launch.places]


def root(value: ir.Value) -> tuple[ir.Value, bool]:
    """The value that a value is a view of, and whether it is all of it."""
    whole = True
    while not isinstance(value.owner, ir.Block) and value.owner.name in _VIEWS:
        whole = whole and value.owner.name != "tensor.extract_slice"
        value = value.owner.operands[0]
    return value, whole


@dataclass
class InPlace:
    """`result_of[call, i]`: the block argument of `@main` where result i of a call belongs; `over[call, i]`: the number
    of the operand that lies where the result may lie, since it is used there last."""

    result_of: dict[Made, ir.Value] = field(default_factory=dict)
    over: dict[Made, int] = field(default_factory=dict)


class _Uses:
    """Who uses what last: the numbers of operations. What is returned, or the new value of something, is used by the
    last one."""

    def __init__(self, operations: list[ir.Operation]):
        self.number = {op: i for i, op in enumerate(operations)}
        self.last = {root(v)[0]: i for i, op in enumerate(operations) if op.name not in _VIEWS for v in op.operands}

    def once(self, op: ir.Operation, value: ir.Value) -> bool:
        """Whether an operation uses a value, or views of it, one time, and nobody does after it."""
        return self.last.get(value) == self.number[op] and sum(root(v)[0] == value for v in op.operands) == 1


def plan_in_place(
    block: ir.Block, results: list, compiled: Mapping[str, CompiledKernel], at_load: set[ir.Operation]
) -> InPlace:
    """What may be made in place in `@main`'s block; `results`: the attributes of its results. What runs `at_load` makes
    nothing that a later run may change."""
    operations = [o.operation for o in block.operations]
    writes = {j: ir.IntegerAttr(a[WRITES]).value for j, a in enumerate(results) if a is not None and WRITES in a}
    uses = _Uses(operations)
    begun: dict[Made, int] = {}
    for op in operations:
        name = _callee(op) if op.name == "func.call" else ""
        if name in compiled:
            for i, j in starts(compiled[name], len(op.operands)).items():
                value, whole = root(op.operands[j])
                if whole and uses.once(op, value):
                    begun[op, i] = j
    found = InPlace(over=begun)
    kernels = {op for op in operations if op.name == "func.call" and op not in at_load and _callee(op) in compiled}
    for j, number in writes.items():
        _place_write(operations[-1].operands[j], block.arguments[number], uses, kernels, found)
    return found


def _callee(op: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(op.attributes["callee"]).value


def _place_write(value: ir.Value, argument: ir.Value, uses: _Uses, kernels: set[ir.Operation], found: InPlace) -> None:
    """Follows an argument's new value back through the kernels that change it in place, and, where it may lie in the
    argument's place from the first of them on, says so."""
    chain: list[Made] = []
    value, whole = root(value)
    while whole and isinstance(value.owner, ir.Operation | ir.OpView):
        op = value.owner.operation
        made = op, list(op.results).index(value)
        if op not in kernels or made in found.result_of:
            break
        chain.append(made)
        if made not in found.over:
            break
        value, whole = root(op.operands[found.over[made]])
    if not chain:
        return
    first = chain[-1][0]
    follows = value == argument and chain[-1] in found.over
    if follows or uses.last.get(argument, -1) < uses.number[first]:
        for made in chain:
            found.result_of[made] = argument
