"""Keys: integers without sign whose order is that of the elements that a sort has in front of others."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.dialects.sort import SortInfo
from mlirc.mlir import arith, ir, memref
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue

ULT, EQ, UNE = arith.CmpIPredicate.ult, arith.CmpIPredicate.eq, arith.CmpFPredicate.UNE


@dataclass(frozen=True)
class Pair:
    """An element: its `key`, and its `place` in the row (i32)."""

    key: ir.Value
    place: ir.Value


class Keys:
    """The keys of a sort's elements: of i32, or of i64 for elements of 64 bits. `bits` of them count."""

    def __init__(self, em: Emitter, info: SortInfo) -> None:
        self.em, self.info = em, info
        self.bits = info.element.width
        self.i32 = ir.IntegerType.get_signless(32)
        self.type = ir.IntegerType.get_signless(max(self.bits, 32))
        self.own = ir.IntegerType.get_signless(self.bits)

    def of(self, x: ir.Value) -> ir.Value:
        """The key of an element."""
        sign = self._own(-(1 << (self.bits - 1)))
        if isinstance(self.info.element, ir.FloatType):
            zero = self.em.constant(ir.FloatAttr.get(self.info.element, 0.0))
            bits = arith.BitcastOp(self.own, x).result
            bits = arith.SelectOp(arith.CmpFOp(arith.CmpFPredicate.OEQ, x, zero).result, self._own(0), bits).result
            negative = arith.CmpIOp(arith.CmpIPredicate.slt, bits, self._own(0)).result
            key = arith.XOrIOp(bits, arith.SelectOp(negative, self._own(-1), sign).result).result
            key = arith.SelectOp(arith.CmpFOp(UNE, x, x).result, self._own(-1), key).result
        else:
            key = arith.XOrIOp(x, sign).result
        if self.info.descending:
            key = arith.XOrIOp(key, self._own(-1)).result
        return arith.ExtUIOp(self.type, key).result if self.bits < 32 else key

    def load(self, x: ir.Value, row: IndexValue, place: IndexValue) -> ir.Value:
        """The key of a row's element."""
        return self.of(memref.LoadOp(x, [self.em.value(row), self.em.value(place)]).result)

    def constant(self, value: int) -> ir.Value:
        """A key."""
        return self.em.constant(ir.IntegerAttr.get(self.type, signed(value, self.type.width)))

    @property
    def last(self) -> ir.Value:
        """The largest key that there is."""
        return self.constant((1 << self.bits) - 1)

    def digit(self, key: ir.Value, shift: int, bits: int) -> ir.Value:
        """Bits of a key (or of a place) as an i32."""
        t = ir.IntegerType(key.type)
        shifted = arith.ShRUIOp(key, self.em.constant(ir.IntegerAttr.get(t, shift))).result if shift else key
        low = arith.TruncIOp(self.i32, shifted).result if t.width > 32 else shifted
        return arith.AndIOp(low, self.number((1 << bits) - 1)).result

    def number(self, value: int) -> ir.Value:
        """An i32."""
        return self.em.constant(ir.IntegerAttr.get(self.i32, signed(value, 32)))

    def place(self, index: IndexValue) -> ir.Value:
        """An index as an i32."""
        return self.number(index) if isinstance(index, int) else arith.IndexCastOp(self.i32, index).result

    def index(self, place: ir.Value) -> ir.Value:
        """An i32 as an index."""
        return arith.IndexCastOp(self.em.index, place).result

    def before(self, a: Pair, b: Pair) -> ir.Value:
        """Whether one element stands in front of another one."""
        equal = arith.CmpIOp(EQ, a.key, b.key).result
        earlier = arith.AndIOp(equal, arith.CmpIOp(ULT, a.place, b.place).result).result
        return arith.OrIOp(arith.CmpIOp(ULT, a.key, b.key).result, earlier).result

    def store(self, x: ir.Value, results: list[ir.Value], row: IndexValue, at: IndexValue, place: ir.Value) -> None:
        """Writes the results at a place of the sorted row, from where in the row it is."""
        em = self.em
        where = [em.value(row), em.value(at)]
        memref.StoreOp(memref.LoadOp(x, [em.value(row), self.index(place)]).result, results[0], where)
        memref.StoreOp(arith.ExtUIOp(ir.IntegerType.get_signless(64), place).result, results[1], where)

    def _own(self, value: int) -> ir.Value:
        return self.em.constant(ir.IntegerAttr.get(self.own, value))


def signed(value: int, width: int) -> int:
    """A number without sign as one with a sign of the same bits."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def select(condition: ir.Value, a: Pair, b: Pair) -> Pair:
    """One of two elements."""
    return Pair(arith.SelectOp(condition, a.key, b.key).result, arith.SelectOp(condition, a.place, b.place).result)
