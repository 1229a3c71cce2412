"""Weights in another order, as a map that reads several of their elements wants them: rows of channels for each tap."""

from __future__ import annotations

from mlirc.ir.at_load import FIXED, argument_kinds, computed_of
from mlirc.ir.tensors import VIEWS, shape_of
from mlirc.mlir import ir
from mlirc.passes.graph.evaluate import is_move
from mlirc.passes.graph.facts import is_map


def permuted_weights(block: ir.Block) -> set[ir.Operation]:
    """The transposes of weights that only maps read: each is to be a kernel of its own, which runs once, when the model
    is loaded. A contraction reads weights in any order as they are."""
    ops = [op.operation for op in block.operations]
    at_load = computed_of(ops, {value for value, kind in argument_kinds(block.owner).items() if kind in FIXED})
    return {op for op in at_load if op.name == "linalg.transpose" and _is_permuted(op) and _feeds_maps(op, at_load)}


def _is_permuted(op: ir.Operation) -> bool:
    shape = shape_of(op.operands[0])
    order = [i for i in ir.DenseI64ArrayAttr(op.attributes["permutation"]) if shape[i] > 1]
    return order != sorted(order)


def _feeds_maps(op: ir.Operation, at_load: set[ir.Operation]) -> bool:
    """Whether all that reads an op's result, through views and moves, are maps that every run computes."""
    users = [use.owner.operation for use in op.results[0].uses]
    return all(
        _feeds_maps(user, at_load) if user.name in VIEWS or is_move(user) else user not in at_load and is_map(user)
        for user in users
    )
