"""Which part of a tensor at the bound is inside of the sizes: a dimension is a list of factors, the last of which moves
fastest; of each factor a prefix is used, and all that is behind it is padding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from mlirc.errors import MlircError
from mlirc.runtime.sizes import Factor

Layout = tuple[tuple["Part", ...], ...]
_SAMPLES = 48


@dataclass(frozen=True)
class Part:
    """A factor of a dimension: room for `bound` indices, of which the first `count` (in symbols) are used."""

    count: sympy.Expr
    bound: int

    @property
    def padded(self) -> bool:
        return not self.count.is_Integer


class Unknown(Exception):
    """Why a rule cannot be applied; becomes one line with the op and the module."""


def static(size: int) -> tuple[Part, ...]:
    return (Part(sympy.Integer(size), size),) if size != 1 else ()


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts without those of one, and with static neighbours as one."""
    found: list[Part] = []
    for part in parts:
        if not part.padded and part.bound == 1:
            continue
        if found and not part.padded and not found[-1].padded:
            bound = found[-1].bound * part.bound
            found[-1] = Part(sympy.Integer(bound), bound)
        else:
            found.append(part)
    return tuple(found)


def padded(dim: tuple[Part, ...]) -> bool:
    return any(part.padded for part in dim)


def room(dim: tuple[Part, ...]) -> int:
    return math.prod(part.bound for part in dim)


def count(dim: tuple[Part, ...]) -> sympy.Expr:
    return sympy.Mul(*[part.count for part in dim])


def broadcast(layouts: Sequence[Layout]) -> Layout:
    """The layout of an elementwise result. Raises Unknown where dimensions meet whose padding differs."""
    rank = max(map(len, layouts), default=0)
    found: list[tuple[Part, ...]] = []
    for i in range(rank):
        met = [layout[len(layout) - rank + i] for layout in layouts if len(layout) - rank + i >= 0]
        wide = [dim for dim in met if dim] or [()]
        if any(dim != wide[0] for dim in wide):
            raise Unknown("it combines dimensions of different sizes")
        found.append(wide[0])
    return tuple(found)


