"""Applies the decompositions to a graph, each distinct call once.

`ExportedProgram.run_decompositions` traces the whole model again. Here a call (an op with the shapes, dtypes and
strides of its arguments) is traced once and its ops are copied wherever it occurs, so that the time does not grow with
the number of layers.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from mlirc.errors import MlircError
from mlirc.frontend.any_size import of_any_size, resized
from mlirc.frontend.decompositions import TRACED_ONCE, decomposition_table, is_kept
from mlirc.frontend.decompositions_batch_norm import updates_statistics
from mlirc.frontend.decompositions_pooling import has_small_windows
from mlirc.frontend.diagnose import first_line
from mlirc.frontend.fx_import import module_path

PART_OF = "mlirc_part_of"  # key of a node's metadata: the operation that was taken apart into it and others
_VALUE = "mlirc_value"  # key of a node's metadata: the tensor that it is
_LEAVES = ("placeholder", "output", "get_attr")
_KEPT_META = ("nn_module_stack", "stack_trace", "source_fn_stack")


def decomposed(graph: Graph) -> tuple[Graph, dict[str, torch.Tensor]]:
    """A copy of a graph of pure operations, with the decompositions applied, and the tensors that these hold, by the
    names of the placeholders that the copy has for them after its own."""
    decomposer = _Decomposer()
    return decomposer.run(graph), decomposer.constants


def is_plain(graph: Graph, leaves: tuple[str, ...] = ("placeholder", "output")) -> bool:
    """Whether all operations of a graph are pure ones of PyTorch; `leaves` may be anything."""
    for node in graph.nodes:
        if node.op not in leaves and node.target is not operator.getitem:
            target = node.target
            if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
                return False
            if updates_statistics(target, node.args):
                return False
    return True


_traced: dict[Any, Graph | None] = {}  # of the ops of `TRACED_ONCE`, whatever graph they were in


def _of_values(traced: Graph | None, values: list[torch.Tensor]) -> Graph | None:
    """A copy of a call's graph for these tensors, which are like those that it was traced of."""
    if traced is None:
        return None
    mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
    given, new = iter(values), Graph()
    copies: dict[Node, Node] = {}

    def of_mode(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return FakeTensor(mode, like, value.device)

    for node in traced.nodes:
        copies[node] = copy = new.node_copy(node, copies.__getitem__)
        value = next(given) if node.op == "placeholder" else node.meta.get("val")
        if value is not None:
            copy.meta["val"] = value if node.op == "placeholder" else torch.utils._pytree.tree_map(of_mode, value)
    return new


class _Decomposer:
    """Copies a graph, with decomposed calls in place of the calls that the table or PyTorch takes apart."""

    def __init__(self) -> None:
        self._table = decomposition_table()
        self._traced: dict[Any, Graph | None] = {}
        self._of_any_size: dict[Any, Graph] = {}
        self._new = Graph()
        self.constants: dict[str, torch.Tensor] = {}  # that decompositions made: placeholders after the graph's own
        self._constants: dict[str, Node] = {}
        self._map: dict[Node, Any] = {}

    def run(self, graph: Graph) -> Graph:
        for node in graph.nodes:
            if node.op == "output":
                self._new.output(torch.fx.node.map_arg(node.args[0], self._map.__getitem__))
            elif node.target is operator.getitem and not isinstance(self._map[node.args[0]], Node):
                self._map[node] = self._map[node.args[0]][node.args[1]]
            else:
                traced = self._trace(node) if node.op == "call_function" else None
                if traced is None:
                    self._map[node] = self._new.node_copy(node, self._map.__getitem__)
                else:
                    self._map[node] = self._inline(node, traced)
        return self._new

    def _trace(self, node: Node) -> Graph | None:
        """The graph of the call's decomposition over its tensor arguments in order, or None if the op stays."""
        target: Any = node.target
        if target is operator.getitem or is_kept(target) or has_small_windows(node):
            return None
        if target not in self._table and not _is_composite(target) and not _reduces_scalar(node):
            return None
        values = [n.meta["val"] for n in _tensor_arguments(node)]
        if not all(isinstance(v, torch.Tensor) for v in values):
            return None
        places = {n: i for i, n in enumerate(_tensor_arguments(node))}
        pattern: Any = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: _Place(places[n]))  # type: ignore
        key = (target, repr(pattern), *((v.shape, v.dtype, v.stride()) for v in values))
        if key not in self._traced:
            try:
                self._traced[key] = self._retraced(node, pattern, values)
            except Exception as e:
                where = module_path(node)
                if isinstance(e, MlircError):
                    raise MlircError(f"in {f'module {where!r}' if where else 'the model'}: {e}") from e
                raise MlircError(
                    f"op {target.name()} in {f'module {where!r}' if where else 'the model'} cannot be decomposed: "
                    f"{first_line(str(e))}"
                ) from e
        return self._traced[key]

    def _retraced(self, node: Node, pattern: Any, values: list[torch.Tensor]) -> Graph | None:
        """As `_make`, by way of the trace of a call of other sizes where there is one that serves."""
        if node.target in TRACED_ONCE:
            call = (node.target, repr(pattern), *((v.shape, v.dtype, v.stride()) for v in values))
            if call not in _traced:
                _traced[call] = self._make(node.target, pattern, values, False)
            return _of_values(_traced[call], values)
        if not of_any_size(node):
            return self._make(node.target, pattern, values, _reduces_scalar(node))
        key = (node.target, repr(pattern), *((v.dim(), v.dtype) for v in values))
        known = self._of_any_size.get(key)
        graph = resized(known, values, node.meta["val"]) if known else None
        if graph is None:
            graph = self._make(node.target, pattern, values, False)
            if graph is not None:
                self._of_any_size[key] = graph
        return graph

    def _make(self, target: Any, pattern: Any, values: list[torch.Tensor], scalar: bool) -> Graph | None:
        function = self._table.get(target)

        def call(*tensors: torch.Tensor) -> Any:
            if scalar:
                out = apply(*(x.reshape(1) if x.dim() == 0 else x for x in tensors))
                return torch.utils._pytree.tree_map(lambda x: x.reshape([]), out)
            return apply(*tensors)

        def apply(*tensors: torch.Tensor) -> Any:
            args, kwargs = _fill(pattern, tensors)
            out = function(*args, **kwargs) if function is not None else NotImplemented
            return target(*args, **kwargs) if out is NotImplemented else out

        mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None)
        if mode is None:  # a constructor, such as arange
            return None
        with mode, torch.no_grad():
            traced = make_fx(call, decomposition_table=self._table, _allow_non_fake_inputs=True)(*values)
            for node in traced.graph.find_nodes(op="call_function", target=torch.ops.aten.detach_.default):
                node.replace_all_uses_with(node.args[0])  # torch.tensor leaves it behind
                traced.graph.erase_node(node)
            if not is_plain(traced.graph, _LEAVES):  # composite ops may be written with operations in place
                pure = dispatch_functionalize(call, FunctionalTensorMode())
                traced = make_fx(pure, decomposition_table=self._table, _allow_non_fake_inputs=True)(*values)
            graph = traced.graph
        _open_named_tuples(graph)
        graph.eliminate_dead_code()
        calls = [n for n in graph.nodes if n.op == "call_function"]
        for node in graph.nodes:
            if node.op == "get_attr":
                value = getattr(traced, node.target)
                if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
                    return None
                node.meta = {"val": node.meta.get("val", mode.from_tensor(value, static_shapes=True)), _VALUE: value}
        same = len(calls) == 1 and calls[0].target is target
        return None if same else graph

    def _inline(self, node: Node, traced: Graph) -> Any:
        meta = {k: node.meta[k] for k in _KEPT_META if k in node.meta}
        inner: dict[Node, Any] = dict(
            zip(
                (n for n in traced.nodes if n.op == "placeholder"),
                (self._map[n] for n in _tensor_arguments(node)),
                strict=True,
            )
        )
        for part in traced.nodes:
            if part.op == "output":
                return torch.fx.node.map_arg(part.args[0], inner.__getitem__)
            if part.op == "get_attr":
                inner[part] = self._constant(part)
            elif part.op == "call_function":
                new = self._new.node_copy(part, inner.__getitem__)
                new.meta = {"val": part.meta.get("val"), PART_OF: node.target, **meta}
                inner[part] = new
        raise AssertionError("a traced graph has an output")

    def _constant(self, part: Node) -> Node:
        """A placeholder for a tensor that a decomposition holds; the same for every copy of its call."""
        value = part.meta[_VALUE]
        name = next((name for name, known in self.constants.items() if known is value), None)
        if name is None:
            first = next((n for n in self._new.nodes if n.op != "placeholder"), self._new._root)
            with self._new.inserting_before(first):
                new = self._new.placeholder(f"decomposed_constant_{len(self.constants)}")
            new.meta = {"val": part.meta["val"]}
            self._constants[new.name] = new
            self.constants[new.name] = value
            name = new.name
        return self._constants[name]


