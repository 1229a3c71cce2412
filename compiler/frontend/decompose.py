"""Applies the decompositions to an exported program: `decomposer.py` has the way of plain graphs; programs that mutate
tensors or hold higher-order ops go through PyTorch's own way, which makes them functional first.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from mlirc.frontend.decomposer import decomposed, is_plain
from mlirc.frontend.decompositions import decomposition_table
from mlirc.frontend.decompositions_factors import FACTORS
from mlirc.frontend.decompositions_grid import GRIDS
from mlirc.frontend.decompositions_pooling import POOLING, fit_poolings
from mlirc.frontend.decompositions_resize import RESIZES
from mlirc.frontend.decompositions_segments import with_equal_bags
from mlirc.frontend.decompositions_window_gradients import WINDOW_GRADIENTS
from mlirc.frontend.graph_copy import copied
from mlirc.frontend.higher_order import lower_loops
from mlirc.frontend.in_place import without_idle_ops, without_writes
from mlirc.frontend.random.dropouts import dropouts_as_on_a_gpu
from mlirc.frontend.reroll import reroll
from mlirc.frontend.scalars import has_numbers, numbers_to_tensors
from mlirc.frontend.state import is_written
from mlirc.frontend.strides import TARGET as STRIDED
from mlirc.frontend.strides import resolve_strides, without_strides

_MAKE_TENSORS = {**POOLING, **RESIZES, **GRIDS, **FACTORS, **WINDOW_GRADIENTS}


@dataclass
class Program:
    """The parts of an ExportedProgram that an import needs; `graph` and `graph_signature` are copies."""

    graph: Graph
    graph_signature: Any
    state_dict: Mapping[str, torch.Tensor]
    constants: Mapping[str, Any]
    module_call_graph: Any


def decompose(program: Any) -> Program:
    """The decomposed program; the given one stays as it is."""
    made: dict[str, torch.Tensor] = {}
    given = lower_loops(program) or program.graph
    given = reroll(given) or given
    given = with_equal_bags(given) or given
    if not is_plain(given):
        given = without_idle_ops(given)
        pure = without_writes(given)
        given = pure if pure is not None and is_plain(pure) else given
    with dropouts_as_on_a_gpu():
        if not is_plain(given):
            # PyTorch's way loses tensors that decompositions make, as those of windows: they are taken apart below.
            table = {op: f for op, f in decomposition_table().items() if op is not STRIDED and op not in _MAKE_TENSORS}
            program = _with_graph(program, _any_strides(given))
            with _unknown_offsets(given):
                program = program.run_decompositions(table)
            given = program.graph
        given = without_strides(given) or given
        if has_numbers(given) or given.find_nodes(op="call_function", target=STRIDED):
            given = copied(given)
            numbers_to_tensors(given)
            made = resolve_strides(given)
        if is_plain(given):  # PyTorch's own way, too, leaves some composite ops whole
            graph, more = decomposed(given)
            made |= more
        else:
            graph = copied(given)
    fit_poolings(graph)
    signature = copy.copy(program.graph_signature)  # the import replaces its lists
    signature.input_specs = [*signature.input_specs, *map(_constant_spec, made)]
    constants = {**program.constants, **made}
    graph.owning_module = torch.nn.Module()  # type: ignore[assignment]
    return Program(graph, signature, program.state_dict, constants, program.module_call_graph)


def _unknown_offsets(graph: Graph) -> Any:
    """Inside, tensors may begin at places that nothing tells, as what a tensor's number selects of another does."""
    values = (n.meta.get("val") for n in graph.nodes)
    environment = next((v.fake_mode.shape_env for v in values if hasattr(v, "fake_mode")), None)
    return environment.ignore_fresh_unbacked_symbols() if environment is not None else contextlib.nullcontext()


def _any_strides(graph: Graph) -> Graph:
    """A copy with `reshape` for `view`: traced again, what a view looks at may have other strides than it had, as
    attention's result, whose decomposition keeps the rows of a head together. A view that is written through stays
    one, since a copy would take the writes."""
    new = copied(graph)
    for node in new.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        if not is_written(node):
            node.target = torch.ops.aten.reshape.default
    return new


def _with_graph(program: Any, graph: Graph) -> Any:
    """The program with another graph of the same arguments and results, whose nodes may have other names."""
    signature = copy.deepcopy(program.graph_signature)
    output = next(n for n in graph.nodes if n.op == "output")
    for spec, node in zip(signature.output_specs, output.args[0], strict=True):
        if isinstance(node, Node):
            spec.arg = dataclasses.replace(spec.arg, name=node.name)
    return program._update(GraphModule(program.graph_module, graph), signature)


def _constant_spec(name: str) -> InputSpec:
    return InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=name), target=name)
