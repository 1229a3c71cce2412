"""Graphs whose sizes Dynamo leaves open: compiled once for all sizes up to a bound (docs/sizes.md), and again where a
call exceeds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from mlirc.errors import MlircError
from mlirc.runtime.sizes import MAX_SIZE, Sizes
from mlirc.torch_backend.executors import Executor
from mlirc.torch_backend.facts import Computed, Facts, Looked

KEPT = 32  # compiled for sizes up to a bound, of one graph
Place = tuple[int, int]  # an input and its dimension


@dataclass(frozen=True)
class Symbols:
    """What varies from call to call in a graph: `dims` has the sizes of its tensor inputs, by position, `numbers` its
    inputs that are integers, `ranges` the least and the most that each symbol may be by Dynamo's guards."""

    dims: dict[int, tuple[sympy.Expr, ...]]
    numbers: dict[int, sympy.Expr]
    ranges: dict[sympy.Symbol, tuple[int, int]]

    def places(self, read: Sequence[int]) -> dict[sympy.Symbol, Place]:
        """Where each symbol is to be read among the inputs that a graph reads. Raises MlircError where a size is
        computed from symbols."""
        found: dict[sympy.Symbol, Place] = {}
        for at in read:
            for dim, size in enumerate(self.dims.get(at, ())):
                if size.is_Symbol:
                    found.setdefault(size, (at, dim))
                elif not size.is_Integer:
                    raise MlircError(f"dimension {dim} of input {at} is {size}, which is no size by itself")
        return found


def symbols_of(graph: torch.fx.GraphModule) -> Symbols:
    """The symbols of a graph of Dynamo's or AOTAutograd's."""
    dims: dict[int, tuple[sympy.Expr, ...]] = {}
    numbers: dict[int, sympy.Expr] = {}
    ranges: dict[sympy.Symbol, tuple[int, int]] = {}
    for at, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(value, torch.Tensor):
            dims[at] = tuple(_expr(n, ranges) for n in value.shape)
        elif isinstance(value, torch.SymInt):
            numbers[at] = _expr(value, ranges)
    return Symbols(dims, numbers, ranges)


def _expr(size: Any, ranges: dict[sympy.Symbol, tuple[int, int]]) -> sympy.Expr:
    if not isinstance(size, torch.SymInt):
        return sympy.Integer(size)
    expr = sympy.sympify(size.node.expr)
    for symbol in expr.free_symbols:
        known = size.node.shape_env.bound_sympy(symbol)
        low, high = (int(n) if n.is_Integer else None for n in (known.lower, known.upper))
        ranges[symbol] = max(1, low or 1), MAX_SIZE if high is None else min(high, MAX_SIZE)
    return expr


@dataclass(frozen=True)
class Request:
    """How a graph is to be compiled for sizes up to a bound. `shapes`: those of the inputs that it reads, at the bound,
    with their dimensions as they lie in memory. `sizes`: as `mlirc.compile` takes them, `2<=s0<=64` for a dimension
    that varies. `numbers`: what computes inputs of the graph that are integers, by position, from all of its inputs."""

    shapes: list[tuple[int, ...]]
    sizes: dict[str, list[str | None]]
    numbers: dict[int, Callable[[Sequence[Any]], Any]]


