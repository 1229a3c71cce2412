"""Complex tensors inside of a model become pairs of real ones: one rule per operation.

The graph comes decomposed. Complex inputs and outputs of the model are refused, as a compiled model has none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirc.errors import MlircError
from mlirc.frontend.evaluate import evaluate_fake, place
from mlirc.frontend.fx_import import module_path

aten = torch.ops.aten
Pair = tuple[Any, Any]  # nodes or numbers; None for an imaginary part that is zero

REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def is_complex(node: Any) -> bool:
    """Whether a node's value is a complex tensor, or has one among others."""
    values = torch.utils._pytree.tree_leaves(node.meta.get("val")) if isinstance(node, Node) else []
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


class ComplexPairs:
    """Rewrites a graph in place by `rules` (`complex_rules.py`): what each op becomes.

    `constants` are the tensors of the graph's new placeholders, by their names.
    """

    def __init__(self, graph: Graph, what: str, rules: Mapping[Any, Callable]):
        self.graph, self.what, self._rules = graph, what, rules
        self.pairs: dict[Node, Pair] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self._tables: dict[Any, Node] = {}
        self._at: Node | None = None

    def split_constant(self, node: Node, value: torch.Tensor) -> None:
        """A placeholder whose value is known becomes two."""
        parts = torch.view_as_real(value.resolve_conj().resolve_neg())
        self._at = node
        self.pairs[node] = (self.constant(parts[..., 0]), self.constant(parts[..., 1]))

    def run(self) -> None:
        """Raises MlircError for an operation without a rule, and for complex inputs and outputs."""
        for node in list(self.graph.nodes):
            self._at = node
            if node.op == "placeholder" and is_complex(node) and node not in self.pairs:
                raise MlircError(
                    f"{self.what}: input '{node.name}' is complex: take torch.view_as_real of it as the input, and "
                    "call torch.view_as_complex in the model"
                )
            if node.op == "output" and any(is_complex(n) for n in node.all_input_nodes):
                raise MlircError(f"{self.what}: an output is complex: return torch.view_as_real of it")
            if "_assert_" in str(node.target) and not node.users:
                self.graph.erase_node(node)
            elif node.op == "call_function" and (is_complex(node) or any(map(is_complex, node.all_input_nodes))):
                self._rewrite(node)
        for node in reversed(list(self.graph.nodes)):
            if is_complex(node) and not node.users or node.op == "call_function" and not node.users:
                self.graph.erase_node(node)

    def _rewrite(self, node: Node) -> None:
        target: Any = node.target
        rule = self._rules.get(target)
        if target is operator.getitem:
            source: Any = node.args[0]
            parts = self.pairs[source]
            found: Any = (parts[0][node.args[1]], parts[1][node.args[1]])
        elif rule is None:
            where = module_path(node)
            raise MlircError(
                f"{self.what}: op {getattr(target, 'name', lambda: str(target))()} in "
                f"{f'module {where!r}' if where else 'the model'} on complex numbers is not supported: write it with "
                "torch.view_as_real on their real and imaginary parts"
            )
        else:
            found = rule(self, node, *node.args, **node.kwargs)
        if is_complex(node):
            self.pairs[node] = found
        else:
            node.replace_all_uses_with(found)

    # What rules are made of

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """A new call before the node that is rewritten."""
        assert self._at is not None
        with self.graph.inserting_before(self._at):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = {**place(self._at)}
        mode = next(
            (n.meta["val"].fake_mode for n in self.graph.nodes if hasattr(n.meta.get("val"), "fake_mode")), None
        )
        assert mode is not None
        with mode, torch.no_grad():
            node.meta["val"] = evaluate_fake(target, args, kwargs)
        return node

    def constant(self, value: torch.Tensor) -> Node:
        """A placeholder for a tensor; the same for equal ones."""
        value = value.contiguous()
        key = (value.dtype, tuple(value.shape), value.view(-1).view(torch.uint8).numpy().tobytes())
        if key not in self._tables:
            first = next(n for n in self.graph.nodes if n.op != "placeholder")
            with self.graph.inserting_before(first):
                new = self.graph.placeholder(f"complex_constant_{len(self.constants)}")
            mode = next(n.meta["val"].fake_mode for n in self.graph.nodes if hasattr(n.meta.get("val"), "fake_mode"))
            new.meta = {"val": mode.from_tensor(value, static_shapes=True)}
            self._tables[key], self.constants[new.name] = new, value
        return self._tables[key]

    def pair(self, x: Any) -> Pair:
        """The parts of a value; those of a number are numbers."""
        if isinstance(x, Node):
            return self.pairs.get(x, (x, None))
        return (x.real, x.imag) if isinstance(x, complex) else (x, None)

    def full_pair(self, x: Any) -> Pair:
        """The parts of a tensor, both nodes."""
        re, im = self.pair(x)
        return re, self(aten.zeros_like.default, re) if im is None else im

    def add(self, x: Any, y: Any, sign: int = 1) -> Any:
        """x + y or x - y of real values, each a node, a number, or None for zero."""
        if y is None:
            return x
        if x is None:
            return y if sign > 0 else self.neg(y)
        if not isinstance(x, Node):
            if not isinstance(y, Node):
                return x + sign * y
            return self(aten.add.Tensor, y if sign > 0 else self.neg(y), x)
        return self(aten.add.Tensor if sign > 0 else aten.sub.Tensor, x, y)

    def neg(self, x: Any) -> Any:
        """-x of a real value."""
        return None if x is None else self(aten.neg.default, x) if isinstance(x, Node) else -x

    def mul(self, x: Any, y: Any) -> Any:
        """x * y of real values."""
        if x is None or y is None:
            return None
        if not isinstance(x, Node):
            x, y = y, x
        return self(aten.mul.Tensor, x, y) if isinstance(x, Node) else x * y

    def product(self, x: Pair, y: Pair) -> Pair:
        """x * y of complex values."""
        re = self.add(self.mul(x[0], y[0]), self.mul(x[1], y[1]), -1)
        return re, self.add(self.mul(x[0], y[1]), self.mul(x[1], y[0]))

    def square_of_size(self, x: Pair) -> Any:
        """|x|^2."""
        return self.add(self.mul(x[0], x[0]), self.mul(x[1], x[1]))
