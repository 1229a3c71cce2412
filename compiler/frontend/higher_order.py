"""PyTorch's own loops in an exported graph, `scan` and `while_loop`, as `mlirc::scan`.

A `while_loop` must run a number of times that follows from constants: what its condition reads is followed from step to
step before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlirc.errors import MlircError
from mlirc.frontend import flex_attention
from mlirc.frontend.evaluate import place
from mlirc.frontend.fx_import import module_path
from mlirc.frontend.scan import number_of

_MOST = 1 << 16  # steps that are followed
_INSTEAD = {  # of an op, at a place: why it is refused, and what to write instead
    "cond": "torch.cond{} takes a branch by the values of a tensor: compute both and select between them with "
    "torch.where",
}
_LOOPS = (torch.ops.higher_order.scan, torch.ops.higher_order.while_loop)
_LOWERED = (*_LOOPS, flex_attention.FLEX)


def lower_loops(program: Any) -> Graph | None:
    """A copy of the program's graph without loops of PyTorch's, None where it has none. Raises MlircError for a loop
    whose number of steps depends on data."""
    if not any(n.target in _LOWERED for n in program.graph.nodes):
        return None
    graph = Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants
    constants = {name: program.constants[target] for name, target in lifted.items()}
    for node in list(graph.nodes):
        if node.target is _LOOPS[0]:
            _lower_scan(graph, node, program.graph_module)
        elif node.target is _LOOPS[1]:
            _lower_while(graph, node, program.graph_module, constants)
        elif node.target is flex_attention.FLEX:
            flex_attention.write_out(graph, node, program.graph_module)
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    return graph


def require_followed(name: str, graph: Graph) -> None:
    """Raises MlircError, with op and module, for a higher-order op that nothing here takes apart."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.HigherOrderOperator):
            continue
        where = f" in module '{path}'" if (path := module_path(node)) else ""
        if isinstance(node.args[0] if node.args else None, torch._ops.OpOverload):  # auto_functionalized
            op = node.args[0].name()  # type: ignore[union-attr]
            raise MlircError(
                f"{name}: op {op}{where} cannot be imported: it writes into its arguments by code of its own"
            )
        op = node.target.name()
        words = _INSTEAD.get(op, f"op {op}{{}} cannot be imported: write what it does in plain PyTorch")
        raise MlircError(f"{name}: {words.format(where)}")


def _module(node: Any, owner: GraphModule) -> GraphModule:
    return getattr(owner, node.target)


def _lower_scan(graph: Graph, node: Node, owner: GraphModule) -> None:
    arguments: Any = node.args
    combine, init, xs, closed = arguments
    module = _module(combine, owner)

    def step(carries: list, slices: list, shared: list) -> tuple[list, list]:
        out = module(*carries, *slices, *shared)
        return list(out[: len(carries)]), list(out[len(carries) :])

    _replace(graph, node, step, list(init), list(xs), list(closed), int(xs[0].meta["val"].shape[0]))


def _lower_while(graph: Graph, node: Node, owner: GraphModule, constants: Mapping[str, torch.Tensor]) -> None:
    parts: Any = node.args
    condition, body = _module(parts[0], owner), _module(parts[1], owner)
    carried, closed = list(parts[2]), list(parts[3])
    count = _count(condition.graph, body.graph, carried, constants)
    if count is None:
        where = module_path(node)
        raise MlircError(
            f"the while_loop in {f'module {where!r}' if where else 'the model'} runs as often as its data says, or "
            f"more than {_MOST} times: a compiled model has a fixed number of steps; loop to a constant, and keep what "
            "is done with torch.where"
        )

    def step(carries: list, slices: list, shared: list) -> tuple[list, list]:
        return list(body(*carries, *shared)), []

    _replace(graph, node, step, carried, [], closed, count)


