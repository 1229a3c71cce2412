"""Ops without a rule of their own, taken apart by PyTorch with their symbolic sizes, and writes made pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from mlirc.errors import MlircError
from mlirc.frontend.state import written_state

_ROUNDS = 6


def with_rules(name: str, program: Any, rules: Mapping[Any, Any]) -> Any:
    """The program with every op that touches a symbolic size taken apart as far as there are rules for it, or PyTorch
    takes it apart; what is left without a rule is refused where it is met. Raises MlircError for a model that writes.
    """
    table: dict[Any, Any] = {}
    for _ in range(_ROUNDS):
        if written_state(program.graph_signature):
            raise MlircError(f"{name}: a model that writes to its buffers or inputs has fixed sizes: give numbers")
        wanted = {n.target for n in program.graph.nodes if _needs(n, rules)}
        mutable = any(_is_mutable(n) for n in program.graph.nodes)
        table = table or dict(torch.export.default_decompositions().items())
        known = {op: table.get(op) or _own(op) for op in wanted if op in table or op._can_decompose()}
        if not known and not mutable:
            return program
        with torch.no_grad():
            program = program.run_decompositions(known)
    return program


def _own(op: Any) -> Any:
    """How PyTorch takes an op apart: not by `op.decompose`, which would ask for this again while it is overridden."""
    return lambda *args, **kwargs: op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _needs(node: Node, rules: Mapping[Any, Any]) -> bool:
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target in rules:
        return False
    if torch.Tag.pointwise in target.tags or not _is_symbolic(node) or "_assert" in str(target):
        return False
    return target.namespace == "aten"


def _is_mutable(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _is_symbolic(node: Node) -> bool:
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    for value in torch.utils._pytree.tree_leaves(values):
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        if any(isinstance(s, (torch.SymInt, torch.SymFloat)) and not s.node.expr.is_number for s in sizes):
            return isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))
    return False
