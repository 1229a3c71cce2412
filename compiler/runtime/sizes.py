"""Sizes that a call decides: a model compiled for shapes up to a bound takes every smaller one.

Buffers and kernels have the bound's shape. Each symbolic size is also a number, an input of kind `scalar` that the
runtime fills in, and what lies behind the size is padding that may hold anything. A dimension is made of factors, of
which the last moves fastest: `s<=2048` has room for 2048 and holds s, and `b<=8 * s<=2048` holds b rows of s. Terms are
sums and products of sizes and integers, with `//`, `%`, `min` and `max`; a condition compares two of them.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirc.errors import MlircError

MAX_TEXT = 400  # characters of a term or a condition
MAX_SIZE = 1 << 40
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
Dims = tuple[tuple["Factor", ...], ...]
_BINARY: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_COMPARE: dict[type, Callable[[int, int], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    try:
        if len(text) > MAX_TEXT:
            raise ValueError("too long")
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise MlircError(f"sizes: '{ascii(text)[1:-1][:80]}' is no term such as 'b * s + 1'") from None


def _names(node: ast.expr, text: str) -> Iterator[str]:
    """The names in a term; raises MlircError for anything that is not of a term."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= MAX_SIZE:
        return
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        yield from _names(node.left, text)
        yield from _names(node.right, text)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _names(node.operand, text)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        if len(node.args) < 2 or node.keywords:
            raise MlircError(f"sizes: '{ascii(text)[1:-1][:80]}': min and max take two terms or more")
        for argument in node.args:
            yield from _names(argument, text)
    else:
        raise MlircError(f"sizes: '{ascii(text)[1:-1][:80]}' is no term of sizes, + - * // %, min and max")


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, sizes)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, sizes), _value(node.right, sizes)
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)) and right == 0:
            raise MlircError("sizes: a term divides by zero")
        return _BINARY[type(node.op)](left, right)
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return (min if node.func.id == "min" else max)(_value(a, sizes) for a in node.args)


def term_value(text: str, sizes: Mapping[str, int]) -> int:
    """What a term is for these sizes; raises MlircError for a division by zero. `check_term` it first."""
    return _value(_parse(text), sizes)


def check_term(text: str, names: Sequence[str]) -> None:
    """Raises MlircError for what is no term of these sizes."""
    for name in _names(_parse(text), text):
        _known(name, names)


def _known(name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise MlircError(f"sizes: no size is called '{ascii(name)[1:-1][:80]}'")


def _comparison(text: str) -> tuple[ast.expr, Callable[[int, int], bool], ast.expr]:
    node = _parse(text)
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE):
        raise MlircError(f"sizes: '{ascii(text)[1:-1][:80]}' is no condition such as 's % 8 == 0'")
    return node.left, _COMPARE[type(node.ops[0])], node.comparators[0]


@dataclass(frozen=True)
class Factor:
    """Part of a dimension: room for `bound` indices, of which the first `term` are used (None: all)."""

    bound: int
    term: str | None = None

    def count(self, sizes: Mapping[str, int]) -> int:
        """How many indices are used; raises MlircError where there is no room for them."""
        if self.term is None:
            return self.bound
        found = term_value(self.term, sizes)
        if not 0 <= found <= self.bound:
            raise MlircError(
                f"sizes: {self.term} is {found}: not from 0 to {self.bound}, as the model was compiled for"
            )
        return found

    def __str__(self) -> str:
        return str(self.bound) if self.term is None else f"{self.term}<={self.bound}"


@dataclass(frozen=True)
class Symbol:
    """A size with its name and the least and the most that it may be."""

    name: str
    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}<={self.name}<={self.most}"


def dims_text(dims: Dims) -> str:
    """`8, b<=8 ; s<=16` for a static dimension of 8, and one of b times s."""
    return ", ".join(" ; ".join(map(str, factors)) for factors in dims)


def parse_dims(text: str) -> Dims:
    """Reads `dims_text` back; raises MlircError for anything else."""
    if len(text) > MAX_SIZE.bit_length() * MAX_TEXT:
        raise MlircError("sizes: dimensions of too many characters")
    return tuple(tuple(map(_factor, part.split(";"))) for part in _split(text)) if text.strip() else ()


