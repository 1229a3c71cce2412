"""What the blocks of a recurrence's launch do."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.ir.recurrences import Operand, Recurrence
from mlirc.mlir import arith, gpu, ir, math, memref, scf, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.distribute.tiles.elementwise import elementwise_op
from mlirc.passes.recurrence.barrier import Barrier
from mlirc.passes.recurrence.geometry import LANE, WARP, Geometry, power_of_two

UNROLLED = 4  # rows of the batch whose state a thread loads at once


class Body:
    """Builds the body of the kernel: inside its function, at its end."""

    def __init__(self, em: Emitter, recurrence: Recurrence, g: Geometry, buffers, counter: str):
        self.em, self.r, self.g, self.buffers = em, recurrence, g, buffers
        self.block = gpu.BlockIdOp(gpu.Dimension.x).result if g.blocks > 1 else 0
        self.first = em.mul(self.block, g.own)  # of the block's units
        self.f32 = ir.F32Type.get()
        self.barrier = Barrier(em, g.blocks, recurrence.steps, counter)
        self.sums = em.alloc_smem(g.sums_shape, self.f32)
        self.warp_k = em.rem(em.block_warp, g.warps_k)
        self.warp_rows = em.div(em.block_warp, g.warps_k)
        self.returned = dict(zip(recurrence.returned, buffers.results, strict=True))
        self.states = len(recurrence.starts)

    def build(self) -> None:
        em, g, r = self.em, self.g, self.r
        matrix = [self._row(i) for i in range(g.warp_rows)]
        own = [self._pair(p) for p in range(g.pairs)]
        starts = [self._at(self.buffers.arguments[s], pair) for pair in own for s in r.starts]
        loop = scf.ForOp(em.c(0), em.c(r.steps), em.c(1), starts)
        with ir.InsertionPoint(loop.body):
            step = loop.induction_variable
            row = em.sub(r.steps - 1, step) if r.reverse else step
            given = [self._given(pair, row) for pair in own]
            self.barrier.wait(step)
            self._multiply(matrix, step)
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

    # -- products

    def _k(self, piece: int) -> IndexValue:
        """The first of the lane's k in a piece."""
        em, g = self.em, self.g
        start = em.mul(em.add(em.mul(self.warp_k, g.pieces), piece), WARP)
        return em.add(start, em.mul(em.lane, LANE))

    def _row(self, number: int) -> list[ir.Value]:
        """A row of the block's part of the matrix, of which this lane has some k; zeros behind its end."""
        em, g, r = self.em, self.g, self.r
        own = em.add(em.mul(self.warp_rows, g.warp_rows), number)
        unit = em.min(em.add(self.first, em.rem(own, g.own)), g.units - 1)
        row = em.add(em.mul(em.min(em.div(own, g.own), g.gates - 1), g.units), unit)
        found: list[ir.Value] = []
        for piece in range(g.pieces):
            found += self._four(self.buffers.arguments[r.matrix], [row], self._k(piece), r.k_last)
        return found

    def _four(self, base: ir.Value, before: list[IndexValue], k: IndexValue, k_last: bool = True) -> list[ir.Value]:
        """Four neighbours along k as f32; zeros behind the end."""
        em, units = self.em, self.g.units
        element = ir.MemRefType(base.type).element_type
        if units % LANE == 0 and k_last:
            at = em.min(k, units - LANE)
            t = ir.VectorType.get([LANE], element)
            width = element.width // 8 * LANE
            loaded = vector.LoadOp(t, base, [em.value(i) for i in (*before, at)], alignment=width).result
            parts = [em.extract(loaded, i) for i in range(LANE)]
        else:
            parts = []
            for i in range(LANE):
                at = em.min(em.add(k, i), units - 1)
                indices = [*before, at] if k_last else [at, *before]
                parts.append(memref.LoadOp(base, [em.value(x) for x in indices]).result)
        parts = [self._wide(x) for x in parts]
        if units % (WARP * self.g.warps_k * self.g.pieces) == 0:
            return parts
        zero = em.constant(ir.FloatAttr.get(self.f32, 0.0))
        return [arith.SelectOp(em.condition(em.less(em.add(k, i), units)), x, zero).result for i, x in enumerate(parts)]

    def _wide(self, x: ir.Value) -> ir.Value:
        return x if x.type == self.f32 else arith.ExtFOp(self.f32, x).result

    def _state(self, step: ir.Value, rows: Sequence[IndexValue]) -> list[list[ir.Value]]:
        """The lane's k of some rows of the state that the step starts from: the argument, or what was handed on."""
        em = self.em
        count = self.g.pieces * LANE
        first, half = em.condition(em.equal(step, 0)), em.rem(step, 2)
        branch = scf.IfOp(first, [self.f32] * (count * len(rows)), has_else=True)
        start = self.buffers.arguments[self.r.starts[self.r.state]]
        for block, base, before in (
            (branch.then_block, start, []),
            (branch.else_block, self.buffers.handed, [half]),
        ):
            with ir.InsertionPoint(block):
                found: list[ir.Value] = []
                for row in rows:
                    for piece in range(self.g.pieces):
                        found += self._four(base, [*before, row], self._k(piece))
                scf.YieldOp(found)
        values = list(branch.results)
        return [values[i * count : (i + 1) * count] for i in range(len(rows))]

    def _multiply(self, matrix: list[list[ir.Value]], step: ir.Value) -> None:
        """Multiplies the state's rows with the block's part of the matrix, into shared memory."""
        em, batch = self.em, self.g.batch
        together = next(n for n in (UNROLLED, 3, 2, 1) if batch % n == 0)
        if batch == together:
            self._some_rows(matrix, step, list(range(batch)))
            return
        loop = scf.ForOp(em.c(0), em.c(batch), em.c(together), [])
        with ir.InsertionPoint(loop.body):
            self._some_rows(matrix, step, [em.add(loop.induction_variable, i) for i in range(together)])
            scf.YieldOp([])

    def _some_rows(self, matrix: list[list[ir.Value]], step: ir.Value, rows: list[IndexValue]) -> None:
        em, g = self.em, self.g
        for row, state in zip(rows, self._state(step, rows), strict=True):
            totals = []
            for weights in matrix:
                total = arith.MulFOp(weights[0], state[0]).result
                for w, h in zip(weights[1:], state[1:], strict=True):
                    total = math.FmaOp(w, h, total).result
                totals.append(total)
            total = self._over_lanes(totals)
            width = power_of_two(g.warp_rows)
            with predicated(em.condition(em.less(em.lane, width)) if width < 32 else True):
                column = em.add(em.mul(self.warp_rows, width), em.lane)
                memref.StoreOp(total, self.sums, [em.value(x) for x in (row, self.warp_k, column)])

    def _over_lanes(self, totals: list[ir.Value]) -> ir.Value:
        """Sums over lanes: lane i ends up with that of number i."""
        em = self.em
        half = power_of_two(len(totals)) // 2
        while half:
            upper = em.condition(em.equal(em.rem(em.div(em.lane, half), 2), 1))
            kept = []
            for i in range(min(half, len(totals))):
                low = totals[i]
                if i + half < len(totals):
                    high = totals[i + half]
                    given = arith.SelectOp(upper, low, high).result
                    low = arith.SelectOp(upper, high, low).result
                else:
                    given = low
                kept.append(arith.AddFOp(low, em.shuffle_xor(given, half)).result)
            totals, half = kept, half // 2
        [total] = totals
        offset = power_of_two(self.g.warp_rows)
        while offset < 32:
            total = arith.AddFOp(total, em.shuffle_xor(total, offset)).result
            offset *= 2
        return total

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
        width = power_of_two(g.warp_rows)
        column = em.add(em.mul(em.div(own, g.warp_rows), width), em.rem(own, g.warp_rows))
        total = self._load(self.sums, [pair.row, 0, column])
        for warp in range(1, g.warps_k):
            total = arith.AddFOp(total, self._load(self.sums, [pair.row, warp, column])).result
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
