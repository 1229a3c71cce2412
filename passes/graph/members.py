"""Maps over rows of a product, as maps over its *members*: with heads of J * I rows, element (h, j * I + i) of such a
map is element (h, i) of its j-th member. Where each member reads the members of the product at its own (h, i) alone, as
a rotation reads the halves of a head, who computes these rows of the product computes those of the map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlirc.dialects.schedule import _build
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir, linalg
from mlirc.passes.graph.classify import body, generic_inits, is_map_generic, maps
from mlirc.passes.graph.emit import make_generic

_NUMBERS = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply,
    "arith.minsi": np.minimum, "arith.maxsi": np.maximum, "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}  # fmt: skip
_SIGNED = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)  # by predicate


class NoMembers(Exception):
    """A map is none over members."""


@dataclass(frozen=True)
class Heads:
    """How the rows of a product are cut: row (g * members + j) * width + i is row (g, i) of member j."""

    count: int
    members: int
    width: int

    @property
    def rows(self) -> int:
        """Of a head."""
        return self.members * self.width


class Member:
    """Member `j` of a map of shape [heads, rows of a head], or of one head's rows, that reads `product`, a tensor whose
    elements are rows cut as `cut` says. Head h of the map is head `first + step * h` of the product. Raises NoMembers
    for any other map."""

    def __init__(self, op: ir.Operation, product: ir.Value, cut: Heads, j: int) -> None:
        self.op, self.product, self.cut, self.j = op, product, cut, j
        if not is_map_generic(op) or len(op.results) != 1 or generic_inits(op) != 1:
            raise NoMembers
        shape = shape_of(op.results[0])
        self.rank = len(shape)  # 1: of one head
        if self.rank not in (1, 2) or shape[-1] != cut.rows or maps(op)[-1] != ir.AffineMap.get_identity(self.rank):
            raise NoMembers
        self.heads = shape[0] if self.rank == 2 else 1
        self.first = self.step = -1
        read = zip(op.operands, maps(op), strict=True)
        self.arguments = dict(zip(op.regions[0].blocks[0].arguments, read, strict=True))
        self.number: dict[ir.Value, np.ndarray | None] = {}
        self.reads: dict[ir.Value, int] = {}  # what reads the product -> the member that it reads
        self.inputs: list[ir.Value] = []  # block arguments that are needed, in order
        self._visit(body(op)[-1].operands[0], set())
        if self.first < 0:
            raise NoMembers

    def _numbers(self, value: ir.Value) -> np.ndarray | None:
        """An index at all (h, i); None where it depends on data."""
        if value not in self.number:
            self.number[value] = self._numbers_of(value)
        return self.number[value]

    def _numbers_of(self, value: ir.Value) -> np.ndarray | None:
        if isinstance(value.owner, ir.Block):
            return None
        op = value.owner.operation
        shape = self.heads, self.cut.width
        if op.name == "linalg.index":
            h, i = np.indices(shape)
            own = ir.IntegerAttr(op.attributes["dim"]).value == self.rank - 1
            return i + self.j * self.cut.width if own else h
        if op.name == "arith.constant":
            attribute = op.attributes["value"]
            return np.full(shape, attribute.value) if isinstance(attribute, ir.IntegerAttr) else None
        found = [self._numbers(v) for v in op.operands]
        operands = [n for n in found if n is not None]
        if len(operands) < len(found):
            return None
        if op.name in _NUMBERS:
            return _NUMBERS[op.name](*operands)
        if op.name == "arith.cmpi":
            predicate = ir.IntegerAttr(op.attributes["predicate"]).value
            return _SIGNED[predicate](*operands) if predicate < len(_SIGNED) else None
        if op.name == "arith.select":
            condition, one, other = operands
            return np.where(condition, one, other)
        return operands[0] if op.name in ("arith.index_cast", "arith.extsi") else None

    def chosen(self, op: ir.Operation) -> ir.Value | None:
        """The operand that a selection takes at all (h, i); None for any other op."""
        condition = self._numbers(op.operands[0]) if op.name == "arith.select" else None
        if condition is None or not (condition.all() or not condition.any()):
            return None
        return op.operands[1 if condition.all() else 2]

    def _visit(self, value: ir.Value, seen: set[ir.Value]) -> None:
        """Notes what a value needs."""
        if value in seen:
            return
        seen.add(value)
        if isinstance(value.owner, ir.Block):
            self._note_input(value)
            return
        op = value.owner.operation
        if op.block != self.op.regions[0].blocks[0]:
            if op.name != "arith.constant":
                raise NoMembers
            return
        if op.name == "tensor.extract" and op.operands[0] == self.product:
            self._note_read(op)
            return
        if (taken := self.chosen(op)) is not None:
            self._visit(taken, seen)
            return
        if op.name.split(".")[0] not in ("arith", "math") or op.regions or self._numbers(value) is not None:
            raise NoMembers  # an index as a value, or a table that is read at it
        for operand in op.operands:
            self._visit(operand, seen)

    def _note_input(self, value: ir.Value) -> None:
        if value not in self.arguments:
            raise NoMembers
        operand, map_ = self.arguments[value]
        if operand == self.product:
            raise NoMembers
        for e in map_.results:
            if not (isinstance(e, ir.AffineConstantExpr) and e.value == 0) and e != ir.AffineExpr.get_dim(
                self.rank - 1
            ):
                raise NoMembers
        self.inputs.append(value)

    def _note_read(self, op: ir.Operation) -> None:
        linear = np.zeros((self.heads, self.cut.width), dtype=np.int64)
        for n, index in zip(shape_of(self.product), list(op.operands)[1:], strict=True):
            found = self._numbers(index)
            if found is None:
                raise NoMembers
            linear = linear * n + found
        rows = linear.reshape(self.heads, self.cut.width)
        head, rest = np.divmod(rows, self.cut.rows)
        member, i = np.divmod(rest, self.cut.width)
        first, step = int(head[0, 0]), int(head[1, 0] - head[0, 0]) if self.heads > 1 else 1
        h, own = np.indices(rows.shape)
        if (i != own).any() or (member != member[0, 0]).any() or (head != first + step * h).any() or step < 1:
            raise NoMembers
        if self.first >= 0 and (self.first, self.step) != (first, step):
            raise NoMembers
        if first < 0 or first + step * (self.heads - 1) >= self.cut.count:
            raise NoMembers
        self.first, self.step = first, step
        self.reads[op.results[0]] = int(member[0, 0])

    def build(self, members: list[ir.Value], input_of) -> ir.Value:
        """The member over all heads of the product, [1, heads, width], at the insertion point: `members` are the
        product's, of that shape, `input_of(operand, dim)` the part of an operand along its dimension `dim` (None: it
        has none of the head's rows) that belongs to this member."""
        needed = sorted(set(self.reads.values()))
        d = [ir.AffineExpr.get_dim(n) for n in range(3)]
        zero = ir.AffineExpr.get_constant(0)
        operands, found = [members[n] for n in needed], [ir.AffineMap.get_identity(3) for _ in needed]
        for argument in self.inputs:
            operand, map_ = self.arguments[argument]
            if not isinstance(operand.type, ir.RankedTensorType):
                operands.append(input_of(operand, None))
                found.append(ir.AffineMap.get(3, 0, []))
                continue
            own = [k for k, e in enumerate(map_.results) if isinstance(e, ir.AffineDimExpr)]
            operands.append(input_of(operand, own[0] if own else None))
            exprs = [d[2] if isinstance(e, ir.AffineDimExpr) else zero for e in map_.results]
            found.append(ir.AffineMap.get(3, 0, exprs))
        element = ir.RankedTensorType(self.op.results[0].type).element_type
        out = _build.empty(list(shape_of(members[0])), element)
        maps_ = [*found, ir.AffineMap.get_identity(3)]
        new = make_generic(operands, [out], maps_, ["parallel"] * 3)
        block = new.regions[0].blocks[0]
        places: dict[ir.Value, ir.Value] = dict(zip(self.inputs, list(block.arguments)[len(needed) :], strict=False))
        places |= {read: block.arguments[needed.index(n)] for read, n in self.reads.items()}
        with ir.InsertionPoint(block):
            linalg.YieldOp([self._cloned(body(self.op)[-1].operands[0], places)])
        return new.results[0]

    def _cloned(self, value: ir.Value, places: dict[ir.Value, ir.Value]) -> ir.Value:
        if value in places:
            return places[value]
        op = value.owner.operation
        if (taken := self.chosen(op)) is not None:
            places[value] = self._cloned(taken, places)
            return places[value]
        operands = [self._cloned(v, places) for v in op.operands]
        new = op.clone()
        for n, v in enumerate(operands):
            new.operation.operands[n] = v
        places |= dict(zip(op.results, new.operation.results, strict=True))
        return places[value]