def _split(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _factor(text: str) -> Factor:
    term, separator, bound = text.rpartition("<=")
    if not re.fullmatch(r"\s*\d{1,13}\s*", bound, re.ASCII) or (separator and not term.strip()):
        raise MlircError(f"sizes: '{ascii(text)[1:-1][:80]}' is no dimension such as '8' or 's<=2048'")
    return Factor(int(bound), term.strip() if separator else None)


def parse_symbol(text: str) -> Symbol:
    """Reads `1<=s<=2048`; raises MlircError for anything else."""
    match = re.fullmatch(r"(\d{1,13})<=([A-Za-z_]\w*)<=(\d{1,13})", text, re.ASCII)
    if not match:
        raise MlircError(f"sizes: '{ascii(text)[1:-1][:80]}' is no size such as '1<=s<=2048'")
    return Symbol(match[2], int(match[1]), int(match[3]))


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model: `symbols`, the dimensions of the `inputs` and `outputs` that have some, by name, and the
    `conditions` that the sizes must fulfil. Every symbol is the name of a scalar input, too."""

    symbols: tuple[Symbol, ...]
    inputs: dict[str, Dims] = field(default_factory=dict)
    outputs: dict[str, Dims] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(symbol.name for symbol in self.symbols)

    @property
    def most(self) -> dict[str, int]:
        """The largest sizes."""
        return {symbol.name: symbol.most for symbol in self.symbols}

    def solve(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """The sizes that inputs of these shapes, by name, have. Raises MlircError for shapes that do not fit, sizes
        that disagree or are out of range, and a condition that does not hold."""
        found: dict[str, int] = {}
        where: dict[str, str] = {}
        for name, dims in self.inputs.items():
            shape = tuple(shapes[name])
            if len(shape) != len(dims):
                raise MlircError(
                    f"input '{name}': got {_list(shape)}, but the model was compiled for [{dims_text(dims)}]"
                )
            for i, (size, (factor,)) in enumerate(zip(shape, dims, strict=True)):
                if factor.term in self.names and factor.term not in found:
                    assert factor.term is not None
                    found[factor.term], where[factor.term] = size, f"dimension {i} of input '{name}'"
        for symbol in self.symbols:
            size, place = found[symbol.name], where[symbol.name]
            if not symbol.least <= size <= symbol.most:
                raise MlircError(
                    f"{place}: {symbol.name} is {size}, but the model was compiled for {symbol.least} to {symbol.most}"
                )
        for name, dims in self.inputs.items():
            for i, (size, (factor,)) in enumerate(zip(shapes[name], dims, strict=True)):
                if factor.term is None and size != factor.bound:
                    raise MlircError(
                        f"input '{name}': got {_list(shapes[name])}, but the model was compiled for [{dims_text(dims)}]"
                    )
                if factor.term is not None and factor.count(found) != size:
                    given = ", ".join(f"{s} is {found[s]} by {where[s]}" for s in self.names if s in factor.term)
                    raise MlircError(f"dimension {i} of input '{name}' is {size}, but must be {factor.term}: {given}")
        for condition in self.conditions:
            left, compare, right = _comparison(condition)
            if not compare(_value(left, found), _value(right, found)):
                given = ", ".join(f"{name} = {size}" for name, size in found.items())
                raise MlircError(f"sizes: the model was compiled for {condition}, which {given} does not fulfil")
        return found

    def allow(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes fulfil the conditions."""
        compared = map(_comparison, self.conditions)
        return all(compare(_value(a, sizes), _value(b, sizes)) for a, compare, b in compared)

    def shapes(self, names: Sequence[str], tensors: Sequence[Any]) -> dict[str, tuple[int, ...]]:
        """The shapes of those inputs that have symbolic sizes, by name."""
        shapes = {name: tuple(t.shape) for name, t in zip(names, tensors, strict=True)}
        return {name: shapes[name] for name in self.inputs}

    def check(self, inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]) -> None:
        """Raises MlircError unless these are sizes of a model whose inputs and outputs have these shapes at the bound,
        and whose scalars are among the inputs."""
        if not self.symbols or len(set(self.names)) != len(self.symbols):
            raise MlircError("sizes: at least one, and each under a name of its own")
        for symbol in self.symbols:
            if symbol.name not in inputs or tuple(inputs[symbol.name]) or not 0 <= symbol.least <= symbol.most:
                raise MlircError(f"sizes: '{ascii(symbol.name)[1:-1][:80]}' is no scalar input, or has no range")
            if symbol.most > MAX_SIZE:
                raise MlircError(f"sizes: '{symbol.name}' may be {symbol.most}: too much")
        for what, given, shapes in (("input", self.inputs, inputs), ("output", self.outputs, outputs)):
            for name, dims in given.items():
                room = tuple(math.prod(f.bound for f in factors) for factors in dims)
                if name not in shapes or tuple(shapes[name]) != room:
                    raise MlircError(f"sizes: {what} '{ascii(name)[1:-1][:80]}' has not the shape {_list(room)}")
                for factor in (f for factors in dims for f in factors if f.term is not None):
                    check_term(factor.term or "", self.names)
        self._check_solvable()
        for condition in self.conditions:
            left, _, right = _comparison(condition)
            for name in (*_names(left, condition), *_names(right, condition)):
                _known(name, self.names)

    def _check_solvable(self) -> None:
        alone = set()
        for name, dims in self.inputs.items():
            if name in self.names or any(len(factors) != 1 for factors in dims):
                raise MlircError(f"sizes: input '{name}' has a dimension that no call could tell")
            for (factor,) in dims:
                if factor.term in self.names:
                    alone.add(factor.term)
                    most = self.most[factor.term]
                    if most > factor.bound:
                        raise MlircError(f"sizes: '{factor.term}' may be {most}, and input '{name}' has {factor.bound}")
        missing = [name for name in self.names if name not in alone]
        if missing:
            raise MlircError(f"sizes: no input's dimension is '{missing[0]}'")


def _list(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
