"""The products of a recurrence's step: a block's rows of the matrix, in its threads' registers, with the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirc.ir.recurrences import Recurrence
from mlirc.mlir import arith, ir, math, memref, scf, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.recurrence.geometry import LANE, WARP, Geometry, power_of_two

LOADED = 64  # registers of a thread for the state that is on its way


class Products:
    """What an instruction has to build: `keep`, in front of the steps; `multiply`, in each, into shared memory; and
    `part`, of what lies there. `first`: the block's first unit."""

    def __init__(self, em: Emitter, r: Recurrence, g: Geometry, buffers, first: IndexValue):
        self.em, self.r, self.g, self.buffers, self.first = em, r, g, buffers, first
        self.f32 = ir.F32Type.get()
        self.sums = em.alloc_smem(g.sums_shape, self.f32)
        self.matrix = buffers.arguments[r.matrix]

    def release(self) -> None:
        """Gives the shared memory to other blocks' products, behind all else."""
        self.em.free_smem(self.sums)

    def keep(self) -> None:
        """Loads the block's part of the matrix."""
        raise NotImplementedError

    def multiply(self, step: ir.Value) -> None:
        """Multiplies the state that a step starts from, all rows of it."""
        raise NotImplementedError

    def place(self, row: IndexValue, own: IndexValue, warp: IndexValue) -> list[IndexValue]:
        """Where the sum of a warp lies, of a row of the state and a row of the block's part of the matrix."""
        raise NotImplementedError

    def part(self, row: IndexValue, own: IndexValue, warp: int) -> ir.Value:
        """The sum of a warp."""
        return memref.LoadOp(self.sums, [self.em.value(i) for i in self.place(row, own, warp)]).result

    def row_of(self, own: IndexValue) -> IndexValue:
        """The matrix's row that is row `own` of the block's part; some row, behind the end."""
        em, g = self.em, self.g
        unit = em.min(em.add(self.first, em.rem(own, g.own)), g.units - 1)
        return em.add(em.mul(em.min(em.div(own, g.own), g.gates - 1), g.units), unit)

    def state(
        self, step: ir.Value, types: Sequence[ir.Type], load: Callable[[ir.Value, list[IndexValue]], list[ir.Value]]
    ) -> list[ir.Value]:
        """What `load` makes of the state that a step starts from: a tensor, and indices in front of [row, k]."""
        em = self.em
        first, half = em.condition(em.equal(step, 0)), em.rem(step, 2)
        branch = scf.IfOp(first, types, has_else=True)
        start = self.buffers.arguments[self.r.starts[self.r.state]]
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp(load(start, []))
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(load(self.buffers.handed, [half]))
        return list(branch.results)

    def in_turn(self, count: int, together: int, build: Callable[[list[IndexValue]], None]) -> None:
        """Builds something for `together` numbers at once of 0 to `count`, which that divides."""
        em = self.em
        if count == together:
            build(list(range(count)))
            return
        loop = scf.ForOp(em.c(0), em.c(count), em.c(together), [])
        with ir.InsertionPoint(loop.body):
            build([em.add(loop.induction_variable, i) for i in range(together)])
            scf.YieldOp([])


class Fma(Products):
    """By FMA: a lane has four neighbours of every 128 k of its warp; sums over lanes by shuffles."""

    def keep(self) -> None:
        em, g = self.em, self.g
        self.warp_k, self.warp_rows = em.rem(em.block_warp, g.warps_k), em.div(em.block_warp, g.warps_k)
        self.rows = [self._row(i) for i in range(g.warp_rows)]

    def place(self, row: IndexValue, own: IndexValue, warp: IndexValue) -> list[IndexValue]:
        em, rows = self.em, self.g.warp_rows
        width = power_of_two(rows)
        return [row, warp, em.add(em.mul(em.div(own, rows), width), em.rem(own, rows))]

    def multiply(self, step: ir.Value) -> None:
        batch, words = self.g.batch, self.g.pieces * LANE
        most = max(LOADED // words, 1)
        together = next(n for n in range(min(most, batch), 0, -1) if batch % n == 0)
        self.in_turn(batch, together, lambda rows: self._some_rows(step, rows))

    def _k(self, piece: int) -> IndexValue:
        """The first of the lane's k in a piece."""
        em, g = self.em, self.g
        start = em.mul(em.add(em.mul(self.warp_k, g.pieces), piece), WARP)
        return em.add(start, em.mul(em.lane, LANE))

    def _row(self, number: int) -> list[ir.Value]:
        """A row of the block's part of the matrix, of which this lane has some k; zeros behind its end."""
        row = self.row_of(self.em.add(self.em.mul(self.warp_rows, self.g.warp_rows), number))
        found: list[ir.Value] = []
        for piece in range(self.g.pieces):
            found += self._four(self.matrix, [row], self._k(piece), self.r.k_last)
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
        parts = [x if x.type == self.f32 else arith.ExtFOp(self.f32, x).result for x in parts]
        if units % (WARP * self.g.warps_k * self.g.pieces) == 0:
            return parts
        zero = em.constant(ir.FloatAttr.get(self.f32, 0.0))
        return [arith.SelectOp(em.condition(em.less(em.add(k, i), units)), x, zero).result for i, x in enumerate(parts)]

    def _some_rows(self, step: ir.Value, rows: list[IndexValue]) -> None:
        em, g = self.em, self.g
        pieces = range(g.pieces)
        values = self.state(
            step,
            [self.f32] * (g.pieces * LANE * len(rows)),
            lambda base, before: [
                x for row in rows for p in pieces for x in self._four(base, [*before, row], self._k(p))
            ],
        )
        for n, row in enumerate(rows):
            state = values[n * g.pieces * LANE : (n + 1) * g.pieces * LANE]
            totals = []
            for weights in self.rows:
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
