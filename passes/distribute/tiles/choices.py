"""Selections among elements of several tensors by conditions that differ between neighbours, as the results of a
transposed convolution's phases are put in their places: each element of a piece is selected by itself, so that
`mlirc-branch-loads` makes branches of that and nobody loads what is not selected."""

from __future__ import annotations

from typing import Protocol

from mlirc.mlir import ir
from mlirc.passes.branch_loads import LEAST
from mlirc.passes.distribute.emit.emitter import Emitter
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.values import elementwise_op


class Values(Protocol):
    """The values of a body over a layout (`elementwise.Body`)."""

    em: Emitter

    def at(self, value: ir.Value, p: int) -> ir.Value:
        """The value for piece p."""

    def wide(self, value: ir.Value) -> bool:
        """Whether it varies within a piece."""

    def scalars(self, value: ir.Value) -> ir.Value:
        """What a value from outside is."""


def differs(body: Values, value: ir.Value) -> bool:
    """Whether a value is selected among elements of tensors, of as many as branches pay for, by a condition that
    differs within a piece."""
    tree: list[ir.Operation] = []
    if not _is_gathered(value, tree) or sum(op.name == "tensor.extract" for op in tree) < LEAST:
        return False
    return any(body.wide(op.operands[0]) for op in tree if op.name == "arith.select")


def _is_gathered(value: ir.Value, tree: list[ir.Operation]) -> bool:
    """Collects the ops of a selection among elements of tensors, and constants; False where others are in it."""
    if isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    tree.append(op)
    if op.name == "arith.select":
        return all(_is_gathered(v, tree) for v in list(op.operands)[1:])
    return op.name in ("tensor.extract", "arith.constant")


def element(body: Values, value: ir.Value, p: int, k: int) -> ir.Value:
    """Element k of a piece of such a value."""

    def alone(of: ir.Value) -> ir.Value:
        found = body.at(of, p)
        return body.em.extract(found, k) if body.wide(of) else found

    if value.owner.name == "arith.constant":
        return body.at(value, p)
    first, *rest = value.owner.operands
    if value.owner.name == "arith.select":
        chosen = [element(body, v, p, k) for v in rest]
        return elementwise_op("arith.select", [value.type], [alone(first), *chosen], {})[0]
    view = access.View(body.scalars(first), [0] * len(rest), [])
    loaded = access.load_elements(body.em, view, [alone(v) for v in rest], 1)
    return access.join(body.em, [loaded], 1, value.type, 1)