def _replace(graph: Graph, node: Node, step: Callable, init: list, xs: list, closed: list, count: int) -> None:
    """Puts a loop of `count` steps, one step, or the initial values where there is none, in the place of a node whose
    users take single results."""
    if not all(isinstance(v, Node) for v in (*init, *xs, *closed)):
        raise MlircError("a loop of PyTorch's carries something else than tensors: make it a tensor")
    results: list[Any] = list(init)
    with graph.inserting_before(node):
        if count > 1:
            loop = graph.call_function(torch.ops.mlirc.scan.default, (init, xs, closed, count, False, number_of(step)))
            values = [v.contiguous() if isinstance(v, torch.Tensor) else v for v in node.meta["val"]]
            loop.meta = {"val": values, **place(node)}
            node.replace_all_uses_with(loop)
            graph.erase_node(node)
            return
        if count == 1:
            results = _one_step(graph, node, step, init, xs, closed)
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        graph.erase_node(user)
    graph.erase_node(node)


def _one_step(graph: Graph, node: Node, step: Callable, init: list, xs: list, closed: list) -> list[Any]:
    from torch.fx.experimental.proxy_tensor import make_fx

    def call(*tensors: torch.Tensor) -> list:
        carries, rest = list(tensors[: len(init)]), tensors[len(init) :]
        new, ys = step(carries, [x[0] for x in rest[: len(xs)]], list(rest[len(xs) :]))
        return [*(c.clone() for c in new), *(y.unsqueeze(0) for y in ys)]

    given = [*init, *xs, *closed]
    values = [n.meta["val"] for n in given]
    with values[0].fake_mode, torch.no_grad():
        traced = make_fx(call, _allow_non_fake_inputs=True)(*values).graph
    placeholders = [n for n in traced.nodes if n.op == "placeholder"]
    out = graph.graph_copy(traced, dict(zip(placeholders, given, strict=True)))
    return list(out)  # type: ignore[arg-type]


def _count(condition: Graph, body: Graph, carried: list, constants: Mapping[str, torch.Tensor]) -> int | None:
    """How often a loop runs; None where it depends on more than constants."""
    inputs = [[n for n in g.nodes if n.op == "placeholder"] for g in (condition, body)]
    outs: Any = [next(n for n in g.nodes if n.op == "output").args[0] for g in (condition, body)]
    decides = outs[0][0] if isinstance(outs[0], (tuple, list)) else outs[0]
    known: dict[int, Any] = {}
    places = [{n: i for i, n in enumerate(nodes)} for nodes in inputs]
    wanted = {places[0][n] for n in _reads(decides)}
    while wanted - set(known):
        number = (wanted - set(known)).pop()
        if number >= len(carried) or (start := _constant(carried[number], constants)) is None:
            return None
        known[number] = start
        wanted |= {places[1][n] for n in _reads(outs[1][number])}
    for count in range(_MOST + 1):
        if not bool(_value(decides, {inputs[0][i]: v for i, v in known.items()})):
            return count
        given = {inputs[1][i]: v for i, v in known.items()}
        known = {i: _value(outs[1][i], dict(given)) for i in known}
    return None


def _reads(node: Any) -> set[Node]:
    """The placeholders that a node is computed from."""
    found: set[Node] = set()
    pending = [node] if isinstance(node, Node) else []
    while pending:
        top = pending.pop()
        if top in found:
            continue
        found.add(top)
        pending += top.all_input_nodes
    return {n for n in found if n.op == "placeholder"}


def _constant(node: Any, constants: Mapping[str, torch.Tensor]) -> Any:
    """The value of a node of the main graph, None where it is not constant or not a single number."""
    if not isinstance(node, Node):
        return node
    reads = _reads(node)
    if any(n.name not in constants for n in reads) or node.meta["val"].numel() != 1:
        return None
    return _value(node, {n: constants[n.name].clone() for n in reads})


def _value(node: Any, known: dict[Node, Any]) -> Any:
    """The value of a node from those that are known, which grow."""
    if not isinstance(node, Node):
        return node
    if node not in known:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: _value(n, known))
        with torch.no_grad():
            known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return known[node]
