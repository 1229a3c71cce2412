"""Indices and conditions of a map whose threads have strips of neighbours (`mlirc.strip`), as linear forms over what
is known of a thread's place: so that two neighbours that read one element have one load of it, and what is inside of a
tensor for every thread is not tested.

Of an element in a strip all but the ends' neighbours lie in the tensor, whichever strip it is: coordinates are sums of
where a thread's registers begin, which has a range, and of constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlirc.mlir import arith, ir, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, vec
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.graph.evaluate import map_results
from mlirc.passes.graph.index import INFINITY, Index

_SLT, _SLE, _SGT, _SGE = 2, 3, 4, 5


class Strips:
    """The index arithmetic of one body over a layout of its iteration space.

    `sizes`: exact extents; `scalars`: what lowers values from outside of the body."""

    def __init__(self, em: Emitter, layout: Layout, sizes: list[IndexValue], scalars: Callable, block: ir.Block):
        self.em, self.layout, self.sizes, self.scalars, self.block = em, layout, sizes, scalars, block
        self.loads: dict[tuple, ir.Value] = {}
        self._forms: dict[tuple[ir.Value, int], Index | None] = {}
        self._values: dict[Index, IndexValue] = {}
        self._atoms: dict[Any, tuple] = {}  # by what they are: a value, or a coordinate
        self._parts: dict[tuple, IndexValue] = {}  # what an atom is
        self._conditions: dict[tuple, ir.Value] = {}
        self._words: dict[ir.Value, ir.Value] = {}  # of pairs that were chosen
        self._decided = {truth: em.constant(ir.BoolAttr.get(truth)) for truth in (True, False)}
        for op in block.operations:
            for value in op.operation.operands:
                if isinstance(value.type, ir.IndexType) and not self._is_inside(value):
                    self._outside(value)

    def index(self, value: ir.Value, register: int) -> IndexValue | None:
        """An index at a register; None for one that is no linear form."""
        form = self.form(value, register)
        return None if form is None else self.value(form)

    def form(self, value: ir.Value, register: int) -> Index | None:
        key = value, register
        if key not in self._forms:
            self._forms[key] = self._form(value, register)
        return self._forms[key]

    def _is_inside(self, value: ir.Value) -> bool:
        owner = value.owner
        return owner == self.block if isinstance(owner, ir.Block) else owner.operation.block == self.block

    def _form(self, value: ir.Value, register: int) -> Index | None:
        if not isinstance(value.type, ir.IndexType) or isinstance(value.owner, ir.Block) and self._is_inside(value):
            return None
        if not self._is_inside(value):
            return self._outside(value)
        op = value.owner
        if op.name == "linalg.index":
            return self.coordinate(ir.IntegerAttr(op.attributes["dim"]).value, register)
        forms = [self.form(v, register) for v in op.operands]
        if None in forms or op.name not in ("arith.addi", "arith.muli", "arith.maxsi", "arith.minsi"):
            return None
        a, b = (f for f in forms if f is not None)
        if op.name == "arith.addi":
            return a + b
        if a.terms and b.terms:
            return None
        form, constant = (a, b.const) if not b.terms else (b, a.const)
        return form * constant if op.name == "arith.muli" else _bounded(op.name, form, constant)

    def _outside(self, value: ir.Value) -> Index:
        """A value from outside of the body."""
        found = self.scalars(value)
        if isinstance(found, ir.Value) and found.owner.name == "arith.constant":  # not a block argument: an index
            found = ir.IntegerAttr(found.owner.attributes["value"]).value
        return Index(found) if isinstance(found, int) else self._atom(found, found, _most(value))

    def offset(self, value: IndexValue) -> Index:
        """A form of what the emitter knows already."""
        return Index(value) if isinstance(value, int) else self._atom(value, value, INFINITY)

    def _atom(self, key: Any, part: IndexValue, most: int) -> Index:
        if key not in self._atoms:
            self._atoms[key] = ("d", ("strips", len(self._atoms)), most + 1)
            self._parts[self._atoms[key]] = part
        return Index(0, {self._atoms[key]: 1})

    def coordinate(self, dim: int, register: int) -> Index:
        """The coordinate along a dimension: where the thread's registers begin, and a constant. A thread without any
        element of the tile has one of another thread's."""
        em, layout, size = self.em, self.layout, self.sizes[dim]
        offsets = layout.reg_offsets[:, dim]
        offset, span = int(offsets[register]), int(np.max(offsets)) + 1
        weights = [(f.size - 1, weight) for kind in "lw" for f, weight in layout.thread_factors(dim, kind)]
        most = sum(count * weight for count, weight in weights)
        if isinstance(size, int) and most + span <= size:
            return self._atom(("start", dim), em.team.thread_part(layout, dim), most) + offset
        if isinstance(size, int) and size % span == 0 and all(weight % span == 0 for _, weight in weights):
            return (
                self._atom(("start", dim), em.min(em.team.thread_part(layout, dim), size - span), size - span) + offset
            )
        found, _ = access.coordinate(em, layout, dim, register, size, 1, False)
        return Index(found) if isinstance(found, int) else self._atom((dim, offset), found, INFINITY)

    def value(self, index: Index) -> IndexValue:
        """A form as an index."""
        if index not in self._values:
            total: IndexValue = 0
            if index.const and index.terms:
                total = self.value(Index(0, index.terms))
            else:
                for atom, factor in index.terms.items():
                    total = self.em.add(total, self.em.mul(self._part(atom), factor))
            self._values[index] = self.em.add(total, index.const)
        return self._values[index]

    def _part(self, atom: tuple) -> IndexValue:
        if atom[0] != "clamp":
            return self._parts[atom]
        (low, high), value = atom[1].range(), self.value(atom[1])
        if low < 0:
            value = arith.MaxSIOp(self.em.value(value), self.em.c(0)).result
        return arith.MinSIOp(self.em.value(value), self.em.c(atom[2] - 1)).result if high >= atom[2] else value

    # -- conditions

    def condition(self, op: ir.Operation, register: int, operands: Callable[[ir.Value], ir.Value]) -> ir.Value | None:
        """A comparison of indices, or what two conditions have in common, decided where ranges do; None for another
        op."""
        if op.name == "arith.andi" and str(op.results[0].type) == "i1":
            first, second = (operands(v) for v in op.operands)
            for a, b in ((first, second), (second, first)):
                if self.decided(a) is not None:
                    return b if self.decided(a) else a
            return self._once((op.name, first, second), lambda: arith.AndIOp(first, second).result)
        if op.name != "arith.cmpi":
            return None
        a, b = (self.form(v, register) for v in op.operands)
        predicate = ir.IntegerAttr(op.attributes["predicate"]).value
        if a is None or b is None or predicate not in (_SLT, _SLE, _SGT, _SGE):
            return None
        low, high = (a - b).range()
        below, above = (high < 0, low >= 0), (high <= 0, low > 0)  # surely, surely not
        true, false = {_SLT: below, _SLE: above, _SGT: above[::-1], _SGE: below[::-1]}[predicate]
        if true or false:
            return self._decided[true]
        difference = a - b
        left, right = self.value(Index(0, difference.terms)), -difference.const
        made = lambda: arith.CmpIOp(predicate, self.em.value(left), self.em.c(right)).result  # noqa: E731
        return self._once((predicate, difference), made)

    def decided(self, condition: ir.Value) -> bool | None:
        """What a condition always is; None where that depends on the thread."""
        return next((truth for truth, value in self._decided.items() if value == condition), None)

    # -- pairs of 16 bits

    def in_words(self, name: str, operands: list[ir.Value]) -> ir.Value | None:
        """What a condition chooses of bf16, as words of two, and what is widened of such words; None for another op. An
        optimizer would widen first, and choose each element by itself."""
        if name == "arith.select" and is_pairs(operands[1].type):
            n, i32 = ir.VectorType(operands[1].type).shape[0] // 2, ir.IntegerType.get_signless(32)
            chosen = [vector.BitCastOp(vec(i32, n), v).result for v in operands[1:]]
            words = arith.SelectOp(operands[0], *chosen).result
            pairs = vector.BitCastOp(operands[1].type, words).result
            self._words[pairs] = words
            return pairs
        words = self._words.get(operands[0]) if name == "arith.extf" else None
        return None if words is None else self._widened(words)

    def _widened(self, words: ir.Value) -> ir.Value:
        em, n, i32 = self.em, ir.VectorType(words.type).shape[0], ir.IntegerType.get_signless(32)
        low = arith.ShLIOp(words, em.constant(ir.IntegerAttr.get(i32, 16), n)).result
        high = arith.AndIOp(words, em.constant(ir.IntegerAttr.get(i32, -(1 << 16)), n)).result
        f32 = vec(ir.F32Type.get(), n)
        low, high = (arith.BitcastOp(f32, v).result for v in (low, high))
        return em.pack([em.extract(v, i) for i in range(n) for v in (low, high)])

    def _once(self, key: tuple, make: Callable[[], ir.Value]) -> ir.Value:
        if key not in self._conditions:
            self._conditions[key] = make()
        return self._conditions[key]


