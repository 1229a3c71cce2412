"""The slices that are put into rings, where the puts stand."""

from __future__ import annotations

from collections.abc import Collection

from mlirc.mlir import ir


def moved(value: ir.Value, known: dict[ir.Value, ir.Value], nests: Collection[ir.Operation]) -> ir.Value:
    """A value as it is at the insertion point: `known` has what takes the place of others, to which what is built here
    is added; copied is what stands directly in one of `nests`."""
    owner = value.owner
    if value in known or isinstance(owner, ir.Block) or owner.operation.parent not in nests:
        return known.get(value, value)
    operands = [moved(v, known, nests) for v in owner.operands]
    clone = owner.operation.clone()
    for i, v in enumerate(operands):
        clone.operands[i] = v
    known.update(zip(owner.results, clone.results, strict=True))
    return known[value]


def forget_demands(window: ir.Operation) -> None:
    """Takes off a slice what the schedule said of its copies: the ring says it now."""
    for name in ("mlirc.swizzle", "mlirc.copy"):
        if name in window.attributes:
            del window.attributes[name]
