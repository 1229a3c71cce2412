"""Which operations of `@main` run once, when a model is loaded: what it computes of weights and constants alone, as a
permuted and padded weight, or the scale of a norm by fixed statistics.

What they make stays in memory for as long as the model is loaded. So a call of which a run reads the results is left
to the run where it reads weights and makes more than MOST_GROWTH times as many bytes as it reads, and more than FREE
bytes: a weight that is unpacked, or repeated for each of a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

from mlirc.ir.tensors import ELEMENT_BYTES, shape_of
from mlirc.mlir import ir

FIXED = ("weight", "constant")  # the kinds of arguments of `@main` that are the same for every run
MOST_GROWTH = 2
FREE = 1 << 20  # bytes


def argument_kinds(function: ir.Operation) -> dict[ir.Value, str]:
    """The kind of each argument of `@main`, `input` where it says none; that is so of all arguments of other
    functions."""
    arguments = list(function.operation.regions[0].blocks[0].arguments)
    attributes = function.operation.attributes
    about = [ir.DictAttr(a) for a in attributes["arg_attrs"]] if "arg_attrs" in attributes else [{}] * len(arguments)
    kinds = [ir.StringAttr(a["mlirc.kind"]).value if "mlirc.kind" in a else "input" for a in about]
    return dict(zip(arguments, kinds, strict=True))


def split_at_load(
    operations: Sequence[ir.Operation], kinds: Mapping[ir.Value, str]
) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """(operations of `@main`'s block that run at load, all others), each in their order; `kinds`: those of `@main`'s
    arguments."""
    constants = [value for value, kind in kinds.items() if kind == "constant"]
    free = computed_of(operations, set(constants))
    fixed = {value for value, kind in kinds.items() if kind in FIXED}
    kept_out: set[ir.Operation] = set()
    while True:
        at_load = computed_of(operations, fixed, kept_out)
        later = [op for op in operations if op not in at_load]
        read = {_made_by(v) for op in later for v in op.operands}
        large = {op for op in at_load - free if op in read and _grows(op)}
        if not large:
            return [op for op in operations if op in at_load], later
        kept_out |= large


def computed_of(
    operations: Sequence[ir.Operation], fixed: Collection[ir.Value], kept_out: Container[ir.Operation] = ()
) -> set[ir.Operation]:
    """The operations, without `kept_out`, that read nothing but what is fixed, or made by others of them."""
    known, found = set(fixed), set()
    for op in operations:
        if op.name != "func.return" and op not in kept_out and all(v in known for v in op.operands):
            known.update(op.results)
            found.add(op)
    return found


def _made_by(value: ir.Value) -> ir.Operation | None:
    """The call that makes a value, through views; None for an argument."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if op.name == "func.call":
            return op
        value = op.operands[0]
    return None


def _grows(op: ir.Operation) -> bool:
    read, made = (sum(map(_bytes, values)) for values in (op.operands, op.results))
    return made > max(MOST_GROWTH * read, FREE)


def _bytes(value: ir.Value) -> int:
    size = ELEMENT_BYTES[str(value.type.element_type)]
    for extent in shape_of(value):
        size *= extent
    return size
