"""Maps that unpack weights (`mlirc.dequantize`) on fragments: where in memory a thread's elements lie is known but for
its lane, its warp and the loop, so that a word that has several of them is loaded once, four words in a row together,
and shifts are constants where they can be.

Index arithmetic of the body is done on linear forms (`Index`) over digits of the lane's and the warp's number, and over
scalars, of which a power of two is known that divides them."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

from mlirc.mlir import arith, ir, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.graph.index import INFINITY, Index

RUN = 4  # words that are loaded together: 16 bytes
_ARITHMETIC = {"arith.addi", "arith.muli", "arith.divui", "arith.remui", "arith.shli"}


def floor_of(index: Index, n: int) -> Index:
    """floor(index / n), n > 0. What together cannot carry into the terms that a divisor of n divides is dropped."""
    for g in sorted((d for d in range(1, n + 1) if n % d == 0), reverse=True):
        small = Index(index.const % g, {a: c for a, c in index.terms.items() if c % g})
        low, high = small.range()
        if 0 <= low and high < g:
            large = Index(index.const - index.const % g, {a: c for a, c in index.terms.items() if c % g == 0})
            return large.floordiv(n)
    return index.floordiv(n)


class Unpacking:
    """The index arithmetic of one body over a layout of its iteration space.

    `sizes`: exact extents; `scalars`: what lowers values from outside of the body."""

    def __init__(self, em: Emitter, layout: Layout, sizes: list[IndexValue], scalars: Callable[[ir.Value], Any]):
        self.em, self.layout, self.sizes, self.scalars = em, layout, sizes, scalars
        self._parts: dict[Any, tuple[ir.Value, int]] = {}  # atoms' values, and what they are multiples of
        self._values: dict[Index, IndexValue] = {}
        self._loaded: dict[tuple, ir.Value] = {}
        self._forms: dict[tuple[ir.Value, int], Index | None] = {}

    def form(self, value: ir.Value, register: int) -> Index | None:
        """An index (or a cast of one) at a register as a linear form; None for another value."""
        key = value, register
        if key not in self._forms:
            self._forms[key] = self._form(value, register)
        return self._forms[key]

    def _form(self, value: ir.Value, register: int) -> Index | None:
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name == "arith.constant" or not self._inside(owner):
            return self._outside(value)
        if owner.name == "linalg.index":
            return self._coordinate(ir.IntegerAttr(owner.attributes["dim"]).value, register)
        if owner.name == "arith.index_cast":
            return self.form(owner.operands[0], register)
        if owner.name not in _ARITHMETIC:
            return None
        a, b = (self.form(v, register) for v in owner.operands)
        if a is None or b is None:
            return None
        if owner.name == "arith.addi":
            return a + b
        if owner.name == "arith.muli" and not (a.terms and b.terms):
            return a * b.const if not b.terms else b * a.const
        if owner.name == "arith.shli" and not b.terms and 0 <= b.const < 31:
            return a * (1 << b.const)
        if owner.name in ("arith.muli", "arith.addi", "arith.shli") or b.terms or b.const <= 0:
            return None
        whole = floor_of(a, b.const)
        return whole if owner.name == "arith.divui" else a - whole * b.const

    @staticmethod
    def _inside(owner: Any) -> bool:
        return owner.operation.parent.name == "linalg.generic"

    def _outside(self, value: ir.Value) -> Index | None:
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.name == "arith.constant":
            attribute = owner.attributes["value"]
            return Index(attribute.value) if isinstance(attribute, ir.IntegerAttr) else None
        if not isinstance(value.type, ir.IndexType):
            return None
        found = self.scalars(value)
        if isinstance(found, int):
            return Index(found)
        constant = found.owner
        if not isinstance(constant, ir.Block) and constant.name == "arith.constant":
            return Index(ir.IntegerAttr(constant.attributes["value"]).value)
        divisor = self.em.divisor(found)
        atom = ("d", ("value", found), INFINITY // max(divisor, 1))
        self._parts[atom] = found, divisor
        return Index(0, {atom: divisor})

    def _coordinate(self, dim: int, register: int) -> Index:
        em, team = self.em, self.em.team
        terms: dict[Any, int] = {}
        for kind, number in (("l", em.lane), ("w", team.warp)):
            for f, weight in self.layout.thread_factors(dim, kind):
                atom = ("d", (kind, f.stride), f.size)
                if isinstance(number, int):
                    continue  # the only warp
                if atom not in self._parts:
                    with em.at_entry():
                        digit = em.rem(em.div(number, f.stride), f.size)
                    self._parts[atom] = em.value(digit), 1
                terms[atom] = terms.get(atom, 0) + weight
        return Index(int(self.layout.reg_offsets[register, dim]), terms)

    def value(self, index: Index) -> IndexValue:
        """A form as an index."""
        if index not in self._values:
            total: IndexValue = 0
            for atom, factor in index.terms.items():
                total = self.em.add(total, self._term(atom, factor))
            self._values[index] = self.em.add(total, index.const)
        return self._values[index]

    def _term(self, atom: Any, factor: int) -> IndexValue:
        em = self.em
        if atom[0] == "div":
            return em.mul(em.div(self.value(atom[1]), atom[2]), factor)
        part, divisor = self._parts[atom]
        common = gcd(divisor, factor)
        return em.mul(em.div(part, divisor // common), factor // common)

    # -- halves of words

    def in_halves(self, op: ir.Operation, registers: list[int]) -> bool:
        """Whether a shift to the right takes the lower half of a word and then its upper one, again and again, and no
        more of them is looked at than a half has."""
        word, shift = op.operands
        if len(registers) < 2 or str(word.type) != "i32":
            return False
        if not all(self._looks_at_a_half(use, r) for use in op.result.uses for r in registers):
            return False
        pairs = list(zip(registers[::2], registers[1::2], strict=True))
        halves = [(self.form(shift, a), self.form(shift, b)) for a, b in pairs]
        return all(h == (Index(), Index(16)) for h in halves) and all(self.is_same(word, *pair) for pair in pairs)

    def _looks_at_a_half(self, use: ir.OpOperand, register: int) -> bool:
        """Whether a use of a 32-bit number keeps none of its upper 16 bits."""
        op = use.owner
        if op.name == "arith.trunci":
            return ir.IntegerType(op.results[0].type).width <= 16
        masks = [self.form(v, register) for v in op.operands] if op.name == "arith.andi" else []
        return any(m is not None and not m.terms and 0 <= m.const < 1 << 16 for m in masks)

    def is_same(self, value: ir.Value, a: int, b: int) -> bool:
        """Whether a value is known to be the same at two registers."""
        form = self.form(value, a)
        if form is not None:
            return form == self.form(value, b)
        owner = value.owner
        known = not isinstance(owner, ir.Block) and (owner.name == "tensor.extract" or owner.name.startswith("arith."))
        values = list(owner.operands)[owner.name == "tensor.extract" :] if known else []
        return known and all(self.is_same(v, a, b) for v in values)

    # -- loads

    def exact(self, dims: frozenset[int]) -> bool:
        """Whether no coordinate along these dimensions lies beyond the tile."""
        return all(isinstance(n := self.sizes[d], int) and self.layout.shape[d] <= n for d in dims)

    def load(self, view: access.View, forms: list[Index], exact: bool, together: bool) -> ir.Value:
        """One element; with `together` as one of the run of words that it lies in. Not `exact`: kept in the tensor."""
        shape = view.shape
        start, within = self.in_run(forms[-1]) if together and shape[-1] % RUN == 0 else (forms[-1], None)
        run = 1 if within is None else RUN
        key = view.base, (*forms[:-1], start), run
        if key not in self._loaded:
            indices = [self.value(f) for f in (*forms[:-1], start)]
            if not exact:
                most = [n - (run if i == len(shape) - 1 else 1) for i, n in enumerate(shape)]
                indices = [self.em.min(i, n) for i, n in zip(indices, most, strict=True)]
            place = list(view.offsets)
            for d, index in zip(view.dims, indices, strict=True):
                place[d] = self.em.add(place[d], index)
            once = run > 1 and view.shared is None
            place = access.placed(self.em, view, place)
            self._loaded[key] = access.load_elements(self.em, view, place, run, once=once)
        loaded = self._loaded[key]
        return loaded if within is None else self._one_of(loaded, within)

    def in_run(self, last: Index) -> tuple[Index, Index | None]:
        """(where the aligned run begins that has an element, the element's place in it); of one that threads may have
        in several runs, (its own place, None)."""
        within = Index(last.const % RUN, {a: c for a, c in last.terms.items() if c % RUN})
        low, high = within.range()
        return (last - within, within) if 0 <= low and high < RUN else (last, None)

    def _one_of(self, loaded: ir.Value, within: Index) -> ir.Value:
        """An element of a run, whose place may be another one in each thread."""
        low, high = within.range()
        found = self.em.extract(loaded, high)
        for place in reversed(range(low, high)):
            here = self.em.condition(self.em.equal(self.value(within), place))
            found = arith.SelectOp(here, self.em.extract(loaded, place), found).result
        return found

    def pack(self, forms: list[Index], element: ir.Type) -> ir.Value:
        """Forms as one value of an integer type, or of type index."""
        values = [self.value(f) for f in forms]
        if all(isinstance(v, int) for v in values):
            if isinstance(element, ir.IndexType):
                return self.em.pack([self.em.value(v) for v in values])
            attributes = [ir.IntegerAttr.get(element, v) for v in values]
            if len(values) == 1:
                return self.em.constant(attributes[0])
            dense = ir.DenseElementsAttr.get(attributes, ir.VectorType.get([len(values)], element))
            return arith.ConstantOp(dense.type, dense).result
        indices = [self.em.value(v) for v in values]
        if isinstance(element, ir.IndexType):
            return self.em.pack(indices)
        return self.em.pack([arith.IndexCastOp(element, v).result for v in indices])


def halves(em: Emitter, words: ir.Value, count: int) -> ir.Value:
    """The lower and the upper half of every second word, as numbers of 32 bits without the upper ones: what stands in
    two registers of 16 bits is there already, where shifting each would be two instructions."""
    i16, i32 = (ir.IntegerType.get_signless(n) for n in (16, 32))
    found = []
    for i in range(0, count, 2):
        word = vector.BroadcastOp(ir.VectorType.get([1], i32), em.extract(words, i)).result
        both = vector.BitCastOp(ir.VectorType.get([2], i16), word).result
        found += [em.extract(both, j) for j in range(2)]
    return arith.ExtUIOp(ir.VectorType.get([count], i32), em.pack(found)).result