def reshaped(layout: Layout, shape: Sequence[int], counts: Sequence[sympy.Expr], same: Any) -> Layout:
    """The layout of a tensor seen in another shape: `shape` at the bound, `counts` in symbols; `same(a, b)` says
    whether two counts are equal. Raises Unknown where a dimension would begin or end inside of padding."""
    parts = list(joined(part for dim in layout for part in dim))
    found: list[tuple[Part, ...]] = []
    for size, wanted in zip(shape, counts, strict=True):
        taken: list[Part] = []
        have = 1
        while have < size:
            if not parts:
                raise Unknown("a reshape divides a size")
            part = parts.pop(0)
            if part.padded and size % (have * part.bound) == 0:
                taken.append(part)
                have *= part.bound
                continue
            if part.padded and size % have == 0 and part.bound % (size // have) == 0 and not taken:
                # s = q * k: the first q groups of k are used where k divides s, which the export has made a condition
                inner = part.bound // size
                outer = Part(sympy.nsimplify(part.count / inner), size)
                if not same(count((outer,)), wanted):
                    raise Unknown("a reshape divides a size")
                taken.append(outer)
                parts.insert(0, Part(sympy.Integer(inner), inner))
                have *= size
                continue
            if part.padded or size % have:
                raise Unknown("a reshape divides a size")
            fits = math.gcd(part.bound, size // have)
            if fits == 1:
                raise Unknown("a reshape divides a size")
            taken.append(Part(sympy.Integer(fits), fits))
            have *= fits
            if part.bound // fits > 1:
                parts.insert(0, Part(sympy.Integer(part.bound // fits), part.bound // fits))
        dim = joined(taken)
        if have != size or not same(count(dim), wanted):
            raise Unknown("a reshape divides a size")
        found.append(dim)
    if parts:
        raise Unknown("a reshape divides a size")
    return tuple(found)


class Space:
    """The symbols with their ranges: what expressions are at the bound, and whether two are equal for all sizes."""

    def __init__(self, ranges: Mapping[sympy.Symbol, tuple[int, int]]):
        self.ranges = dict(ranges)
        self._most = {s: sympy.Integer(high) for s, (_, high) in self.ranges.items()}
        self._known: dict[Any, bool] = {}
        self._samples = [
            {s: sympy.Integer(low + (high - low) * ((i * (2 * j + 3)) % _SAMPLES) // (_SAMPLES - 1))
             for j, (s, (low, high)) in enumerate(self.ranges.items())}
            for i in range(_SAMPLES)
        ]  # fmt: skip

    def at_bound(self, expr: Any) -> int:
        """An expression at the largest sizes."""
        value = sympy.sympify(expr).xreplace(self._most)
        if not value.is_Integer:
            raise Unknown(f"the size {expr} is no whole number")
        return int(value)

    def most(self, expr: Any) -> int:
        """The same; raises Unknown where the expression is larger for smaller sizes."""
        from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

        expr = sympy.sympify(expr)
        found = self.at_bound(expr)
        upper = bound_sympy(expr, {s: ValueRanges(low, high) for s, (low, high) in self.ranges.items()}).upper
        # The range may be wider than it is: s*b - s, for one. What grows with every symbol is largest at the bound.
        if upper > found and not all(_grows(expr, s) for s in expr.free_symbols):
            raise Unknown(f"the size {expr} may be larger for smaller sizes")
        return found

    def same(self, one: Any, other: Any) -> bool:
        """Whether two sizes are equal: as polynomials, or, with divisions in them, wherever it is tried."""
        one, other = sympy.sympify(one), sympy.sympify(other)
        if one == other:
            return True
        key = (one, other)
        if key not in self._known:
            self._known[key] = sympy.expand(one - other) == 0 or (
                not (one - other).is_polynomial(*self.ranges)
                and all(self._fits(one, s) == self._fits(other, s) for s in self._samples)
            )
        return self._known[key]

    @staticmethod
    def _fits(expr: sympy.Expr, sample: Mapping) -> Any:
        return sympy.floor(expr.xreplace(sample))


def _grows(expr: sympy.Expr, symbol: sympy.Symbol) -> bool:
    try:
        derivative = sympy.diff(expr, symbol)
    except Exception:  # a floor has none
        return False
    return bool(derivative.is_nonnegative)


def factors(layout: Layout, text: Any) -> tuple[tuple[Factor, ...], ...]:
    """A layout as the plan has it; `text` writes an expression."""
    return tuple(
        tuple(Factor(p.bound, text(p.count) if p.padded else None) for p in dim) or (Factor(1),) for dim in layout
    )


def term(expr: sympy.Expr) -> str:
    """An expression as a term of `mlirc.runtime.sizes`."""
    if expr.is_Integer:
        return str(int(expr)) if expr >= 0 else f"({int(expr)})"
    if expr.is_Symbol:
        return str(expr)
    name = type(expr).__name__
    if name == "Add":
        return "(" + " + ".join(map(term, expr.args)) + ")"
    if name == "Mul" and all(a.is_integer for a in expr.args):
        return " * ".join(map(term, expr.args))
    if name == "Mul" and expr.args[0].is_Rational:
        # a whole number, as the conditions have it
        return f"({term(sympy.Mul(sympy.Integer(expr.args[0].p), *expr.args[1:]))} // {expr.args[0].q})"
    if name in ("FloorDiv", "CleanDiv"):
        return f"({term(expr.args[0])} // {term(expr.args[1])})"
    if name in ("Mod", "PythonMod"):
        return f"({term(expr.args[0])} % {term(expr.args[1])})"
    if name in ("Max", "Min"):
        return f"{name.lower()}({', '.join(map(term, expr.args))})"
    if name == "Pow" and expr.args[1].is_Integer and 0 < expr.args[1] <= 4:
        return " * ".join([term(expr.args[0])] * int(expr.args[1]))
    raise MlircError(f"the size {expr} has no term of + - * // % min and max")


_RELATIONS = {"Equality": "==", "Unequality": "!=", "LessThan": "<=", "StrictLessThan": "<", "GreaterThan": ">=",
              "StrictGreaterThan": ">"}  # fmt: skip


def condition(expr: sympy.Basic) -> str | None:
    """A condition as `mlirc.runtime.sizes` has it; None for one that always holds."""
    if expr in (sympy.true, True):
        return None
    if type(expr).__name__ == "Not" and type(expr.args[0]).__name__ in _RELATIONS:
        expr = expr.args[0].negated
    if type(expr).__name__ not in _RELATIONS:
        raise MlircError(f"the condition {expr} is no comparison of sizes")
    return f"{term(expr.args[0])} {_RELATIONS[type(expr).__name__]} {term(expr.args[1])}"
