"""What the blocks of a recurrence's launch do."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.ir.recurrences import Operand, Recurrence
from mlirc.mlir import arith, gpu, ir, memref, scf
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.distribute.tiles.elementwise import elementwise_op
from mlirc.passes.recurrence.barrier import Barrier
from mlirc.passes.recurrence.geometry import Geometry
from mlirc.passes.recurrence.products import Fma
from mlirc.passes.recurrence.tensor_cores import Mma, ThreeTf32

PRODUCTS = {"fma": Fma, "mma": Mma, "tf32x3": ThreeTf32}


class Body:
    """Builds what the blocks of one recurrence do, the first of which is number 0."""

    def __init__(self, em: Emitter, recurrence: Recurrence, g: Geometry, buffers, counter: str, block: IndexValue):
        self.em, self.r, self.g, self.buffers = em, recurrence, g, buffers
        self.first = em.mul(block, g.own)  # of the block's units
        self.f32 = ir.F32Type.get()
        self.barrier = Barrier(em, g.blocks, recurrence.steps, counter)
        self.products = PRODUCTS[g.instruction](em, recurrence, g, buffers, self.first)
        self.returned = {number: buffers.results[i] for i, number in recurrence.returned.items()}
        self.states = len(recurrence.starts)

    def build(self) -> None:
        em, g, r = self.em, self.g, self.r
        self.products.keep()
        own = [self._pair(p) for p in range(g.pairs)]
        starts = [self._at(self.buffers.arguments[s], pair) for pair in own for s in r.starts]
        loop = scf.ForOp(em.c(0), em.c(r.steps), em.c(1), starts)
        with ir.InsertionPoint(loop.body):
            step = loop.induction_variable
            row = em.sub(r.steps - 1, step) if r.reverse else step
            given = [self._given(pair, row) for pair in own]
            self.barrier.wait(step)
            self.products.multiply(step)
            gpu.BarrierOp()
            carries = list(loop.inner_iter_args)
            made = [
                self._gates(pair, reads, carries[p * self.states : (p + 1) * self.states])
                for p, (pair, reads) in enumerate(zip(own, given, strict=True))
            ]
            self._hand_on(own, made, step)
            self.barrier.arrive()
            self._store_rows(own, made, row)
            scf.YieldOp([results[n] for results in made for n in r.makes])
        for number, buffer in self.returned.items():
            if number < self.states:
                for p, pair in enumerate(own):
                    with predicated(pair.there):
                        self._store(buffer, [pair.row, pair.unit], loop.results[p * self.states + number])

    # -- gates

    def _pair(self, number: int) -> Pair:
        em, g = self.em, self.g
        place = em.add(em.block_thread, number * 32 * g.warps)
        row, own = em.div(place, g.own), em.rem(place, g.own)
        unit = em.add(self.first, own)
        there = em.both(em.less(row, g.batch), em.less(unit, g.units))
        return Pair(em.min(row, g.batch - 1), own, em.min(unit, g.units - 1), em.condition(there))

    def _at(self, base: ir.Value, pair: Pair) -> ir.Value:
        return self._load(base, [pair.row, pair.unit])

    def _load(self, base: ir.Value, indices: Sequence[IndexValue], truth: bool = False) -> ir.Value:
        value = memref.LoadOp(base, [self.em.value(i) for i in indices]).result
        if truth:
            zero = self.em.constant(ir.IntegerAttr.get(value.type, 0))
            return arith.CmpIOp(arith.CmpIPredicate.ne, value, zero).result
        return value

    def _given(self, pair: Pair, row: IndexValue) -> dict[int, ir.Value]:
        """What the gates of a pair read of arguments in this step."""
        found = {}
        block = self.r.gate_body.regions[0].blocks[0]
        for i, operand in enumerate(self.r.operands):
            if operand.kind not in ("slice", "argument"):
                continue
            base = self.buffers.arguments[operand.number]
            indices = self._indices(operand, pair)
            truth = str(block.arguments[i].type) == "i1"
            found[i] = self._load(base, [row, *indices] if operand.kind == "slice" else indices, truth)
        return found

    def _indices(self, operand: Operand, pair: Pair) -> list[IndexValue]:
        return [self.em.affine(e, [pair.row, pair.unit]) for e in operand.at.results]

    def _gates(self, pair: Pair, given: dict[int, ir.Value], carries: Sequence[ir.Value]) -> list[ir.Value]:
        """The gates' results of a pair."""
        block = self.r.gate_body.regions[0].blocks[0]
        values: dict[ir.Value, ir.Value] = {}
        totals: dict[int, ir.Value] = {}
        for i, operand in enumerate(self.r.operands):
            if operand.kind == "carry":
                values[block.arguments[i]] = carries[operand.number]
            elif operand.kind == "product":
                gate = self._gate(operand)
                if gate not in totals:
                    totals[gate] = self._total(pair, gate)
                values[block.arguments[i]] = totals[gate]
            else:
                values[block.arguments[i]] = given[i]
        *ops, end = [o.operation for o in block.operations]
        for op in ops:
            attributes = {name: op.attributes[name] for name in op.attributes}
            operands = [self._value(v, values) for v in op.operands]
            made = elementwise_op(op.name, [r.type for r in op.results], operands, attributes)
            values |= dict(zip(op.results, made, strict=True))
        return [self._value(v, values) for v in end.operands]

    def _value(self, value: ir.Value, values: dict[ir.Value, ir.Value]) -> ir.Value:
        """A value of the gates' body here; constants may be defined outside of it."""
        return values[value] if value in values else self.em.constant(value.owner.attributes["value"])

    def _gate(self, operand: Operand) -> int:
        """The number of the gate whose product an operand is."""
        column = operand.at.results[1]
        return 0 if isinstance(column, ir.AffineDimExpr) else _constant(column) // self.g.units

    def _total(self, pair: Pair, gate: int) -> ir.Value:
        """The product's element: the sum over the warps that have parts of k."""
        em, g = self.em, self.g
        own = em.add(pair.own, gate * g.own)
        total = self.products.part(pair.row, own, 0)
        for warp in range(1, g.warps_k):
            total = arith.AddFOp(total, self.products.part(pair.row, own, warp)).result
        return total

    # -- stores

    def _store(self, base: ir.Value, indices: Sequence[IndexValue], value: ir.Value) -> None:
        memref.StoreOp(value, base, [self.em.value(i) for i in indices])

    def _hand_on(self, own: list[Pair], made: list[list[ir.Value]], step: ir.Value) -> None:
        """The new state, for all blocks."""
        half = self.em.rem(self.em.add(step, 1), 2)
        for pair, results in zip(own, made, strict=True):
            with predicated(pair.there):
                self._store(self.buffers.handed, [half, pair.row, pair.unit], results[self.r.makes[self.r.state]])

    def _store_rows(self, own: list[Pair], made: list[list[ir.Value]], row: IndexValue) -> None:
        """This step's slices of the stacked results."""
        for number, buffer in self.returned.items():
            if number >= self.states:
                for pair, results in zip(own, made, strict=True):
                    with predicated(pair.there):
                        result = results[self.r.rows[number - self.states]]
                        self._store(buffer, [row, pair.row, pair.unit], result)


def _constant(expression: ir.AffineExpr) -> int:
    """The constant that an expression adds to a unit's number, or is."""
    if isinstance(expression, ir.AffineConstantExpr):
        return expression.value
    return expression.rhs.value


class Pair:
    """A row of the batch and a unit (`own`: its number in the block), of which a thread computes the gates; `there`:
    whether it has one. Numbers are of some that there are in any case."""

    def __init__(self, row: IndexValue, own: IndexValue, unit: IndexValue, there: ir.Value):
        self.row, self.own, self.unit, self.there = row, own, unit, there