@dataclass
class Bound:
    """A graph compiled for all of these sizes."""

    sizes: Sizes
    run: Executor

    @property
    def room(self) -> int:
        """How much is computed in every call, compared with other bounds."""
        total = 1
        for most in self.sizes.most.values():
            total *= most
        return total

    def takes(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether inputs of these shapes, by name, may be given."""
        try:
            self.sizes.solve(shapes)
            return True
        except MlircError:
            return False


class Sized:
    """What is compiled of one graph for sizes up to bounds. `make` compiles it for a request; `note` tells the user
    why that cannot be, and that each set of sizes is compiled by itself then."""

    def __init__(self, graph: torch.fx.GraphModule, make: Callable[..., Bound], note: Callable[[str], None]):
        self.symbols = symbols_of(graph)
        self._make, self._note = make, note
        self._made: dict[Any, list[Bound]] = {}
        self._refused: set[Any] = set()

    def executor(self, args: Sequence[Any], facts: Facts) -> Executor | None:
        """What runs the graph for inputs of these sizes, compiled for them and more; None where it cannot be."""
        try:
            places = self._places(facts)
        except MlircError as e:
            self._note(str(e))
            return None
        alike = _alike(args, facts, {at for at, e in self.symbols.numbers.items() if e.free_symbols <= places.keys()})
        shapes = {name: _permuted(args[at].shape, order) for name, at, order in _named(facts)}
        made = self._made.setdefault(alike, [])
        fitting = [bound for bound in made if bound.takes(shapes)]
        if fitting:
            return min(fitting, key=lambda bound: bound.room).run
        sizes = {symbol: int(args[at].shape[dim]) for symbol, (at, dim) in places.items()}
        why = None
        for names in namings(sizes):
            most = self._most(sizes, names)
            if most is None or (alike, tuple(names.items())) in self._refused:
                continue
            if any(bound.sizes.most == {str(s): n for s, n in most.items()} for bound in made):
                why = why or "not all sizes take the same way through it"
                continue
            try:
                bound = self._make(args, facts, self._request(args, facts, places, names, most))
            except Exception as e:
                self._refused.add((alike, tuple(names.items())))
                why = " ".join(str(e).split())
                continue
            made.append(bound)
            del made[:-KEPT]
            if bound.takes(shapes):
                return bound.run
            why = "not all sizes take the same way through it"
        if why:
            self._note(why)
        return None

    def _most(
        self, sizes: Mapping[sympy.Symbol, int], names: Mapping[sympy.Symbol, sympy.Symbol]
    ) -> dict[sympy.Symbol, int] | None:
        """The bound of each name; None where the sizes of a call are outside of the guards, or are the only ones."""
        most: dict[sympy.Symbol, int] = {}
        for name in names.values():
            low, high = self._limits(name, names)
            if not low <= sizes[name] <= high or low == high:
                return None
            most[name] = bound_for(sizes[name], (low, high))
        return most

    def _limits(self, name: sympy.Symbol, names: Mapping[sympy.Symbol, sympy.Symbol]) -> tuple[int, int]:
        lows, highs = zip(*(self.symbols.ranges[s] for s, other in names.items() if other == name), strict=True)
        return max(lows), min(highs)

    def _places(self, facts: Facts) -> dict[sympy.Symbol, Place]:
        if facts.written:
            raise MlircError("it writes to its inputs")
        if any(isinstance(o, Computed) and o.whole is not None for o in facts.outputs):
            raise MlircError("its results share memory that is no result")
        if facts.has_complex:
            raise MlircError("it has complex inputs or results")
        places = self.symbols.places(list(facts.read))
        if not places:
            raise MlircError("no size of a tensor that it reads varies")
        return places

    def _request(
        self,
        args: Sequence[Any],
        facts: Facts,
        places: Mapping[sympy.Symbol, Place],
        names: Mapping[sympy.Symbol, sympy.Symbol],
        most: Mapping[sympy.Symbol, int],
    ) -> Request:
        shapes: list[tuple[int, ...]] = []
        sizes: dict[str, list[str | None]] = {}
        texts = {s: f"{self._limits(name, names)[0]}<={name}<={most[name]}" for s, name in names.items()}
        for name, at, order in _named(facts):
            exprs = self.symbols.dims[at]
            shape = [most[names[e]] if e in names else int(n) for e, n in zip(exprs, args[at].shape, strict=True)]
            shapes.append(_permuted(shape, order))
            if any(e in names for e in exprs):
                sizes[name] = [texts.get(e) for e in _permuted(exprs, order)]
        numbers = {at: _computed(e, places) for at, e in self.symbols.numbers.items() if e.free_symbols <= names.keys()}
        return Request(shapes, sizes, numbers)


def namings(sizes: Mapping[sympy.Symbol, int]) -> Iterator[dict[sympy.Symbol, sympy.Symbol]]:
    """Ways to name symbols: each by itself, and, where the model may need them to be equal, those of equal size alike
    (PyTorch gives the keys and the values of a cache sizes of their own)."""
    yield {symbol: symbol for symbol in sizes}
    first: dict[int, sympy.Symbol] = {}
    alike = {symbol: first.setdefault(size, symbol) for symbol, size in sizes.items()}
    if len(first) < len(sizes):
        yield alike


def bound_for(size: int, limits: tuple[int, int]) -> int:
    """The bound that a graph is compiled for when a size comes: the next power of two, inside of the guards' range."""
    least, most = limits
    return min(max(1 << (size - 1).bit_length(), least + 1), most)


def _named(facts: Facts) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """The inputs that a graph reads: names, positions, and the order of their dimensions in memory."""
    for k, (at, order) in enumerate(facts.read.items()):
        yield f"input_{k}", at, order


def _permuted(values: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    return tuple(values[d] for d in order) if order else tuple(values)


def _computed(expr: sympy.Expr, places: Mapping[sympy.Symbol, Place]) -> Callable[[Sequence[Any]], Any]:
    def number(args: Sequence[Any]) -> Any:
        known = {symbol: args[at].shape[dim] for symbol, (at, dim) in places.items() if symbol in expr.free_symbols}
        return sympy_interp(PythonReferenceAnalysis, known, expr)

    return number


def _alike(args: Sequence[Any], facts: Facts, sizes: set[int]) -> Any:
    """What the code depends on but sizes: how inputs lie in memory, what each output is, numbers that are no sizes."""
    outputs = []
    for output in facts.outputs:
        if isinstance(output, Computed):
            outputs.append(("computed", output.number, output.order, output.repeated))
        else:
            outputs.append(("looked", output.at, output.computed) if isinstance(output, Looked) else ("known",))  # type: ignore[arg-type]
    others = [(at, type(v), v) for at, v in enumerate(args) if not isinstance(v, torch.Tensor) and at not in sizes]
    return tuple(facts.read.items()), tuple(outputs), facts.device, tuple(others)
