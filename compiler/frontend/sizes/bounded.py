"""An exported program with symbolic sizes as one of static shapes at the bound, right for every smaller size.

Every node is copied with the bound's sizes by a rule of its op (`rules.py` and the files beside it), which says what of
the result is inside of the sizes and masks padding that would reach it. Numbers computed from sizes become tensors of
no dimension, computed from the sizes that the runtime fills in. An op without a rule that touches a symbolic dimension
is taken apart by PyTorch, or refused.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Graph, Node

from mlirc.errors import MlircError
from mlirc.frontend.decompose import Program
from mlirc.frontend.evaluate import evaluate_fake, place
from mlirc.frontend.fx_import import module_path
from mlirc.frontend.sizes.layout import (
    Layout,
    Part,
    Space,
    Unknown,
    condition,
    count,
    factors,
    joined,
    room,
    static,
    term,
)
from mlirc.frontend.sizes.numbers import number_of
from mlirc.frontend.sizes.request import SizeRequest
from mlirc.frontend.sizes.rules import RULES, Number
from mlirc.frontend.sizes.rules.elementwise import pointwise
from mlirc.frontend.sizes.taken_apart import with_rules
from mlirc.runtime.sizes import Dims, Symbol

aten = torch.ops.aten
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
# Whose sizes may be written in several ways, as -1: by their rules also where nothing is symbolic, so that a program
# with a number for a symbol is comparable with another one (`ones.py`).
_SPELLED = (aten.view.default, aten.reshape.default, aten.expand.default, aten.slice.Tensor, aten.flatten.using_ints,
            torch.ops.mlirc.filled_up.default, torch.ops.mlirc.cut_to.default)  # fmt: skip


@dataclass
class Bounded:
    """A program at the bound, with the sizes as its last inputs, and what the plan says of them."""

    program: Program
    symbols: tuple[Symbol, ...]
    inputs: dict[str, Dims]  # by the placeholder's name
    outputs: list[Dims | None]  # in the graph's order; None where nothing is symbolic
    conditions: tuple[str, ...]


def at_the_bound(
    name: str,
    program: Any,
    request: SizeRequest,
    named: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> Bounded:
    """The exported program at the bound. `named`: the request's name of each user input, by its placeholder's name;
    `shapes`: of the inputs by name, whose sizes hold where the request has no symbol. Raises MlircError for an op that
    has no rule for padding, with its module."""
    symbols = _symbols(name, program, request, named, shapes)
    program = with_rules(name, program, RULES)
    ranges = {s: request.ranges[str(s)] for s in symbols.values() if s.is_Symbol}
    return Walker(name, program, symbols, ranges).run()


def _symbols(
    name: str,
    program: Any,
    request: SizeRequest,
    named: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[sympy.Symbol, sympy.Expr]:
    """The user's symbol, or the number, of each one of the export's."""
    found: dict[sympy.Symbol, sympy.Expr] = {}
    for node in program.graph.find_nodes(op="placeholder"):
        shape = shapes.get(named.get(node.name, ""), ())
        symbols = request.dims.get(named.get(node.name, "")) or (None,) * len(shape)
        for size, symbol, number in zip(getattr(node.meta.get("val"), "shape", ()), symbols, shape, strict=False):
            expr = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
            if expr.is_Integer and symbol is None:
                continue
            wanted = sympy.Symbol(symbol, integer=True, positive=True) if symbol else sympy.Integer(number)
            if not expr.is_Symbol:
                raise MlircError(f"{name}: '{wanted}' of input '{named[node.name]}' must be {expr}: write that size")
            if found.setdefault(expr, wanted) != wanted:
                raise MlircError(f"{name}: '{wanted}' and '{found[expr]}' must be equal: give both one name")
    return found


class Walker:
    """Copies a program node by node; `layouts` says of each new node (a list of layouts for one with several results)
    what is inside of the sizes."""

    def __init__(self, name: str, program: Any, symbols: Mapping[sympy.Symbol, sympy.Symbol], ranges: Mapping):
        self.name, self.program = name, program
        self.symbols, self.space = dict(symbols), Space(ranges)
        self.graph = Graph()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.env: dict[Node, Any] = {}
        self.layouts: dict[Node, Any] = {}
        self.numbers: dict[sympy.Expr, Node] = {}
        self.masks: dict[Any, Node] = {}
        self.conditions: list[str] = []
        self.node: Any = None

    # -- the walk

    def run(self) -> Bounded:
        with self.mode, torch.no_grad():
            inputs = self._placeholders()
            for node in self.program.graph.nodes:
                self.node = node
                if node.op == "call_function":
                    self._visit(node)
            output: Any = next(n for n in self.program.graph.nodes if n.op == "output")
            self.node = output
            results = [self._result(v) for v in output.args[0]]
            self._assumptions()
            self.graph.output(tuple(results))
        signature = self._signature()
        self.graph.owning_module = torch.nn.Module()  # type: ignore[assignment]
        p = self.program
        made = Program(self.graph, signature, p.state_dict, p.constants, p.module_call_graph)
        outputs = [self._dims(v) if isinstance(v, Node) else None for v in results]
        ranges = [Symbol(str(s), *r) for s, r in self.space.ranges.items()]
        return Bounded(made, tuple(ranges), inputs, outputs, tuple(dict.fromkeys(self.conditions)))

    def _placeholders(self) -> dict[str, Dims]:
        inputs: dict[str, Dims] = {}
        for old in self.program.graph.find_nodes(op="placeholder"):
            new = self.graph.placeholder(old.name)
            new.name, value = old.name, old.meta.get("val")
            new.meta = {k: v for k, v in old.meta.items() if k == "val" or not isinstance(value, torch.Tensor)}
            if isinstance(value, torch.Tensor):
                layout = tuple(self.fresh(n) for n in value.shape)
                shape = [room(dim) for dim in layout]
                new.meta["val"] = torch.empty(shape, dtype=value.dtype, device=value.device)
                self.layouts[new] = layout
                if any(p.padded for dim in layout for p in dim):
                    inputs[old.name] = factors(layout, term)
            self.env[old] = new
        for symbol in self.space.ranges:
            new = self.graph.placeholder(f"size_{symbol}")
            new.meta["val"] = torch.empty((), dtype=torch.int64)
            self.layouts[new], self.numbers[symbol] = (), new
        return inputs

    def _signature(self) -> Any:
        import copy

        signature = copy.copy(self.program.graph_signature)
        added = [
            InputSpec(InputKind.USER_INPUT, TensorArgument(name=n.name), None)
            for n in self.numbers.values()
            if n.op == "placeholder"
        ]
        output: Any = next(n for n in self.graph.nodes if n.op == "output")
        signature.input_specs = [*signature.input_specs, *added]
        specs = []
        for spec, value in zip(signature.output_specs, output.args[0], strict=True):
            spec = copy.copy(spec)
            if isinstance(value, Node):
                spec.arg = TensorArgument(name=value.name)
            specs.append(spec)
        signature.output_specs = specs
        return signature

    def _result(self, value: Any) -> Any:
        if not isinstance(value, Node):
            return value
        found = self.env[value]
        return self.tensor(found.expr) if isinstance(found, Number) else found

    def _dims(self, node: Node) -> Dims | None:
        layout = self.layouts.get(node) or ()
        return factors(layout, term) if any(p.padded for dim in layout for p in dim) else None

    def _visit(self, node: Node) -> None:
        value = node.meta.get("val")
        if "_assert_" in str(node.target) or "sym_constrain" in str(node.target):
            self._assertion(node)
            return
        if isinstance(value, (int, float, bool, *_SYMBOLS)):
            self.env[node] = self._number(node, value)
            return
        args, kwargs = torch.fx.node.map_arg((tuple(node.args), dict(node.kwargs)), self.env.__getitem__)  # type: ignore[misc]
        if node.target is operator.getitem:
            new = self.call(operator.getitem, *args)
            self.layouts[new] = self.layouts[args[0]][args[1]]  # type: ignore[index]
            self.env[node] = new
            return
        try:
            new = self._apply(node, args, kwargs)
            self._agree(new, value)
        except Unknown as e:
            raise self.refusal(str(e)) from e
        self.env[node] = new

    def _apply(self, node: Node, args: tuple, kwargs: dict) -> Node:
        inputs = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, (Node, Number))]
        touched = any(isinstance(a, Number) or self.padded(a) for a in inputs) or _is_symbolic(node.meta.get("val"))
        if not touched and node.target not in _SPELLED:
            new = self.call(node.target, *args, **kwargs)
            self.layouts[new] = _layout_of(new.meta["val"])
            return new
        made = RULES.get(node.target)
        if made is not None:
            return made(self, *args, **kwargs)
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags:
            return pointwise(self, *args, **kwargs)
        raise Unknown("no rule says what padding does to it")

    def _agree(self, new: Node, value: Any) -> None:
        """The rule's layout must be that of the new node, and of the size that the export has."""
        for val, layout, meant in _several(new.meta["val"], self.layouts[new], value):
            if tuple(room(dim) for dim in layout) != tuple(val.shape):
                raise Unknown(f"its padding is not known ({list(val.shape)})")
            for dim, size in zip(layout, meant.shape, strict=True):
                if not self.space.same(count(dim), self.expr(size)):
                    raise Unknown(f"its size should be {self.expr(size)}, and is {count(dim)}")

    def _assumptions(self) -> None:
        """What the export took for granted of sizes becomes conditions of a call, asserted in the graph or not."""
        modes = (getattr(n.meta.get("val"), "fake_mode", None) for n in self.program.graph.find_nodes(op="placeholder"))
        for env in {id(m.shape_env): m.shape_env for m in modes if m is not None and m.shape_env is not None}.values():
            known = [r.expr for found in env.deferred_runtime_asserts.values() for r in found]
            for expr in (*known, *(guard.expr for guard in env.guards)):
                self._assume(sympy.sympify(env.replace(expr)).xreplace(self.symbols))

    def _assume(self, expr: Any) -> None:
        if expr.free_symbols - set(self.space.ranges):
            raise self.refusal(f"it relies on {expr}, which depends on the values of a tensor")
        if expr == sympy.false:  # a number that the export sets apart, where it is looked into
            return
        if found := condition(expr):
            self.conditions.append(found)

    def _assertion(self, node: Node) -> None:
        """Assertions on sizes become conditions of a call."""
        tested = node.args[0] if node.args else None
        value = tested.meta.get("val") if isinstance(tested, Node) else tested
        if not isinstance(value, torch.SymBool):
            return
        self._assume(self.expr(value))

    def _number(self, node: Node, value: Any) -> Any:
        if not isinstance(value, _SYMBOLS):
            return value
        expr = self.expr(value)
        if expr.free_symbols - set(self.space.ranges):
            raise self.refusal("it computes a number from the values of a tensor")
        return int(expr) if expr.is_Integer else Number(expr)

    # -- what rules use

    def expr(self, size: Any) -> Any:
        """A size of the export in the user's symbols."""
        if isinstance(size, _SYMBOLS):
            return sympy.sympify(size.node.expr).xreplace(self.symbols)
        return sympy.sympify(size)

    def fresh(self, size: Any) -> tuple[Part, ...]:
        """A dimension that has a prefix of that size; raises Unknown where it is not largest at the bound."""
        expr = self.expr(size.expr if isinstance(size, Number) else size)
        if expr.free_symbols - set(self.space.ranges):
            raise Unknown("a size depends on the values of a tensor")
        return joined([Part(expr, self.space.most(expr))]) if not expr.is_Integer else static(int(expr))

    def size(self, value: Any) -> Any:
        """A number in an argument that says a size: what it is at the bound."""
        return self.space.at_bound(value.expr) if isinstance(value, Number) else value

    def padded(self, value: Any) -> bool:
        return isinstance(value, Node) and any(
            p.padded for layout in _all(self.layouts[value]) for d in layout for p in d
        )

    def meant(self, number: int | None = None) -> Any:
        """The exported node's value: its dtype and symbolic shape."""
        value = self.node.meta["val"]
        return value if number is None else value[number]

    def call(self, target: Any, /, *args: Any, **kwargs: Any) -> Node:
        """A new node, with the value that it has at the bound. Numbers among its arguments are sizes."""
        args, kwargs = torch.utils._pytree.tree_map(self.size, (args, kwargs))
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {"val": evaluate_fake(target, args, kwargs), **place(self.node)}
        return node

    def made(self, layout: Any, target: Any, /, *args: Any, **kwargs: Any) -> Node:  # ops have a `layout`, too
        """A new node of that layout."""
        node = self.call(target, *args, **kwargs)
        self.layouts[node] = layout
        return node

    def tensor(self, expr: sympy.Expr) -> Node:
        """A number computed from sizes, as a tensor of no dimension: int64 or float64."""
        return number_of(self, expr)

    def refusal(self, why: str) -> MlircError:
        target = self.node.target
        op = target.name() if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))
        path = module_path(self.node)
        where = f"module '{path}'" if path else "the model"
        return MlircError(
            f"{self.name}: {op} in {where} cannot be compiled for symbolic sizes: {why}; give that size as a number"
        )


def _is_symbolic(value: Any) -> bool:
    leaves = torch.utils._pytree.tree_leaves(value)
    return any(
        isinstance(n, torch.SymInt) and not n.node.expr.is_Integer
        for v in leaves
        if isinstance(v, torch.Tensor)
        for n in v.shape
    )


def _layout_of(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_layout_of(v) for v in value]
    return tuple(static(n) for n in value.shape) if isinstance(value, torch.Tensor) else ()


def _all(layout: Any) -> list[Layout]:
    return layout if isinstance(layout, list) else [layout]


def _several(value: Any, layout: Any, meant: Any) -> list[tuple[torch.Tensor, Layout, Any]]:
    if isinstance(value, (list, tuple)):
        return [row for row in zip(value, layout, meant, strict=True) if isinstance(row[0], torch.Tensor)]
    return [(value, layout, meant)]