def _open_named_tuples(graph: Graph) -> None:
    """PyTorch's decompositions return named tuples by a call of their class."""
    for node in graph.nodes:
        if not (isinstance(node.target, type) and issubclass(node.target, tuple)):
            continue
        for user in list(node.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(node.args[user.args[1]])  # type: ignore[index, arg-type]
            elif user.op == "output" and user.args[0] is node:
                user.args = (node.args,)


def _has_dim(target: Any) -> bool:
    if target is torch.ops.aten.permute.default:  # of no dimension: names none
        return False
    return any(a.name in ("dim", "dims") for a in target._schema.arguments)


def _reduces_scalar(node: Node) -> bool:
    """Whether a call names the dimension of a tensor that has none, which torch-mlir takes badly."""
    values = [n.meta.get("val") for n in _tensor_arguments(node)][:1]
    results = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return bool(values and results) and _has_dim(node.target) and all(map(_is_rank0, values + results))


def _is_rank0(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor argument in a call's key."""

    index: int


def _fill(pattern: Any, tensors: tuple[torch.Tensor, ...]) -> Any:
    """The arguments of a call: lists are new ones, which PyTorch's own decompositions may change."""
    if isinstance(pattern, _Place):
        return tensors[pattern.index]
    if isinstance(pattern, (tuple, list)):
        return (tuple if isinstance(pattern, tuple) else list)(_fill(p, tensors) for p in pattern)
    return {k: _fill(v, tensors) for k, v in pattern.items()} if isinstance(pattern, dict) else pattern


def _tensor_arguments(node: Node) -> list[Node]:
    return list(node.all_input_nodes)


def _is_composite(target: Any) -> bool:
    key = "CompositeImplicitAutograd"
    return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), key)
