"""Scalar expressions: what one element of a tensor is, as a shared graph of scalar operations over loads.

Nodes are hash-consed by a `Scalars` table, so equal subexpressions are one node. Integer arithmetic on loop indices is
kept as an `Index`, which folds the comparisons and wrap-arounds that PyTorch's indexing leaves behind.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirc.mlir import ir
from mlirc.passes.graph.index import INFINITY, Index

# Worth computing once rather than again for every use; the rest is cheap.
EXPENSIVE = frozenset(
    f"math.{n}"
    for n in (
        "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan atan2 erf erfc "
        "powf rsqrt sqrt cbrt"
    ).split()
) | {"arith.divf", "arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.remf"}

SLT, SLE, SGT, SGE, EQ, NE, ULT, ULE, UGT, UGE = 2, 3, 4, 5, 0, 1, 6, 7, 8, 9


@dataclass(eq=False, slots=True)
class Scalar:
    """One node. `kind` is one of:

    load    `data` = (tensor value, indices): an element of a tensor from outside the kernel
    index   `data` = Index: an integer that depends on loop indices (or on an index-typed scalar) alone
    op      `data` = (op name, attributes): a scalar operation on `operands`
    reduced `data` = (reduction op, row indices); dot: `data` = (contraction op, result indices)
    scanned `data` = (a scan's result, indices)
    """

    kind: str
    type: ir.Type
    data: Any
    operands: tuple[Scalar, ...] = ()
    dims: frozenset = field(default_factory=frozenset)
    number: int = 0

    def walk(self) -> Iterator[Scalar]:
        """All nodes, operands before users, each once; scalars inside load indices included."""
        return self.walk_until(())

    def walk_until(self, known: Container[int]) -> Iterator[Scalar]:
        """`walk`, leaving out the nodes whose numbers are in `known` and what only they need."""
        seen: set[int] = set()
        stack: list[tuple[Scalar, bool]] = [(self, False)]
        while stack:
            node, done = stack.pop()
            if done:
                yield node
            elif node.number not in seen and node.number not in known:
                seen.add(node.number)
                stack.append((node, True))
                stack.extend((o, False) for o in reversed(node.inputs()))

    def inputs(self) -> tuple[Scalar, ...]:
        """Operands, and for loads and indices the scalars that their index expressions use."""
        if self.kind == "load":
            return tuple(s for i in self.data[1] for s in scalars_in(i))
        return tuple(scalars_in(self.data)) if self.kind == "index" else self.operands

    @property
    def expensive(self) -> bool:
        return self.kind == "op" and self.data[0] in EXPENSIVE


def scalars_in(index: Index) -> Iterator[Scalar]:
    """The data-dependent scalars inside an index expression."""
    return (a[1] for a in index.atoms() if a[0] == "s")


class Scalars:
    """Builds scalar nodes, folding index arithmetic."""

    def __init__(self) -> None:
        self._known: dict[Any, Scalar] = {}

    def _make(self, key: Any, kind: str, type_: ir.Type, data: Any, operands: tuple[Scalar, ...], dims) -> Scalar:
        node = self._known.get(key)
        if node is None:
            node = Scalar(kind, type_, data, operands, frozenset(dims), len(self._known))
            self._known[key] = node
        return node

    def load(self, value: ir.Value, indices: Sequence[Index]) -> Scalar:
        indices = tuple(indices)
        type_ = value.type.element_type
        return self._make(("load", value, indices), "load", type_, (value, indices), (), _dims(indices))

    def index(self, index: Index, type_: ir.Type) -> Scalar:
        return self._make(("index", index, type_), "index", type_, index, (), _dims([index]))

    def inner(self, kind: str, op: ir.Operation | ir.Value, indices: Sequence[Index], type_: ir.Type) -> Scalar:
        """A `reduced`, `dot` or `scanned` node: the result of a reduction, contraction or scan in the same kernel."""
        indices = tuple(indices)
        return self._make((kind, op, indices), kind, type_, (op, indices), (), _dims(indices))

    def as_index(self, scalar: Scalar) -> Index:
        """An integer scalar as an index expression."""
        return scalar.data if scalar.kind == "index" else Index(0, {("s", scalar): 1})

    def op(self, name: str, attributes: Sequence[tuple[str, ir.Attribute]], operands: Sequence[Scalar], type_: ir.Type):
        """A scalar operation with one result, folded where indices and constants decide it."""
        folded = self._fold(name, dict(attributes), operands, type_)
        if folded is not None:
            return folded
        attributes, operands = tuple(attributes), tuple(operands)
        dims = frozenset().union(*(o.dims for o in operands)) if operands else ()
        key = (name, attributes, tuple(o.number for o in operands), type_)
        return self._make(key, "op", type_, (name, attributes), operands, dims)

    def constant(self, attribute: ir.Attribute) -> Scalar:
        type_ = attribute.type
        if isinstance(attribute, ir.IntegerAttr) and (isinstance(type_, ir.IndexType) or type_.width > 1):
            return self.index(Index(attribute.value), type_)
        return self.op("arith.constant", (("value", attribute),), (), type_)

    def integer(self, value: int, type_: ir.Type) -> Scalar:
        return self.constant(ir.IntegerAttr.get(type_, value))

    def in_range(self, index: Index, low: int, high: int) -> Scalar | None:
        """Whether low <= index < high, as an i1 scalar; None where it always holds."""
        least, most = index.range()
        found = None
        scalar = self.index(index, ir.IndexType.get())
        for needed, predicate, bound in ((least < low, SGE, low), (most >= high, SLT, high)):
            if needed:
                test = self.compare(predicate, scalar, self.integer(bound, ir.IndexType.get()))
                found = test if found is None else self.op("arith.andi", (), (found, test), test.type)
        return found

    def compare(self, predicate: int, a: Scalar, b: Scalar) -> Scalar:
        attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), predicate)
        return self.op("arith.cmpi", (("predicate", attribute),), (a, b), ir.IntegerType.get_signless(1))

    def select(self, condition: Scalar | None, a: Scalar, b: Scalar) -> Scalar:
        return a if condition is None or a is b else self.op("arith.select", (), (condition, a, b), a.type)

    def _fold(self, name: str, attributes: dict, operands: Sequence[Scalar], type_: ir.Type) -> Scalar | None:
        short = name.removeprefix("arith.")
        if short == "select":
            decided = _boolean(operands[0])
            if decided is not None:
                return operands[1] if decided else operands[2]
            return operands[1] if operands[1] is operands[2] else None
        if short == "andi" and type_ == ir.IntegerType.get_signless(1):
            for a, b in (operands, reversed(operands)):
                if _boolean(a) is not None:
                    return b if _boolean(a) else a
        if short == "ori" and type_ == ir.IntegerType.get_signless(1):
            for a, b in (operands, reversed(operands)):
                if _boolean(a) is not None:
                    return a if _boolean(a) else b
        if name in ("math.fpowi", "math.powf"):
            return self._fold_power(operands, type_)
        if not operands or any(o.kind != "index" for o in operands):
            return self._fold_dynamic_cast(short, operands, type_)
        values = [o.data for o in operands]
        if short in ("index_cast", "extsi", "trunci") and _fits(values[0], type_):
            return self.index(values[0], type_)
        if short == "extui" and values[0].range()[0] >= 0:
            return self.index(values[0], type_)
        if short in ("addi", "subi"):
            total = values[0] + values[1] if short == "addi" else values[0] - values[1]
            return self.index(total, type_) if _fits(total, type_) else None
        if short == "muli" and any(not v.terms for v in values):
            a, b = values if not values[1].terms else reversed(values)
            return self.index(a * b.const, type_) if _fits(a * b.const, type_) else None
        if short in ("floordivsi", "divsi", "divui", "remsi", "remui") and not values[1].terms:
            if values[1].const > 0 and values[0].range()[0] >= 0:
                n = values[1].const
                return self.index(values[0].mod(n) if short.startswith("rem") else values[0].floordiv(n), type_)
        if short == "cmpi":
            return self._fold_compare(attributes["predicate"].value, values[0] - values[1])
        return None

    def _fold_dynamic_cast(self, short: str, operands: Sequence[Scalar], type_: ir.Type) -> Scalar | None:
        if short == "index_cast" and len(operands) == 1 and operands[0].type == type_:
            return operands[0]
        if short in ("truncf", "trunci"):  # of what was widened from that type
            (node,) = operands
            widened = node.kind == "op" and node.data[0] in ("arith.extf", "arith.extsi", "arith.extui")
            return node.operands[0] if widened and node.operands[0].type == type_ else None
        return None

    def _fold_compare(self, predicate: int, difference: Index) -> Scalar | None:
        low, high = difference.range()
        tests = {SLT: (high < 0, low >= 0), SLE: (high <= 0, low > 0), SGT: (low > 0, high <= 0),
                 SGE: (low >= 0, high < 0), EQ: (low == high == 0, high < 0 or low > 0),
                 NE: (high < 0 or low > 0, low == high == 0)}  # fmt: skip
        if predicate not in tests or low < -INFINITY or high > INFINITY:
            return None
        true, false = tests[predicate]
        return self.constant(ir.BoolAttr.get(true)) if true or false else None

    def _fold_power(self, operands: Sequence[Scalar], type_: ir.Type) -> Scalar | None:
        """x to the power 2 or 3 as multiplications."""
        exponent = operands[1]
        if exponent.kind == "index" and not exponent.data.terms:
            power = exponent.data.const
        elif exponent.kind == "op" and exponent.data[0] == "arith.constant":
            power = exponent.data[1][0][1].value
        else:
            return None
        if power not in (2, 3):
            return None
        square = self.op("arith.mulf", (), (operands[0], operands[0]), type_)
        return square if power == 2 else self.op("arith.mulf", (), (square, operands[0]), type_)


def _dims(indices: Sequence[Index]) -> set:
    found: set = set()
    for index in indices:
        for atom in index.atoms():
            if atom[0] == "d":
                found.add(atom[1])
            elif atom[0] == "s":
                found |= atom[1].dims
    return found


def _boolean(scalar: Scalar) -> bool | None:
    if scalar.kind == "op" and scalar.data[0] == "arith.constant" and isinstance(scalar.data[1][0][1], ir.BoolAttr):
        return scalar.data[1][0][1].value
    return None


def _fits(index: Index, type_: ir.Type) -> bool:
    """Whether an integer may be computed as an index, which has 32 bits on a GPU."""
    if isinstance(type_, ir.IndexType):
        return True
    low, high = index.range()
    if low < -INFINITY or high > INFINITY:
        return type_.width >= 64
    bits = min(type_.width, 32)
    return not index.terms and type_.width >= 64 or -(1 << (bits - 1)) <= low and high < 1 << (bits - 1)


def constant_of(node: Scalar) -> ir.Attribute | None:
    """The constant that a scalar is, None if it is not one."""
    if node.kind == "index" and not node.data.terms:
        return ir.IntegerAttr.get(node.type, node.data.const)
    if node.kind == "op" and node.data[0] == "arith.constant":
        return node.data[1][0][1]
    return None


def is_gather(node: Scalar) -> bool:
    """Whether a scalar is an element of a tensor at an index that depends on data."""
    return node.kind == "load" and any(a[0] == "s" for i in node.data[1] for a in i.atoms())
