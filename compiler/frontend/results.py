"""What a model returns: its main outputs by name, and behind them the new values of what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export.graph_signature import OutputKind

from mlirc.errors import MlircError
from mlirc.frontend.boundary import record_keys, result_tree
from mlirc.frontend.source import is_byproduct
from mlirc.runtime.structure import Tree

# Parameters are no states: models that write them do so once, and know that by a flag of their own (RWKV's rescaling).
WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def select_outputs(program: Any, model: str, are_complex: Sequence[bool] = ()) -> tuple[list[str], Tree | None]:
    """The names of the main outputs, and the tree of the result, in which those that `are_complex` are marked (None
    where it cannot be said). Prunes the graph's outputs to those, in order, and behind them what the program
    writes. Raises MlircError for a model that returns neither tensors nor numbers."""
    every = spec_names(program.module_call_graph[0].signature.out_spec)
    tree = result_tree(program, every, are_complex)
    names = iter(every)
    found: list[tuple[str, Any]] = []
    written: list[Any] = []
    output = next(n for n in program.graph.nodes if n.op == "output")
    for node, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
        if spec.kind == OutputKind.USER_OUTPUT:
            name = next(names, None)
            if name and isinstance(node, torch.fx.Node):
                found.append((name, node))
        elif spec.kind in WRITTEN:
            written.append(node)
    if not found:
        raise MlircError(
            f"{model}: returns no tensor that inference asks for: a model returns tensors or numbers, or tuples, "
            "lists or dicts with them"
        )
    output.args = (tuple([node for _, node in found] + written),)
    return [name for name, _ in found], tree


def output_nodes(program: Any, names: list[str], written: list[str]) -> list[tuple[str, torch.fx.Node]]:
    """The graph's outputs, with the names of the main ones and of what is written."""
    output = next(n for n in program.graph.nodes if n.op == "output")
    return list(zip([*names, *written], output.args[0], strict=True))


def spec_names(spec: Any) -> list[str | None]:
    """One name per leaf of a pytree spec, as `named_outputs` would name the leaves; None for by-products."""
    found: list[str | None] = []

    def visit(spec: Any, name: str, top: bool, keep: bool) -> None:
        children = spec.children() if not spec.is_leaf() else []
        if spec.is_leaf():
            found.append((name or "output") if keep else None)
        elif spec.type in (tuple, list) or not isinstance(spec.context, (list, tuple)):
            for i, child in enumerate(children):
                visit(child, f"{name or 'output'}_{i}", False, keep)
        else:
            keys = record_keys(spec.context, len(children)) or range(len(children))
            for key, child in zip(keys, children, strict=True):
                wanted = keep and not (top and spec.type is not dict and is_byproduct(str(key)))
                visit(child, f"{name}_{key}" if name else str(key), False, wanted)

    visit(spec, "", True, True)
    return found