def is_pairs(type_: ir.Type) -> bool:
    """Whether a type is a vector of an even number of bf16."""
    return isinstance(type_, ir.VectorType) and str(type_.element_type) == "bf16" and type_.shape[0] % 2 == 0


def _bounded(name: str, form: Index, limit: int) -> Index | None:
    """max(form, 0), or min(form, limit) of what is not negative; None for other bounds."""
    low, high = form.range()
    if name == "arith.maxsi":
        if low >= limit:
            return form
        return form.clamp(max(high, 0) + 1) if limit == 0 else None
    if high <= limit:
        return form
    if low < 0:
        return None
    ((atom, factor), *more) = form.terms.items()
    inner = atom[1] if atom[0] == "clamp" and factor == 1 and not more and not form.const else form
    return inner.clamp(limit + 1)


def _most(value: ir.Value) -> int:
    """The most that a multiple of a block's number is; INFINITY for another value."""
    maps, numbers = [], value
    if not isinstance(value.owner, ir.Block) and value.owner.name == "affine.apply" and len(value.owner.operands) == 1:
        maps = [ir.AffineMapAttr(value.owner.attributes["map"]).value]
        numbers = value.owner.operands[0]
    if not isinstance(numbers.owner, ir.Block) or numbers.owner.owner.name != "scf.forall":
        return INFINITY
    bounds = list(ir.DenseI64ArrayAttr(numbers.owner.owner.attributes["staticUpperBound"]))
    number = ir.BlockArgument(numbers).arg_number
    if number >= len(bounds) or bounds[number] < 0:
        return INFINITY
    index = Index(0, {("d", "block", bounds[number]): 1})
    for map_ in maps:
        if map_.n_symbols:
            return INFINITY
        (index,) = (f([index]) for f in map_results(map_))
    return index.range()[1]
