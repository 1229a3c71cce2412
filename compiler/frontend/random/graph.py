"""Takes the random ops of an exported graph apart into draws from the model's generator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from mlirc.errors import MlircError
from mlirc.frontend.diagnose import first_line
from mlirc.frontend.evaluate import place
from mlirc.frontend.fx_import import module_path
from mlirc.frontend.random.distributions import DISTRIBUTIONS, Generator
from mlirc.frontend.random.export import GENERATOR

aten = torch.ops.aten
STATE = "mlirc.random"  # the name of the argument with the generator's state

_REFUSED = {
    aten.poisson.default: "poisson",
    aten.binomial.default: "binomial",
    aten._standard_gamma.default: "gamma",
    aten._sample_dirichlet.default: "dirichlet",
}


@dataclass(frozen=True)
class Draws:
    """The placeholder of the state, int64 [1 + number of draws, 2], and for each draw the words by which its offset is
    ahead of the call's; the last number is what the whole call uses. Column 0 of the state holds the seed and then the
    draws' offsets; column 1 is there because kernels want rows of 16 bytes."""

    node: Node
    offsets: tuple[int, ...]


def is_random(target: Any) -> bool:
    """Whether an op draws random numbers."""
    return target in DISTRIBUTIONS or target in _REFUSED


def draw_numbers(graph: Graph, table: dict[Any, Callable], model: str) -> Draws | None:
    """Replaces the graph's random ops, in their order; None where there are none. `table`: the decompositions for the
    arithmetic around the draws. Raises MlircError for ops that cannot be replaced."""
    nodes = [n for n in graph.nodes if n.op == "call_function" and is_random(n.target)]
    if not nodes:
        return None
    for node in nodes:
        _require_possible(node, model)
    first = nodes[0].meta["val"]
    builder = _Builder(graph, table, first[0] if isinstance(first, tuple) else first)
    for node in nodes:
        try:
            builder.replace(node)
        except MlircError as e:
            raise MlircError(f"{model}: {e} ({_where(node, model)})") from e
        except Exception as e:
            raise MlircError(f"{model}: op {node.target} ({_where(node, model)}): {first_line(str(e))}") from e
    return builder.finish()


def _where(node: Node, model: str) -> str:
    return f"in module '{module_path(node) or model}'"


def _require_possible(node: Node, model: str) -> None:
    if node.target in _REFUSED:
        raise MlircError(
            f"{model}: random numbers of the {_REFUSED[node.target]} distribution {_where(node, model)} cannot be "
            "drawn: it takes a number of tries that depends on the numbers; make them an input"
        )
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    if (dict(zip(names, node.args, strict=False)) | node.kwargs).get("generator") is not None:
        raise MlircError(f"{model}: {node.target} {_where(node, model)} takes a torch.Generator: {GENERATOR}")


class _Builder:
    def __init__(self, graph: Graph, table: dict[Any, Callable], like: Any):
        """`like`: a fake tensor of the graph: all that is made here is on its device."""
        self._graph, self._table, self._mode, self._device = graph, table, like.fake_mode, torch.device(like.device)
        last = [n for n in graph.nodes if n.op == "placeholder"][-1:]
        with graph.inserting_after(last[0]) if last else graph.inserting_before(next(iter(graph.nodes))):
            self._state = graph.placeholder("mlirc_random")
        self._offsets: list[int] = []
        self._rows: list[Node] = []
        self._position = 0
        with self._mode, self._device:
            self._scalar = torch.empty((), dtype=torch.int64)
        with graph.inserting_after(self._state):
            self._flat = graph.call_function(aten.view.default, (self._state, [-1]))
        self._seed = self._row(self._flat, 0)

    def finish(self) -> Draws:
        rows = 1 + len(self._offsets)
        self._flat.args = (self._state, [2 * rows])
        with self._mode, self._device:
            self._state.meta["val"] = torch.empty((rows, 2), dtype=torch.int64)
            self._flat.meta["val"] = torch.empty((2 * rows,), dtype=torch.int64)
        return Draws(self._state, (*self._offsets, self._position))

    def _row(self, after: Node, number: int) -> Node:
        """The first element of a row of the state."""
        with self._graph.inserting_after(after):
            value = self._graph.call_function(aten.select.int, (self._flat, 0, 2 * number))
        value.meta["val"] = self._scalar
        return value

    def replace(self, node: Node) -> None:
        function: Any = DISTRIBUTIONS[node.target]
        inputs = list(node.all_input_nodes)
        values = [n.meta["val"] for n in inputs]
        places = {n: i for i, n in enumerate(inputs)}

        def call(generator: Generator, tensors: list[torch.Tensor]) -> Any:
            args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: tensors[places[n]])
            out = function(generator, *args, **kwargs)
            _check_like(out, node)
            return out

        used: list[int] = []
        with self._mode, self._device, torch.no_grad():
            first = Generator(self._scalar, lambda words: used.append(words) or self._scalar)  # type: ignore[func-returns-value]
            call(first, values)

            def traced(seed: torch.Tensor, *rest: torch.Tensor) -> Any:
                offsets = iter(rest[: len(used)])
                return call(Generator(seed, lambda _words: next(offsets)), list(rest[len(used) :]))

            scalars = [torch.empty((), dtype=torch.int64) for _ in range(1 + len(used))]
            graph = make_fx(traced, decomposition_table=self._table, _allow_non_fake_inputs=True)(
                *scalars, *values
            ).graph
        graph.eliminate_dead_code()
        rows = []
        for words in used:
            self._offsets.append(self._position + words)
            rows.append(self._row(self._rows[-1] if self._rows else self._seed, len(self._offsets)))
            self._rows.append(rows[-1])
        self._position += first.position
        self._inline(node, graph, [self._seed, *rows, *inputs])

    def _inline(self, node: Node, traced: Graph, given: list[Node]) -> None:
        inner: dict[Node, Any] = dict(zip((n for n in traced.nodes if n.op == "placeholder"), given, strict=True))
        for part in traced.nodes:
            if part.op == "get_attr":
                raise MlircError("it needs a tensor of constants")
            if part.op == "call_function":
                with self._graph.inserting_before(node):
                    inner[part] = self._graph.node_copy(part, inner.__getitem__)
                inner[part].meta = {"val": part.meta.get("val"), **place(node)}
            elif part.op == "output":
                made = torch.fx.node.map_arg(part.args[0], inner.__getitem__)
                self._substitute(node, made)

    def _substitute(self, node: Node, made: Any) -> None:
        if isinstance(made, Node):
            node.replace_all_uses_with(made)
        else:
            for user in list(node.users):  # `getitem`s of the tuple
                user.replace_all_uses_with(made[user.args[1]])
                self._graph.erase_node(user)
        self._graph.erase_node(node)


def _check_like(out: Any, node: Node) -> None:
    """The replacement has the shapes and dtypes that PyTorch says."""
    wanted = node.meta["val"]
    pairs = zip(out, wanted, strict=True) if isinstance(out, tuple) else [(out, wanted)]
    for a, b in itertools.islice(pairs, 2):
        assert a.shape == b.shape and a.dtype == b.dtype, f"{node.target}: {a} for {b}"
